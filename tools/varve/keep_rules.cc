#include "keep_rules.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>

namespace varve::cli {
namespace {

Status Unfit(const std::string& text) {
  return InvalidArgument("--keep " + text +
                         ": want last=N, every=K, hours=H, minutes=M, newer=H or "
                         "best=N:METRIC[:max]");
}

std::optional<std::uint64_t> Whole(std::string_view text) {
  std::uint64_t number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool all = read.ec == std::errc() && read.ptr == text.data() + text.size();
  return all ? std::optional(number) : std::nullopt;
}

/// Returns a time of at most a million units.
std::optional<std::chrono::milliseconds> Time(std::string_view text, double unit) {
  double number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size() || !(number >= 0) ||
      number > 1e6) {
    return std::nullopt;
  }
  return std::chrono::milliseconds(std::llround(number * unit * 1000));
}

/// Reads "2:loss" and "2:loss:max".
std::optional<KeepBest> Best(std::string_view text) {
  KeepBest best;
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) {
    return std::nullopt;
  }
  const auto count = Whole(text.substr(0, colon));
  text.remove_prefix(colon + 1);
  for (const std::string_view mode : {":max", ":min"}) {
    if (text.ends_with(mode)) {
      best.highest = mode == ":max";
      text.remove_suffix(mode.size());
      break;
    }
  }
  best.metric = std::string(text);
  best.count = count.value_or(0);
  return count && !text.empty() ? std::optional(best) : std::nullopt;
}

}  // namespace

Result<KeepRules> ParseKeepRules(const std::vector<std::string>& texts) {
  constexpr double kHour = 3600;
  KeepRules rules;
  for (const std::string& text : texts) {
    const std::size_t equals = text.find('=');
    const std::string_view name = std::string_view(text).substr(0, equals);
    const std::string_view value = equals == std::string::npos
                                       ? std::string_view()
                                       : std::string_view(text).substr(equals + 1);
    bool fits = false;
    const auto set = [&](auto* rule, const auto& read) {
      fits = read.has_value();
      *rule = read;
    };
    if (name == "last") {
      set(&rules.last, Whole(value));
    } else if (name == "every") {
      set(&rules.every_steps, Whole(value));
    } else if (name == "hours") {
      set(&rules.every_time, Time(value, kHour));
    } else if (name == "minutes") {
      set(&rules.every_time, Time(value, 60));
    } else if (name == "newer") {
      set(&rules.newer_than, Time(value, kHour));
    } else if (name == "best") {
      set(&rules.best, Best(value));
    }
    if (!fits) {
      return Unfit(text);
    }
  }
  VARVE_RETURN_IF_ERROR(CheckRules(rules));
  return rules;
}

}  // namespace varve::cli
