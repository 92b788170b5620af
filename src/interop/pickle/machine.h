/// The inside of ReadPickle: a stack of nodes, marks and a memo, driven by one opcode at a time.
///
/// How folding gives memory back. Every entry of the stack knows how long the lists of nodes, items
/// and memo entries were when it was pushed (its Watermark). All that was made since then was made
/// for this entry or for entries above it, which have been popped when it is on top. So when the
/// object on top is folded, everything above its watermark is its own and can be dropped; what the
/// memo still names of it moves down into the free place. Two things would break the rule, both
/// rare: adding to a container that came from the memo, and writing to the memo out of order. They
/// end a read with folding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "interop/pickle/memo.h"
#include "interop/pickle/tree.h"

namespace varve {

class PickleMachine {
 public:
  PickleMachine(std::string_view input, const PickleLimits& limits, PickleFolder* folder);
  Result<PickleTree> Run(std::uint64_t* consumed);

 private:
  using Node = PickleTree::Node;

  // The constants are nodes that every tree has.
  static constexpr PickleRef kNoneNode = 0;
  static constexpr PickleRef kFalseNode = 1;
  static constexpr PickleRef kTrueNode = 2;

  // Numbers of nodes and items stay clear of kNoPickle and PickleMemo::kForgotten.
  static constexpr std::uint64_t kMaxCount = 0xFFFFFF00;

  struct Watermark {
    std::uint32_t nodes;
    std::uint32_t items;
    std::uint32_t memo;
  };
  struct Slot {
    PickleRef node;
    Watermark begin;
  };
  struct GlobalHash {
    std::size_t operator()(const PickleTree::Global& global) const {
      const std::hash<std::string_view> hash;
      return hash(global.module) * 31 + hash(global.name);
    }
  };

  // These return false after they have set status_.
  bool Step();
  bool Fail(std::string_view what);
  bool Fail(StatusCode code, std::string_view what);

  // Input and stack: machine.cc.
  bool Take(std::uint64_t count, std::string_view* bytes);
  template <unsigned kBytes>
  bool TakeNumber(std::uint64_t* value);
  template <unsigned kLengthBytes>
  bool TakeSized(std::string_view* bytes);
  bool TakeLine(std::string_view* line);
  bool TakeIndex(std::uint64_t* index);

  [[nodiscard]] Watermark Now() const;
  [[nodiscard]] std::size_t Fence() const { return marks_.empty() ? 0 : marks_.back(); }
  bool Need(std::size_t entries);
  bool PopMark(std::size_t* begin);
  bool NewNode(const Node& node);
  bool PushNew(const Node& node);
  bool PushOld(PickleRef node);
  bool PushInt(std::int64_t value);
  bool PushLong(std::string_view twos_complement, bool owned);
  bool PushText(PickleKind kind, std::string_view text);
  bool PushOwned(PickleKind kind, std::string text);

  // Opcodes that neither collect nor make objects: opcodes.cc.
  bool Protocol();
  bool Frame();
  bool Stop();
  bool Mark();
  bool Pop();
  bool PopToMark();
  bool Put(std::uint64_t index);
  bool PutOutOfOrder(std::uint64_t index);
  bool Get(std::uint64_t index);
  bool FailGet(std::uint64_t index);
  bool BinaryFloat();
  bool TextInt(bool is_long);
  bool TextFloat();
  bool TextUnicode();
  bool TextString();
  bool PushPython2Str(std::string_view bytes);

  // Opcodes that do: build.cc.
  bool CollectTop(std::size_t count);
  bool CollectFromMark(PickleKind kind);
  bool Collect(PickleKind kind, std::size_t begin);
  bool AppendItems(PickleRef container, std::size_t begin);
  bool AddFromMark(PickleKind kind);
  bool Add(PickleKind kind, std::size_t begin);
  bool MayChange(const Slot& slot);
  bool TextGlobal();
  bool StackGlobal();
  bool PushGlobal(std::string_view module, std::string_view name, const Watermark& begin);
  bool MakeObject(PickleKind kind, std::size_t begin, PickleRef callee, PickleRef args,
                  PickleRef kwargs = kNoPickle);
  bool Reduce(PickleKind kind);
  bool NewObjectEx();
  bool Instantiate();
  bool ObjectFromMark();
  bool Persistent();
  bool TextPersistent();
  bool Build();

