#include "varve/step_note.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include <simdjson.h>

#include "base/json_parser.h"
#include "format/json_writer.h"

namespace varve {
namespace {

/// JSON has no numbers for these.
constexpr std::string_view kNan = "NaN";
constexpr std::string_view kInfinity = "Infinity";
constexpr std::string_view kMinusInfinity = "-Infinity";

void AppendMetric(double value, std::string* out) {
  if (std::isnan(value)) {
    AppendJsonString(kNan, out);
  } else if (std::isinf(value)) {
    AppendJsonString(value > 0 ? kInfinity : kMinusInfinity, out);
  } else {
    std::array<char, 32> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
    out->append(digits.data(), end);
  }
}

Status MalformedNote(std::string_view what) {
  return DataLoss("malformed " + std::string(kStepNoteName) + ": " + std::string(what));
}

Result<double> DecodeMetric(simdjson::dom::element element) {
  double value = 0;
  if (element.get(value) == simdjson::SUCCESS) {
    return value;
  }
  std::string_view text;
  if (element.get(text) == simdjson::SUCCESS) {
    constexpr double kInf = std::numeric_limits<double>::infinity();
    if (text == kNan) {
      return std::numeric_limits<double>::quiet_NaN();
    }
    if (text == kInfinity || text == kMinusInfinity) {
      return text == kInfinity ? kInf : -kInf;
    }
  }
  return MalformedNote("a metric that is no number");
}

}  // namespace

Result<std::string> EncodeStepNote(const StepNote& note) {
  std::string out = "{\n  \"step\": " + std::to_string(note.step);
  out += ",\n  \"attempt\": " + std::to_string(note.attempt);
  if (note.resumed_from) {
    out += ",\n  \"resumed_from\": " + std::to_string(*note.resumed_from);
  }
  out += ",\n  \"time_ns\": " + std::to_string(note.time_ns);
  out += ",\n  \"metrics\": {";
  auto metrics = note.metrics;
  std::sort(metrics.begin(), metrics.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  const std::string* before = nullptr;
  for (const auto& [name, value] : metrics) {
    if (!IsUtf8(name)) {
      return InvalidArgument("metrics: a name is not UTF-8");
    }
    if (before != nullptr && *before == name) {
      return InvalidArgument("metrics: \"" + name + "\" is given twice");
    }
    out += before == nullptr ? "\n    " : ",\n    ";
    AppendJsonString(name, &out);
    out += ": ";
    AppendMetric(value, &out);
    before = &name;
  }
  out += metrics.empty() ? "}\n}\n" : "\n  }\n}\n";
  return out;
}

Result<StepNote> DecodeStepNote(std::string_view text) {
  JsonParser parser;
  simdjson::dom::object object;
  if (parser.Parse(text).get(object)) {
    return MalformedNote("not a JSON object");
  }
  StepNote note;
  if (object["step"].get(note.step) || object["attempt"].get(note.attempt) ||
      object["time_ns"].get(note.time_ns)) {
    return MalformedNote("step, attempt or time_ns is missing or no number");
  }
  std::uint64_t from = 0;
  if (object["resumed_from"].get(from) == simdjson::SUCCESS) {
    note.resumed_from = from;
  }
  simdjson::dom::object metrics;
  if (object["metrics"].get(metrics)) {
    return MalformedNote("metrics is not an object");
  }
  for (const auto member : metrics) {
    VARVE_ASSIGN_OR_RETURN(const double value, DecodeMetric(member.value));
    note.metrics.emplace_back(std::string(member.key), value);
  }
  std::sort(note.metrics.begin(), note.metrics.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  return note;
}

}  // namespace varve
