#include "interop/pickle/machine.h"

#include <algorithm>
#include <charconv>

#include "interop/pickle/text.h"

namespace varve {
namespace {

std::string OpcodeText(std::uint8_t opcode) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text = "opcode 0x";
  text += kDigits[opcode >> 4];
  text += kDigits[opcode & 15];
  if (opcode > ' ' && opcode < 0x7F) {
    text += std::string(" '") + static_cast<char>(opcode) + "'";
  }
  return text;
}

}  // namespace

PickleMachine::PickleMachine(std::string_view input, const PickleLimits& limits,
                             PickleFolder* folder)
    : input_(input),
      max_nodes_(std::min(limits.max_nodes, kMaxCount)),
      max_depth_(limits.max_depth),
      folder_(folder) {
  tree_.input_ = input;
  // Reserves address space for a large pickle: only used parts become memory, and no list is copied
  // while it grows.
  tree_.nodes_.Reserve(input.size() / 16 + 16);
  memo_.Reserve(input.size() / 8);
  tree_.nodes_.Push({PickleKind::kNone, false, 0, 0});  // kNoneNode, kFalseNode, kTrueNode.
  tree_.nodes_.Push({PickleKind::kBool, false, 0, 0});
  tree_.nodes_.Push({PickleKind::kBool, false, 0, 1});
}

Result<PickleTree> PickleMachine::Run(std::uint64_t* consumed) {
  while (!done_) {
    if (!Step()) {
      return status_;
    }
  }
  if (consumed != nullptr) {
    *consumed = position_;
  }
  return std::move(tree_);
}

// ---- errors ----

bool PickleMachine::Fail(std::string_view what) { return Fail(StatusCode::kDataLoss, what); }

bool PickleMachine::Fail(StatusCode code, std::string_view what) {
  std::string message = "pickle, byte " + std::to_string(opcode_at_);
  if (opcode_at_ < input_.size()) {
    message += ", " + OpcodeText(static_cast<std::uint8_t>(input_[opcode_at_]));
  }
  status_ = Status(code, message + ": " + std::string(what));
  return false;
}

// ---- input ----

bool PickleMachine::TakeLine(std::string_view* line) {
  const std::size_t end = input_.find('\n', position_);
  if (end == std::string_view::npos) {
    return Fail("the line does not end");
  }
  *line = input_.substr(position_, end - position_);
  position_ = end + 1;
  return true;
}

bool PickleMachine::TakeIndex(std::uint64_t* index) {
  std::string_view line;
  if (!TakeLine(&line)) {
    return false;
  }
  const auto parsed = std::from_chars(line.data(), line.data() + line.size(), *index);
  if (parsed.ec != std::errc() || parsed.ptr != line.data() + line.size()) {
    return Fail(ShownText(line) + " is no memo number");
  }
  return true;
}

// ---- stack ----

bool PickleMachine::PopMark(std::size_t* begin) {
  if (marks_.empty()) {
    return Fail("there is no MARK");
  }
  *begin = marks_.back();
  marks_.pop_back();
  return true;
}

}  // namespace varve
