// The table of opcodes, and those of the frame, the stack and the memo.

#include <string>

#include "interop/pickle/machine.h"

namespace varve {
namespace {

constexpr unsigned kNewestProtocol = 5;

/// Python's names for the bytes (module `pickle`), by the protocol that brought them.
enum class Opcode : std::uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kFloat = 'F',
  kInt = 'I',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kLong = 'L',
  kBinInt2 = 'M',
  kNone = 'N',
  kPersId = 'P',
  kBinPersId = 'Q',
  kReduce = 'R',
  kString = 'S',
  kBinString = 'T',
  kShortBinString = 'U',
  kUnicode = 'V',
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kDict = 'd',
  kEmptyDict = '}',
  kAppends = 'e',
  kGet = 'g',
  kBinGet = 'h',
  kInst = 'i',
  kLongBinGet = 'j',
  kList = 'l',
  kEmptyList = ']',
  kObj = 'o',
  kPut = 'p',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kEmptyTuple = ')',
  kSetItems = 'u',
  kBinFloat = 'G',
  // Protocol 2.
  kProto = 0x80,
  kNewObj = 0x81,
  kExt1 = 0x82,
  kExt2 = 0x83,
  kExt4 = 0x84,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  // Protocol 3.
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  // Protocol 4.
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kNewObjEx = 0x92,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
  // Protocol 5.
  kByteArray8 = 0x96,
  kNextBuffer = 0x97,
  kReadonlyBuffer = 0x98,
};

}  // namespace

bool PickleMachine::Step() {
  opcode_at_ = position_;
  if (position_ == input_.size()) {
    return Fail("the input ends without STOP");
  }
  std::uint64_t number = 0;
  std::string_view bytes;
  switch (static_cast<Opcode>(static_cast<std::uint8_t>(input_[position_++]))) {
    case Opcode::kProto: return Protocol();
    case Opcode::kFrame: return Frame();
    case Opcode::kStop: return Stop();

    case Opcode::kMark: return Mark();
    case Opcode::kPop: return Pop();
    case Opcode::kPopMark: return PopToMark();
    case Opcode::kDup: return Need(1) && PushOld(stack_.back().node);

    case Opcode::kBinGet: return TakeNumber<1>(&number) && Get(number);
    case Opcode::kLongBinGet: return TakeNumber<4>(&number) && Get(number);
    case Opcode::kGet: return TakeIndex(&number) && Get(number);
    case Opcode::kMemoize: return Put(memo_.count());
    case Opcode::kBinPut: return TakeNumber<1>(&number) && Put(number);
    case Opcode::kLongBinPut: return TakeNumber<4>(&number) && Put(number);
    case Opcode::kPut: return TakeIndex(&number) && Put(number);

    case Opcode::kNone: return PushOld(kNoneNode);
    case Opcode::kNewTrue: return PushOld(kTrueNode);
    case Opcode::kNewFalse: return PushOld(kFalseNode);
    case Opcode::kBinInt1: return TakeNumber<1>(&number) && PushInt(static_cast<int>(number));
    case Opcode::kBinInt2: return TakeNumber<2>(&number) && PushInt(static_cast<int>(number));
    case Opcode::kBinInt:
      return TakeNumber<4>(&number) && PushInt(static_cast<std::int32_t>(number));
    case Opcode::kLong1: return TakeSized<1>(&bytes) && PushLong(bytes, false);
    case Opcode::kLong4: return TakeSized<4>(&bytes) && PushLong(bytes, false);
    case Opcode::kInt: return TextInt(false);
    case Opcode::kLong: return TextInt(true);
    case Opcode::kBinFloat: return BinaryFloat();
    case Opcode::kFloat: return TextFloat();

    case Opcode::kShortBinUnicode: return TakeSized<1>(&bytes) && PushText(PickleKind::kStr, bytes);
    case Opcode::kBinUnicode: return TakeSized<4>(&bytes) && PushText(PickleKind::kStr, bytes);
    case Opcode::kBinUnicode8: return TakeSized<8>(&bytes) && PushText(PickleKind::kStr, bytes);
    case Opcode::kUnicode: return TextUnicode();
    case Opcode::kShortBinString: return TakeSized<1>(&bytes) && PushPython2Str(bytes);
    case Opcode::kBinString: return TakeSized<4>(&bytes) && PushPython2Str(bytes);
    case Opcode::kString: return TextString();
    case Opcode::kShortBinBytes: return TakeSized<1>(&bytes) && PushText(PickleKind::kBytes, bytes);
    case Opcode::kBinBytes: return TakeSized<4>(&bytes) && PushText(PickleKind::kBytes, bytes);
    case Opcode::kBinBytes8: return TakeSized<8>(&bytes) && PushText(PickleKind::kBytes, bytes);
    case Opcode::kByteArray8:
      return TakeSized<8>(&bytes) && PushText(PickleKind::kByteArray, bytes);

    case Opcode::kEmptyTuple: return PushNew({PickleKind::kTuple, false, 0, 0});
    case Opcode::kEmptyList: return PushNew({PickleKind::kList, false, 0, 0});
    case Opcode::kEmptyDict: return PushNew({PickleKind::kDict, false, 0, 0});
    case Opcode::kEmptySet: return PushNew({PickleKind::kSet, false, 0, 0});
    case Opcode::kTuple1: return CollectTop(1);
    case Opcode::kTuple2: return CollectTop(2);
    case Opcode::kTuple3: return CollectTop(3);
    case Opcode::kTuple: return CollectFromMark(PickleKind::kTuple);
    case Opcode::kList: return CollectFromMark(PickleKind::kList);
    case Opcode::kDict: return CollectFromMark(PickleKind::kDict);
    case Opcode::kFrozenSet: return CollectFromMark(PickleKind::kFrozenSet);
    case Opcode::kAppend: return Need(2) && Add(PickleKind::kList, stack_.size() - 1);
    case Opcode::kSetItem: return Need(3) && Add(PickleKind::kDict, stack_.size() - 2);
    case Opcode::kAppends: return AddFromMark(PickleKind::kList);
    case Opcode::kSetItems: return AddFromMark(PickleKind::kDict);
    case Opcode::kAddItems: return AddFromMark(PickleKind::kSet);

    case Opcode::kGlobal: return TextGlobal();
    case Opcode::kStackGlobal: return StackGlobal();
    case Opcode::kReduce: return Reduce(PickleKind::kReduce);
    case Opcode::kNewObj: return Reduce(PickleKind::kNewObject);
    case Opcode::kNewObjEx: return NewObjectEx();
    case Opcode::kInst: return Instantiate();
    case Opcode::kObj: return ObjectFromMark();
    case Opcode::kPersId: return TextPersistent();
    case Opcode::kBinPersId: return Persistent();
    case Opcode::kBuild: return Build();

    case Opcode::kExt1:
    case Opcode::kExt2:
    case Opcode::kExt4:
      return Fail(StatusCode::kUnimplemented, "codes of Python's extension registry are not read");
    case Opcode::kNextBuffer:
    case Opcode::kReadonlyBuffer:
      return Fail(StatusCode::kUnimplemented, "buffers outside the pickle are not read");
  }
  return Fail("there is no such opcode");
}

