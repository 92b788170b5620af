// Folding: see the head of machine.h.

#include <algorithm>
#include <cstddef>

#include "interop/pickle/machine.h"

namespace varve {
namespace {

// How often a memo entry may be looked at on average, each time for a fold around another fold:
// real objects nest two or three levels deep.
constexpr std::uint64_t kMaxScans = 64;

/// Nodes that refer to no other node.
bool IsAtom(PickleKind kind) {
  switch (kind) {
    case PickleKind::kNone:
    case PickleKind::kBool:
    case PickleKind::kInt:
    case PickleKind::kLong:
    case PickleKind::kFloat:
    case PickleKind::kStr:
    case PickleKind::kBytes:
    case PickleKind::kByteArray:
    case PickleKind::kGlobal:
    case PickleKind::kFolded: return true;
    default: return false;
  }
}

}  // namespace

bool PickleMachine::Offer() {
  if (folder_ == nullptr) {
    return true;
  }
  std::uint32_t tag = 0;
  std::int64_t value = 0;
  if (!folder_->Fold(tree_, stack_.back().node, &tag, &value)) {
    return true;
  }
  return DropParts(tag, value);
}

bool PickleMachine::DropParts(std::uint32_t tag, std::int64_t value) {
  Slot& top = stack_.back();
  const Watermark begin = top.begin;
  // That older entries hold nothing of what is dropped follows from their watermarks, which grow
  // towards the top; the nearest one is asked all the same.
  if (stack_.size() > 1) {
    const Slot& below = stack_[stack_.size() - 2];
    if (below.node >= begin.nodes || below.begin.nodes > begin.nodes) {
      return Fail(StatusCode::kInternal, "the stack holds what a folded object is made of");
    }
  }
  std::uint32_t objects = tree_.nodes_[top.node].extra;  // The first that goes.
  for (PickleRef node = top.node; node-- > begin.nodes;) {
    objects = tree_.IsObject(node) ? tree_.nodes_[node].extra : objects;
  }
  tree_.nodes_[top.node] = {PickleKind::kFolded, false, tag, static_cast<std::uint64_t>(value)};

  kept_.assign(1, top.node);
  PodList<PickleRef>& memo = memo_.entries();
  scanned_ += memo.size() - begin.memo;
  if (scanned_ > kMaxScans * (memo.size() + 1024)) {
    return Fail(StatusCode::kFailedPrecondition, "folds inside folds inside folds");
  }
  for (std::size_t m = begin.memo; m < memo.size(); ++m) {
    if (memo[m] >= PickleMemo::kForgotten || memo[m] < begin.nodes) {
      continue;
    }
    if (IsAtom(tree_.kind(memo[m]))) {
      kept_.push_back(memo[m]);
    } else {
      memo[m] = PickleMemo::kForgotten;
    }
  }
  std::sort(kept_.begin(), kept_.end());
  kept_.erase(std::unique(kept_.begin(), kept_.end()), kept_.end());

  const auto moved = [this, &begin](PickleRef node) {
    const auto at = std::lower_bound(kept_.begin(), kept_.end(), node);
    return begin.nodes + static_cast<PickleRef>(at - kept_.begin());
  };
  for (std::size_t m = begin.memo; m < memo.size(); ++m) {
    if (memo[m] < PickleMemo::kForgotten && memo[m] >= begin.nodes) {
      memo[m] = moved(memo[m]);
    }
  }
  top.node = moved(top.node);
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    tree_.nodes_[begin.nodes + i] = tree_.nodes_[kept_[i]];
  }
  tree_.nodes_.Cut(begin.nodes + kept_.size());
  tree_.items_.Cut(begin.items);
  tree_.objects_.resize(objects);
  return true;
}

}  // namespace varve
