#include <cmath>
#include <cstdio>
#include <memory>

#include "json.h"
#include "progress.h"
#include "text.h"
#include "varve/convert.h"
#include "verbs.h"

namespace varve::cli {
namespace {

constexpr const char* kHelp =
    "Compares two checkpoints of any formats by name. For each tensor that differs it says how many\n"
    "elements do, and the largest absolute and relative error (|a - b| / max(|a|, |b|)). Types that\n"
    "differ are reported, and their values compared as numbers. NaN equals NaN, and 0 equals -0.\n"
    "\n"
    "Exits with 0 when all is equal, 1 when anything differs, 2 when one could not be read.";

struct Options {
  std::string a;
  std::string b;
  bool json = false;
};

std::string_view KindName(Difference::Kind kind) {
  switch (kind) {
    case Difference::Kind::kOnlyInA: return "only in the first";
    case Difference::Kind::kOnlyInB: return "only in the second";
    case Difference::Kind::kShape: return "shapes differ";
    case Difference::Kind::kDType: return "types differ";
    case Difference::Kind::kValues: return "differs";
  }
  return "differs";
}

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return text;
}

std::string AsJson(const Options& options, const DiffReport& report) {
  Json differences = Json::array();
  for (const Difference& difference : report.differences) {
    differences.push_back({{"fqn", difference.fqn},
                           {"kind", KindName(difference.kind)},
                           {"detail", difference.detail},
                           {"elements", difference.elements},
                           {"differing", difference.differing},
                           // Numbers as text: JSON has no infinity.
                           {"max_abs_error", Number(difference.max_abs_error)},
                           {"max_rel_error", Number(difference.max_rel_error)}});
  }
  return ToLine({{"a", options.a},
                 {"b", options.b},
                 {"equal", report.differences.empty()},
                 {"equal_tensors", report.equal_tensors},
                 {"equal_objects", report.equal_objects},
                 {"differences", std::move(differences)}});
}

std::string Line(const Difference& difference) {
  std::string line = Printable(difference.fqn) + ": " + std::string(KindName(difference.kind));
  line += difference.detail.empty() ? "" : ", " + Printable(difference.detail);
  if (difference.elements > 0) {
    line += ", " + std::to_string(difference.differing) + " of " +
            Count(difference.elements, "element") + ", max abs error " +
            Number(difference.max_abs_error) + ", max rel error " +
            Number(difference.max_rel_error);
  }
  return line + "\n";
}

Result<Outcome> Run(const Options& options, const std::stop_token& stop) {
  Progress progress("diff", options.json);
  const auto report = Diff(options.a, options.b, AnyStorage(), progress.function(), stop);
  progress.Finish();
  if (report.status().code() == StatusCode::kDataLoss) {  // 1 would say that they differ.
    return Outcome{.text = "", .exit_code = kExitError, .complaint = report.status().message()};
  }
  VARVE_RETURN_IF_ERROR(report.status());
  const int exit_code = report->differences.empty() ? kExitOk : kExitDamage;
  if (options.json) {
    return Outcome{AsJson(options, *report), exit_code};
  }
  std::string text;
  for (const Difference& difference : report->differences) {
    text += Line(difference);
  }
  text += "equal: " + Count(report->equal_tensors, "tensor") + ", " +
          Count(report->equal_objects, "object") +
          "; different: " + std::to_string(report->differences.size()) + "\n";
  return Outcome{std::move(text), exit_code};
}

}  // namespace

void AddDiff(Command program) {
  Command verb = program.Add("diff", "Compare two checkpoints of any formats", kHelp);
  const auto options = std::make_shared<Options>();
  verb.Positional("A", &options->a, "A checkpoint");
  verb.Positional("B", &options->b, "Another");
  verb.Flag("--json", &options->json,
            "An object: a, b, equal, equal_tensors, equal_objects, differences");
  verb.RunsUntilStopped([=](const std::stop_token& stop) { return Run(*options, stop); });
}

}  // namespace varve::cli
