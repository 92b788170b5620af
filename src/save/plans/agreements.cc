#include "save/plans/agreements.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

#include "base/checksum.h"
#include "coordinate/known_parts.h"

namespace varve {
namespace {

/// Values up to this size may change theirs, so many of a rank. Above that the limits of headers and
/// of the manifest, which are checked when a save is settled, have to be checked anew.
constexpr std::uint64_t kMostChangedBytes = std::uint64_t{64} << 10;
constexpr std::size_t kMostChangedSizes = 64;

/// Returns true where other sizes of values leave what was settled as it is. Archives of several
/// ranks are alike only where their values are (settle.cc).
bool MayChange(const std::vector<ObjectSize>& sizes, const LocalPlan& plan) {
  return sizes.empty() ||
         (sizes.size() <= kMostChangedSizes &&
          std::all_of(sizes.begin(), sizes.end(),
                      [](const ObjectSize& size) { return size.bytes <= kMostChangedBytes; }) &&
          std::none_of(plan.tensors.begin(), plan.tensors.end(),
                       [](const PlannedTensor& tensor) { return tensor.part_of.has_value(); }));
}

}  // namespace

std::size_t Agreement::bytes() const {
  constexpr std::size_t kItemBytes = 200;  // With its box, its spec and its name.
  return (plan.tensors.size() + plan.objects.size() + assignment.chunks.size()) * kItemBytes +
         assignment.structure.size() + (others == nullptr ? 0 : others->bytes());
}

std::shared_ptr<Agreements> Agreements::Of(Coordinator& coordinator) {
  return coordinator.known_parts().AgreementsOr([] { return std::make_shared<Agreements>(); });
}

std::shared_ptr<const Agreement> Agreements::Find(const LocalPlan& plan, const Bytes& terms) {
  const Hash128 structure = Xxh3(AsByteSpan(plan.structure));
  const std::scoped_lock lock(mutex_);
  const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const auto& one) {
    return one->terms == terms && one->structure == structure &&
           AreAlikeButForContents(one->plan, plan) && MayChange(ChangedSizes(*one, plan), plan);
  });
  if (found == kept_.end()) {
    return nullptr;
  }
  kept_.splice(kept_.begin(), kept_, found);
  return kept_.front();
}

bool Agreements::Keep(std::shared_ptr<const Agreement> agreement) {
  const std::size_t bytes = agreement->bytes();
  const std::scoped_lock lock(mutex_);
  if (bytes > most_bytes_) {
    return false;
  }
  kept_.remove_if([&](const auto& one) {
    return one->terms == agreement->terms && one->structure == agreement->structure &&
           AreAlikeButForContents(one->plan, agreement->plan);
  });
  kept_.push_front(std::move(agreement));
  const auto taken = [&] {
    return std::accumulate(kept_.begin(), kept_.end(), std::size_t{0},
                           [](std::size_t sum, const auto& one) { return sum + one->bytes(); });
  };
  while (kept_.size() > kMost || taken() > most_bytes_) {
    kept_.pop_back();
  }
  return true;
}

std::vector<ObjectSize> ChangedSizes(const Agreement& agreement, const LocalPlan& plan) {
  std::vector<ObjectSize> changed;
  for (std::size_t i = 0; i < plan.objects.size(); ++i) {
    if (plan.objects[i].bytes != agreement.plan.objects[i].bytes) {
      changed.push_back({static_cast<std::uint32_t>(i), plan.objects[i].bytes});
    }
  }
  return changed;
}

}  // namespace varve