// ---- frame ----

bool PickleMachine::Protocol() {
  std::uint64_t version = 0;
  if (!TakeNumber<1>(&version)) {
    return false;
  }
  return version <= kNewestProtocol ||
         Fail(StatusCode::kUnimplemented,
              "protocol " + std::to_string(version) + "; read are those up to 5");
}

bool PickleMachine::Frame() {
  // Frames tell a reader of a stream how much to fetch; there is nothing else to them.
  std::uint64_t size = 0;
  if (!TakeNumber<8>(&size)) {
    return false;
  }
  return size <= input_.size() - position_ || Fail("the frame reaches beyond the end");
}

bool PickleMachine::Stop() {
  if (!Need(1)) {
    return false;
  }
  tree_.root_ = stack_.back().node;
  done_ = true;
  return true;
}

// ---- stack and memo ----

bool PickleMachine::Mark() {
  if (marks_.size() >= max_depth_) {
    return Fail(StatusCode::kInvalidArgument,
                "nested deeper than " + std::to_string(max_depth_) + " MARKs");
  }
  marks_.push_back(stack_.size());
  return true;
}

bool PickleMachine::Pop() {
  if (!marks_.empty() && stack_.size() == marks_.back()) {
    marks_.pop_back();  // As in Python, a MARK can be popped like a value.
    return true;
  }
  if (!Need(1)) {
    return false;
  }
  stack_.Cut(stack_.size() - 1);
  return true;
}

bool PickleMachine::PopToMark() {
  std::size_t begin = 0;
  if (!PopMark(&begin)) {
    return false;
  }
  stack_.Cut(begin);
  return true;
}

bool PickleMachine::PutOutOfOrder(std::uint64_t index) {
  if (!Need(1)) {
    return false;
  }
  if (folder_ != nullptr && !memo_.Appends(index)) {
    return Fail(StatusCode::kFailedPrecondition,
                "a memo that is not in order cannot be read with folding");
  }
  if (memo_.count() >= max_nodes_) {
    return Fail(StatusCode::kInvalidArgument, "too many memo entries");
  }
  memo_.Put(index, stack_.back().node);
  return true;
}

bool PickleMachine::FailGet(std::uint64_t index) {
  const std::string entry = "memo entry " + std::to_string(index);
  return memo_.Get(index) == kNoPickle
             ? Fail(entry + " was never put")
             : Fail(StatusCode::kFailedPrecondition, entry + " refers into a folded object");
}

}  // namespace varve