  // Folding: fold.cc.
  bool Offer();
  bool DropParts(std::uint32_t tag, std::int64_t value);

  std::string_view input_;
  std::uint64_t position_ = 0;
  std::uint64_t opcode_at_ = 0;
  std::uint64_t max_nodes_;
  std::uint32_t max_depth_;
  PickleFolder* folder_;
  PickleTree tree_;
  PodList<Slot> stack_;
  std::vector<std::size_t> marks_;  // Heights of the stack.
  PickleMemo memo_;
  std::unordered_map<PickleTree::Global, std::uint32_t, GlobalHash> global_places_;
  std::vector<PickleRef> kept_;  // Scratch of DropParts.
  std::uint64_t scanned_ = 0;    // Memo entries that DropParts has looked at.
  bool done_ = false;
  Status status_;
};

// ---- what runs for nearly every opcode ----

inline bool PickleMachine::Take(std::uint64_t count, std::string_view* bytes) {
  if (input_.size() - position_ < count) {
    return Fail("the argument reaches beyond the end");
  }
  *bytes = {input_.data() + position_, static_cast<std::size_t>(count)};
  position_ += count;
  return true;
}

template <unsigned kBytes>
inline bool PickleMachine::TakeNumber(std::uint64_t* value) {
  std::string_view bytes;
  if (!Take(kBytes, &bytes)) {
    return false;
  }
  *value = 0;
  for (unsigned i = 0; i < kBytes; ++i) {
    *value |= std::uint64_t{static_cast<std::uint8_t>(bytes[i])} << (8 * i);
  }
  return true;
}

template <unsigned kLengthBytes>
inline bool PickleMachine::TakeSized(std::string_view* bytes) {
  std::uint64_t length = 0;
  return TakeNumber<kLengthBytes>(&length) && Take(length, bytes);
}

inline PickleMachine::Watermark PickleMachine::Now() const {
  return {static_cast<std::uint32_t>(tree_.nodes_.size()),
          static_cast<std::uint32_t>(tree_.items_.size()), memo_.size()};
}

inline bool PickleMachine::Need(std::size_t entries) {
  return stack_.size() - Fence() >= entries || Fail("the stack is too short");
}

inline bool PickleMachine::NewNode(const Node& node) {
  if (tree_.nodes_.size() >= max_nodes_) {
    return Fail(StatusCode::kInvalidArgument, "too many nodes");
  }
  tree_.nodes_.Push(node);
  return true;
}

inline bool PickleMachine::PushNew(const Node& node) {
  const Watermark begin = Now();
  if (!NewNode(node)) {
    return false;
  }
  stack_.Push({begin.nodes, begin});
  return true;
}

inline bool PickleMachine::PushOld(PickleRef node) {
  stack_.Push({node, Now()});
  return true;
}

inline bool PickleMachine::Put(std::uint64_t index) {
  if (!memo_.IsNext(index) || stack_.size() == Fence() || index >= max_nodes_) [[unlikely]] {
    return PutOutOfOrder(index);
  }
  memo_.Append(stack_.back().node);
  return true;
}

inline bool PickleMachine::Get(std::uint64_t index) {
  const PickleRef node = memo_.Get(index);
  if (node >= PickleMemo::kForgotten) [[unlikely]] {
    return FailGet(index);
  }
  return PushOld(node);
}

inline bool PickleMachine::PushInt(std::int64_t value) {
  return PushNew({PickleKind::kInt, false, 0, static_cast<std::uint64_t>(value)});
}

}  // namespace varve
