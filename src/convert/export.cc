// Export is a conversion to one safetensors file.

#include <utility>

#include "varve/catalogue.h"
#include "varve/convert.h"

namespace varve {

Result<ExportReport> ExportSafetensors(const std::string& path, const std::string& out,
                                       const ExportOptions& options, Storage& storage) {
  ConvertOptions convert;
  convert.to = ConvertTarget::kSafetensors;
  convert.include = options.include;
  convert.overwrite = options.overwrite;
  convert.progress = options.progress;
  convert.stop = options.stop;
  convert.memory_budget = std::uint64_t{128} << 20;
  VARVE_ASSIGN_OR_RETURN(ConvertReport report, Convert(path, out, convert, storage));
  return ExportReport{report.tensor_count, report.bytes, std::move(report.skipped)};
}

}  // namespace varve
