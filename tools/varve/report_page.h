/// The page of `varve report`: HTML that needs no network.
#pragma once

#include <string>
#include <string_view>

#include "report_data.h"

namespace varve::cli {

/// The begin of every page, by which a report is known from a file of the user's.
inline constexpr std::string_view kPageBegin =
    "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    "<meta name=\"generator\" content=\"varve report\">\n";

/// Returns the page. Names and messages come from files that anyone may have written: none of them
/// can become markup or script.
std::string PageOf(const ReportData& data);

/// Returns text as HTML shows it: Printable, and with the characters of markup replaced.
std::string Escaped(std::string_view text);

/// Returns "2026-11-23 10:04:11 UTC" of Unix time; "?" of a time that no calendar has.
std::string FormatTime(double time);

}  // namespace varve::cli
