// OLMo's `torch_legacy` layout: ShardedTensors, DTensors, and states that all ranks hold. The input
// is the ranks' pickles (archives.h).

#include "fuzz_target.h"
#include "interop/olmo/pieces.h"
#include "interop/olmo/sharded.h"
#include "interop/torch/archive.h"
#include "interop/torch/state_reader.h"
#include "olmo_ranks.h"

namespace varve::olmo_legacy_fuzzer {
namespace {

constexpr std::size_t kMaxRanks = 4;

}  // namespace

VARVE_FUZZ_TARGET(olmo_legacy) {
  const std::vector<Bytes> files = fuzz::ArchivesOf(input, kMaxRanks);
  const auto world_size = static_cast<std::uint32_t>(files.size());
  std::vector<StateNode> states;
  std::vector<RecordCrc> records;
  for (const Bytes& file : files) {
    const auto number = static_cast<std::uint32_t>(states.size());
    const RangeReader read = fuzz::CheckedReader(file);
    const auto archive = TorchArchive::Open(file.size(), read);
    if (!archive.ok()) {
      return;
    }
    ShardedTensors sharded(*archive, number, world_size);
    StateReader reader(*archive, read, number, [&](PickleRef node) { return sharded.At(node); });
    auto state = reader.At(archive->tree().root(), "");
    if (!state.ok()) {
      return;
    }
    states.push_back(*std::move(state));
    const std::vector<RecordCrc> sums = StorageRecords(*archive, number);
    records.insert(records.end(), sums.begin(), sums.end());
  }
  std::vector<StateNode*> ranks;
  for (StateNode& state : states) {
    ranks.push_back(&state);
  }
  if (ranks.empty()) {
    return;
  }
  auto merged = MergeRanks("", std::move(ranks), fuzz::CheckOf(files, records));
  if (merged.ok()) {
    fuzz::CheckState(*std::move(merged), files, records, fuzz::Holes::kAllowed);
  }
}

}  // namespace varve::olmo_legacy_fuzzer
