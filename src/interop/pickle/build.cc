// Opcodes that collect values of the stack into containers, or make objects of them.

#include <algorithm>
#include <bit>
#include <string>

#include "interop/pickle/machine.h"
#include "interop/pickle/text.h"

namespace varve {

// ---- containers ----

bool PickleMachine::CollectTop(std::size_t count) {
  return Need(count) && Collect(PickleKind::kTuple, stack_.size() - count);
}

bool PickleMachine::CollectFromMark(PickleKind kind) {
  std::size_t begin = 0;
  if (!PopMark(&begin)) {
    return false;
  }
  if (kind == PickleKind::kDict && (stack_.size() - begin) % 2 != 0) {
    return Fail("a key without a value");
  }
  return Collect(kind, begin);
}

bool PickleMachine::Collect(PickleKind kind, std::size_t begin) {
  const Watermark mark = begin < stack_.size() ? stack_[begin].begin : Now();
  const auto node = static_cast<PickleRef>(tree_.nodes_.size());
  if (!NewNode({kind, false, 0, 0}) || !AppendItems(node, begin)) {
    return false;
  }
  stack_.Cut(begin);
  stack_.Push({node, mark});
  return true;
}

bool PickleMachine::AppendItems(PickleRef container, std::size_t begin) {
  // The items of a container are one run in items_. A run that can grow has room for the next power
  // of two and moves to the end when that is full: all runs together take at most four times what
  // they hold.
  Node& node = tree_.nodes_[container];
  PodList<PickleRef>& items = tree_.items_;
  const std::uint64_t added = stack_.size() - begin;
  const std::uint64_t count = node.extra + added;
  if (added == 0) {
    return true;
  }
  const bool grows = node.kind != PickleKind::kTuple && node.kind != PickleKind::kFrozenSet;
  const std::uint64_t room = grows ? std::bit_ceil(count) : count;
  if (items.size() + room > kMaxCount) {
    return Fail(StatusCode::kInvalidArgument, "more than 2^32 items");
  }
  if (node.extra == 0 || room > std::bit_ceil(std::uint64_t{node.extra})) {
    const std::uint64_t from = node.payload;
    node.payload = items.size();
    items.Extend(room);
    for (std::uint64_t i = 0; i < node.extra; ++i) {
      items[node.payload + i] = items[from + i];
    }
  }
  for (std::uint64_t i = 0; i < added; ++i) {
    items[node.payload + node.extra + i] = stack_[begin + i].node;
  }
  node.extra = static_cast<std::uint32_t>(count);
  return true;
}

bool PickleMachine::AddFromMark(PickleKind kind) {
  std::size_t begin = 0;
  if (!PopMark(&begin)) {
    return false;
  }
  if (begin <= Fence()) {
    return Fail("there is nothing to add to");
  }
  if (kind == PickleKind::kDict && (stack_.size() - begin) % 2 != 0) {
    return Fail("a key without a value");
  }
  return Add(kind, begin);
}

bool PickleMachine::Add(PickleKind kind, std::size_t begin) {
  const Slot& target = stack_[begin - 1];
  if (!MayChange(target)) {
    return false;
  }
  if (tree_.kind(target.node) == kind) {
    if (!AppendItems(target.node, begin)) {
      return false;
    }
  } else if (tree_.IsObject(target.node)) {
    PickleObject& object = tree_.objects_[tree_.nodes_[target.node].extra];
    std::vector<PickleRef>& list = kind == PickleKind::kDict ? object.pairs : object.items;
    for (std::size_t i = begin; i < stack_.size(); ++i) {
      list.push_back(stack_[i].node);
    }
  } else {
    return Fail("nothing can be added to what is on the stack");
  }
  stack_.Cut(begin);
  return true;
}

bool PickleMachine::MayChange(const Slot& slot) {
  if (folder_ == nullptr) {
    return true;
  }
  if (tree_.kind(slot.node) == PickleKind::kFolded) {
    return Fail(StatusCode::kFailedPrecondition, "adds to a folded object");
  }
  // Came from the memo: what is added would be younger than what it is added to.
  return slot.node >= slot.begin.nodes ||
         Fail(StatusCode::kFailedPrecondition,
              "adds to a container of the memo, which cannot be read with folding");
}

// ---- globals ----

bool PickleMachine::TextGlobal() {
  std::string_view module;
  std::string_view name;
  return TakeLine(&module) && TakeLine(&name) && PushGlobal(module, name, Now());
}

bool PickleMachine::StackGlobal() {
  if (!Need(2)) {
    return false;
  }
  const Slot module = stack_[stack_.size() - 2];
  const Slot name = stack_.back();
  if (tree_.kind(module.node) != PickleKind::kStr || tree_.kind(name.node) != PickleKind::kStr) {
    return Fail("module and name are not strs");
  }
  stack_.Cut(stack_.size() - 2);
  return PushGlobal(tree_.text(module.node), tree_.text(name.node), module.begin);
}

bool PickleMachine::PushGlobal(std::string_view module, std::string_view name,
                               const Watermark& begin) {
  if (!IsPickleUtf8(module) || !IsPickleUtf8(name)) {
    return Fail("the name of a global is not UTF-8");
  }
  const auto next = static_cast<std::uint32_t>(tree_.globals_.size());
  const auto [at, is_new] = global_places_.try_emplace({module, name}, next);
  if (is_new) {
    tree_.globals_.push_back({module, name});
  }
  const auto node = static_cast<PickleRef>(tree_.nodes_.size());
  if (!NewNode({PickleKind::kGlobal, false, at->second, 0})) {
    return false;
  }
  stack_.Push({node, begin});
  return true;
}

// ---- objects ----

bool PickleMachine::MakeObject(PickleKind kind, std::size_t begin, PickleRef callee, PickleRef args,
                               PickleRef kwargs) {
  const Watermark mark = stack_[begin].begin;
  const auto node = static_cast<PickleRef>(tree_.nodes_.size());
  const auto place = static_cast<std::uint32_t>(tree_.objects_.size());
  if (!NewNode({kind, false, place, 0})) {
    return false;
  }
  PickleObject& object = tree_.objects_.emplace_back();
  object.callee = callee;
  object.args = args;
  object.kwargs = kwargs;
  stack_.Cut(begin);
  stack_.Push({node, mark});
  return kind == PickleKind::kPersistent || Offer();
}

bool PickleMachine::Reduce(PickleKind kind) {
  if (!Need(2)) {
    return false;
  }
  const std::size_t begin = stack_.size() - 2;
  const PickleRef args = stack_[begin + 1].node;
  if (tree_.kind(args) != PickleKind::kTuple) {
    return Fail("the arguments are not a tuple");
  }
  return MakeObject(kind, begin, stack_[begin].node, args);
}

bool PickleMachine::NewObjectEx() {
  if (!Need(3)) {
    return false;
  }
  const std::size_t begin = stack_.size() - 3;
  const PickleRef args = stack_[begin + 1].node;
  const PickleRef kwargs = stack_[begin + 2].node;
  if (tree_.kind(args) != PickleKind::kTuple || tree_.kind(kwargs) != PickleKind::kDict) {
    return Fail("the arguments are not a tuple and a dict");
  }
  return MakeObject(PickleKind::kNewObject, begin, stack_[begin].node, args, kwargs);
}

bool PickleMachine::Instantiate() {
  std::size_t begin = 0;
  std::string_view module;
  std::string_view name;
  if (!TakeLine(&module) || !TakeLine(&name) || !PopMark(&begin) ||
      !Collect(PickleKind::kTuple, begin)) {
    return false;
  }
  const PickleRef args = stack_[begin].node;
  if (!PushGlobal(module, name, Now())) {
    return false;
  }
  return MakeObject(PickleKind::kReduce, begin, stack_.back().node, args);
}

bool PickleMachine::ObjectFromMark() {
  std::size_t begin = 0;
  if (!PopMark(&begin)) {
    return false;
  }
  if (begin == stack_.size()) {
    return Fail("there is no class");
  }
  const PickleRef callee = stack_[begin].node;
  if (!Collect(PickleKind::kTuple, begin + 1)) {
    return false;
  }
  return MakeObject(PickleKind::kReduce, begin, callee, stack_.back().node);
}

bool PickleMachine::Persistent() {
  if (!Need(1)) {
    return false;
  }
  return MakeObject(PickleKind::kPersistent, stack_.size() - 1, kNoPickle, stack_.back().node);
}

bool PickleMachine::TextPersistent() {
  std::string_view line;
  return TakeLine(&line) && PushPython2Str(line) && Persistent();
}

bool PickleMachine::Build() {
  if (!Need(2)) {
    return false;
  }
  const PickleRef state = stack_.back().node;
  stack_.Cut(stack_.size() - 1);
  const Slot& target = stack_.back();
  if (!MayChange(target)) {
    return false;
  }
  if (!tree_.IsObject(target.node)) {
    return Fail("state for what is no object");
  }
  PickleObject& object = tree_.objects_[tree_.nodes_[target.node].extra];
  const bool is_first = object.state == kNoPickle;
  object.state = state;
  return !is_first || tree_.kind(target.node) == PickleKind::kPersistent || Offer();
}

}  // namespace varve
