#include "conversion.h"

#include <optional>

#include "json.h"
#include "text.h"

namespace varve::cli {

const std::map<std::string, ConvertTarget>& ConvertTargets() {
  static const std::map<std::string, ConvertTarget> targets{
      {"varve", ConvertTarget::kVarve},
      {"dcp", ConvertTarget::kDcp},
      {"safetensors", ConvertTarget::kSafetensors},
      {"hf", ConvertTarget::kHf},
      {"torch", ConvertTarget::kTorch}};
  return targets;
}

Result<DType> ParseDType(const std::string& name) {
  static const std::map<std::string, DType> short_names{
      {"bf16", DType::kBFloat16}, {"fp16", DType::kFloat16}, {"f16", DType::kFloat16},
      {"fp32", DType::kFloat32},  {"f32", DType::kFloat32},  {"fp64", DType::kFloat64},
      {"f64", DType::kFloat64}};
  if (const auto found = short_names.find(name); found != short_names.end()) {
    return found->second;
  }
  if (const auto dtype = DTypeFromName(name)) {
    return *dtype;
  }
  return InvalidArgument("--dtype " + name + ": no such type; bf16, fp16, fp32 and fp64 are known");
}

Status CheckMemory(const std::string& verb, std::uint64_t bytes) {
  constexpr std::uint64_t kLeast = std::uint64_t{8} << 20;
  return bytes >= kLeast ? Status::Ok()
                         : InvalidArgument(verb + " --memory " + std::to_string(bytes) +
                                           ": the work needs at least 8MiB");
}

namespace {

std::string AsJson(const Conversion& done) {
  const ConvertReport& report = done.report;
  return ToLine({{"source", done.source},
                 {"target", done.target},
                 {"tensors", report.tensor_count},
                 {"objects", report.object_count},
                 {"bytes", report.bytes},
                 {"seconds", Seconds(done.seconds)},
                 {"skipped", report.skipped},
                 {"objects_left_out", report.objects_left_out},
                 {"left_out", report.left_out},
                 {"merged", report.merged},
                 {"classes_left_out", report.classes_left_out},
                 {"files", report.files},
                 {"files_left_out", report.files_left_out}});
}

std::string AsText(const Conversion& done) {
  const ConvertReport& report = done.report;
  std::string text;
  for (const std::string& fqn : report.skipped) {
    text += "skipped " + Printable(fqn) + ": the format cannot hold its type\n";
  }
  for (const std::string& fqn : report.merged) {
    text += "merged " + Printable(fqn) +
            ": ranks held different values; the lowest rank's is written\n";
  }
  if (report.objects_left_out > 0) {
    text += "left out " + Count(report.objects_left_out, "plain value") +
            ": the format holds tensors only\n";
  }
  for (const std::string& entry : report.left_out) {
    const bool has_tensors = entry.find(" tensor") != std::string::npos;
    text += "left out " + Printable(entry) +
            (has_tensors ? "; `varve convert --everything` writes the tensors too\n" : "\n");
  }
  for (const std::string& entry : report.classes_left_out) {
    text += "left out the class " + Printable(entry) +
            ": the target has inner tensors or plain values\n";
  }
  if (report.files_left_out > 0) {
    text +=
        "left out " + Count(report.files_left_out, "side file") + ": the format is a single file\n";
  }
  for (const std::string& name : report.files) {
    text += "copied " + Printable(name) + "\n";
  }
  return text + Printable(done.target) + ": " + Count(report.tensor_count, "tensor") + ", " +
         Count(report.object_count, "object") + ", " + BytesAndSpeed(report.bytes, done.seconds) +
         "\n";
}

}  // namespace

Outcome Describe(const Conversion& done, bool json) {
  return Outcome{json ? AsJson(done) : AsText(done)};
}

}  // namespace varve::cli
