/// What a report advises, from what it knows of a run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report_data.h"

namespace varve::cli {

struct Advice {
  enum class Kind : std::uint8_t { kGood, kNote, kWarning };
  Kind kind = Kind::kNote;
  std::string text;
};

/// Returns "good", "note" or "warning".
std::string_view KindName(Advice::Kind kind);

/// Returns sentences for people, warnings first. Pure.
std::vector<Advice> AdviceFor(const ReportData& data);

}  // namespace varve::cli
