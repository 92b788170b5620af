// OLMo's `local` layout. The input is the pickles of rank 0's model and optimizer file, then rank
// 1's and so on (archives.h); a single pickle is a model without an optimizer.

#include "fuzz_target.h"
#include "interop/olmo/local.h"
#include "olmo_ranks.h"

namespace varve::olmo_local_fuzzer {
namespace {

constexpr std::size_t kMaxRanks = 4;

/// The files of all ranks as the decoders number them: models, then optimizers.
struct Ranks {
  std::vector<Bytes> files;
  std::size_t models = 0;
  std::size_t optimizers = 0;
};

Ranks RanksOf(std::string_view input) {
  std::vector<Bytes> pickled = fuzz::ArchivesOf(input, 2 * kMaxRanks);
  Ranks ranks;
  if (pickled.size() > 1) {
    pickled.resize(pickled.size() / 2 * 2);
  }
  for (std::size_t i = 0; i < pickled.size(); i += 2) {
    ranks.files.push_back(pickled[i]);
    ++ranks.models;
  }
  for (std::size_t i = 1; i < pickled.size(); i += 2) {
    ranks.files.push_back(pickled[i]);
    ++ranks.optimizers;
  }
  return ranks;
}

}  // namespace

VARVE_FUZZ_TARGET(olmo_local) {
  const Ranks ranks = RanksOf(input);
  if (ranks.files.empty()) {
    return;
  }
  const auto file = [&](std::size_t i) { return fuzz::NamedFileOf("f", ranks.files[i]); };
  const auto layout = ReadLocalLayout(file(0));
  if (!layout.ok()) {
    return;
  }
  std::vector<LocalModel> models;
  std::vector<RecordCrc> records;
  for (std::size_t r = 0; r < ranks.models; ++r) {
    auto model = ReadLocalModel(file(r), static_cast<std::uint32_t>(r), *layout);
    if (!model.ok()) {
      return;
    }
    records.insert(records.end(), model->records.begin(), model->records.end());
    models.push_back(*std::move(model));
  }
  std::vector<LocalOptimizer> optimizers;
  LocalGroups groups;
  for (std::size_t r = 0; r < ranks.optimizers; ++r) {
    const std::size_t number = ranks.models + r;
    if (r == 0) {
      auto read = ReadLocalGroups(file(number));
      if (!read.ok()) {
        return;
      }
      groups = *std::move(read);
    }
    auto optimizer = ReadLocalOptimizer(file(number), static_cast<std::uint32_t>(number), *layout,
                                        groups, models[r]);
    if (!optimizer.ok()) {
      return;
    }
    records.insert(records.end(), optimizer->records.begin(), optimizer->records.end());
    optimizers.push_back(*std::move(optimizer));
  }
  const ReplicaCheck check = fuzz::CheckOf(ranks.files, records);
  StateNode root;
  auto model = MergeLocalModel(*layout, models, check);
  if (!model.ok()) {
    return;
  }
  root.Add("model", *std::move(model));
  if (!optimizers.empty()) {
    auto optim = MergeLocalOptimizer(*layout, std::move(groups), std::move(optimizers), check);
    if (!optim.ok()) {
      return;
    }
    root.Add("optim", *std::move(optim));
  }
  fuzz::CheckState(std::move(root), ranks.files, records, fuzz::Holes::kAllowed);
}

}  // namespace varve::olmo_local_fuzzer
