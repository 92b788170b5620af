// ReadPickle, with and without folding.

#include <span>
#include <vector>

#include "fuzz_target.h"
#include "interop/dcp/records.h"
#include "interop/pickle/tree.h"

namespace varve::pickle_fuzzer {
namespace {

/// Asks for all there is to know of the nodes below `root`, each once.
class Walk {
 public:
  explicit Walk(const PickleTree& tree) : tree_(tree) {}

  void From(PickleRef root) {
    Push(root);
    while (!waiting_.empty()) {
      const PickleRef node = waiting_.back();
      waiting_.pop_back();
      Visit(node);
    }
  }

 private:
  void Push(PickleRef node) {
    if (seen_.size() <= node) {
      seen_.resize(node + std::size_t{1}, false);
    }
    if (!seen_[node]) {
      seen_[node] = true;
      waiting_.push_back(node);
    }
  }

  void PushAll(std::span<const PickleRef> nodes) {
    for (const PickleRef node : nodes) {
      Push(node);
    }
  }

  void Visit(PickleRef node) {
    const PickleKind kind = tree_.kind(node);
    PushAll(tree_.items(node));
    VARVE_FUZZ_CHECK(kind != PickleKind::kDict || tree_.items(node).size() % 2 == 0);
    VARVE_FUZZ_CHECK(kind != PickleKind::kLong || tree_.text(node).size() > 8);
    VARVE_FUZZ_CHECK(kind != PickleKind::kBool || (tree_.integer(node) | 1) == 1);
    static_cast<void>(tree_.Get(node, "key"));
    static_cast<void>(tree_.module(node).size() + tree_.name(node).size());
    if (!tree_.IsObject(node)) {
      return;
    }
    const PickleObject& object = tree_.object(node);
    VARVE_FUZZ_CHECK((object.callee == kNoPickle) == (kind == PickleKind::kPersistent));
    VARVE_FUZZ_CHECK(object.pairs.size() % 2 == 0);
    Push(object.args);
    for (const PickleRef part : {object.callee, object.kwargs, object.state}) {
      if (part != kNoPickle) {
        Push(part);
      }
    }
    PushAll(object.items);
    PushAll(object.pairs);
  }

  const PickleTree& tree_;
  std::vector<bool> seen_;
  std::vector<PickleRef> waiting_;
};

}  // namespace

VARVE_FUZZ_TARGET(pickle) {
  std::uint64_t consumed = 0;
  const auto tree = ReadPickle(input, {}, nullptr, &consumed);
  DcpRecords records(input);
  const auto folded = ReadPickle(input, {}, &records);
  if (!tree.ok()) {
    VARVE_FUZZ_CHECK(!folded.ok());
    return;
  }
  VARVE_FUZZ_CHECK(consumed > 0 && consumed <= input.size() && input[consumed - 1] == '.');
  Walk(*tree).From(tree->root());
  VARVE_FUZZ_CHECK(folded.ok() || folded.status().code() == StatusCode::kFailedPrecondition);
  if (folded.ok()) {
    Walk(*folded).From(folded->root());
    VARVE_FUZZ_CHECK(folded->kind(folded->root()) == tree->kind(tree->root()) ||
                     folded->kind(folded->root()) == PickleKind::kFolded);
  }
}

}  // namespace varve::pickle_fuzzer
