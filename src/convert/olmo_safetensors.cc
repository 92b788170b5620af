// To a safetensors file in OLMo's dialect: the state as it was, under keys that say its paths.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "convert/writers.h"
#include "interop/olmo/dialect.h"
#include "interop/safetensors/encode.h"

namespace varve {
namespace {

/// An entry of the file, and where its bytes come from.
struct Placed {
  SafetensorsEntry entry;
  const SelectedTensor* tensor = nullptr;  ///< Null for a value.
  Bytes pickle;
};

Result<std::vector<Placed>> InFileOrder(const Selection& selection) {
  VARVE_ASSIGN_OR_RETURN(const Value state, WholeState(selection));
  VARVE_ASSIGN_OR_RETURN(std::vector<OlmoEntry> entries, FlattenForOlmo(state));
  std::vector<Placed> placed;
  placed.reserve(entries.size());
  for (OlmoEntry& entry : entries) {
    if (!entry.tensor) {
      const Dims shape{entry.pickle.size()};
      placed.push_back({{std::move(entry.key), DType::kUInt8, shape}, nullptr, {}});
      placed.back().pickle = std::move(entry.pickle);
      continue;
    }
    const SelectedTensor& tensor = selection.tensors[*entry.tensor];
    const StreamItem& item = tensor.item;
    if (!CanBeSafetensors(item.dtype, item.tensor->shape)) {
      return Unimplemented("\"" + tensor.fqn + "\" is " + std::string(DTypeName(item.dtype)) +
                           ", which safetensors cannot hold");
    }
    placed.push_back({{std::move(entry.key), item.dtype, item.tensor->shape}, &tensor, {}});
  }
  std::sort(placed.begin(), placed.end(),
            [](const Placed& a, const Placed& b) { return SafetensorsBefore(a.entry, b.entry); });
  return placed;
}

}  // namespace

Result<ConvertReport> WriteOlmoSafetensors(CheckpointReader& reader, const Selection& selection,
                                           const ConvertOptions& options,
                                           const SegmentWriter& write) {
  VARVE_ASSIGN_OR_RETURN(const std::vector<Placed> placed, InFileOrder(selection));
  std::vector<SafetensorsEntry> entries;
  std::vector<const SelectedTensor*> order;
  entries.reserve(placed.size());
  order.reserve(placed.size());
  for (const Placed& each : placed) {
    entries.push_back(each.entry);
    if (each.tensor != nullptr) {
      order.push_back(each.tensor);
    }
  }
  const Bytes header = EncodeSafetensorsHeader(entries);
  SelectedStream stream(reader, order, options, selection.tensor_bytes());
  std::vector<FileSegment> segments{{.bytes = header.size(), .literal = AsByteSpan(header)}};
  segments.reserve(placed.size() + 1);
  std::size_t item = 0;
  for (const Placed& each : placed) {
    if (each.tensor != nullptr) {
      segments.push_back({.bytes = each.entry.bytes(), .produce = stream.Bytes(item++)});
    } else {
      segments.push_back({.bytes = each.pickle.size(), .literal = AsByteSpan(each.pickle)});
    }
  }
  ConvertReport report;
  VARVE_ASSIGN_OR_RETURN(report.bytes, write(segments));
  report.tensor_count = selection.tensors.size();
  report.object_count = selection.objects.size();
  return report;
}

}  // namespace varve
