#include "save/plans/agreements.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

#include "base/checksum.h"
#include "coordinate/known_parts.h"

namespace varve {
Hash128 DigestOfPart(std::string_view part) { return Xxh3(AsByteSpan(part)); }

bool MayChange(const std::vector<ObjectSize>& sizes) {
  std::uint64_t bytes = 0;
  for (const ObjectSize& size : sizes) {
    bytes = size.bytes > kMostChangedBytes ? size.bytes : bytes + size.bytes;
    if (bytes > kMostChangedBytes) {
      return false;
    }
  }
  return sizes.size() <= kMostChangedSizes;
}

namespace {

/// Returns true where other sizes of values leave what was settled as it is. Archives of several
/// ranks are alike only where their values are (settle.cc).
bool LeavesSettled(const std::vector<ObjectSize>& sizes, const LocalPlan& plan) {
  return sizes.empty() ||
         (MayChange(sizes) &&
          std::none_of(plan.tensors.begin(), plan.tensors.end(),
                       [](const PlannedTensor& tensor) { return tensor.part_of.has_value(); }));
}

}  // namespace

std::size_t Agreement::bytes() const {
  constexpr std::size_t kItemBytes = 256;  // With its box, its spec and its assignment.
  std::size_t bytes = (plan.tensors.size() + plan.objects.size()) * kItemBytes +
                      compared.runs.size() * sizeof(ComparedItems::Run) +
                      assignment.structure.size() + pattern.bytes() +
                      (others == nullptr ? 0 : others->bytes());
  for (const PlannedTensor& tensor : plan.tensors) {
    bytes += tensor.fqn().size();
  }
  for (const ObjectItem& object : plan.objects) {
    bytes += object.fqn.size();
  }
  return bytes;
}

std::shared_ptr<Agreements> Agreements::Of(Coordinator& coordinator) {
  return coordinator.known_parts().AgreementsOr([] { return std::make_shared<Agreements>(); });
}

std::vector<std::shared_ptr<const Agreement>> Agreements::Find(const LocalPlan& plan,
                                                               const Bytes& terms) {
  const Hash128 structure = DigestOfPart(plan.structure);
  std::vector<std::shared_ptr<const Agreement>> found;
  const std::scoped_lock lock(mutex_);
  for (const Kept& kept : kept_) {
    const Agreement& one = *kept.agreement;
    if (one.terms == terms && one.structure == structure &&
        AreAlikeButForContents(one.plan, plan) && LeavesSettled(ChangedSizes(one, plan), plan)) {
      found.push_back(kept.agreement);
    }
  }
  return found;
}

bool Agreements::Keep(std::shared_ptr<const Agreement> agreement) {
  const std::size_t bytes = agreement->bytes();
  const std::scoped_lock lock(mutex_);
  if (bytes > kMostBytes) {
    return false;
  }
  kept_.push_front({std::move(agreement), bytes});
  const auto taken = [&] {
    return std::accumulate(kept_.begin(), kept_.end(), std::size_t{0},
                           [](std::size_t sum, const Kept& one) { return sum + one.bytes; });
  };
  while (kept_.size() > kMost || taken() > kMostBytes) {
    kept_.pop_back();
  }
  return true;
}

void Agreements::Use(const Agreement& agreement) {
  const std::scoped_lock lock(mutex_);
  weight_ = std::max(weight_ - 1, 0);
  const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& one) {
    return one.agreement.get() == &agreement;
  });
  if (found != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, found);
  }
}

void Agreements::Clear() {
  const std::scoped_lock lock(mutex_);
  kept_.clear();
}

Agreements::Next Agreements::Settled(bool missed) {
  const std::scoped_lock lock(mutex_);
  if (pause_ > 0) {
    --pause_;
    return missed ? Next::kClear : Next::kDrop;
  }
  weight_ += missed ? kMissWeight : 0;
  if (weight_ < kMostWeight) {
    return Next::kKeep;
  }
  weight_ = 0;
  pause_ = kPause;
  kept_.clear();
  return Next::kClear;
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
