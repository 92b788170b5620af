/// The page of `varve report`: HTML that needs no network.
#pragma once

#include <string>
#include <string_view>

#include "json.h"

namespace varve::cli {

/// The begin of every page, by which a report is known from a file of the user's.
inline constexpr std::string_view kPageBegin =
    "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    "<meta name=\"generator\" content=\"varve report\">\n";

/// Returns the page of a document of ReportAsJson: the document, and the script that makes tables
/// and charts of it (report/page.js). Names and messages in it come from files that anyone may
/// have written: none of them can become markup or script.
std::string PageOf(const Json& report);

}  // namespace varve::cli
