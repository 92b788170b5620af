#include "interop/torch/values.h"

#include <algorithm>
#include <set>

#include "interop/torch/globals.h"
#include "interop/torch/parts.h"

namespace varve {
namespace {

constexpr int kMaxDepth = 200;  // As when saving: below what DecodeValue takes.

// The factor by which an archive may grow as Values, in nodes and in bytes of text: far more than
// sharing needs in any real one.
constexpr std::uint64_t kGrowth = 8;
constexpr std::uint64_t kFreeNodes = 250'000;
constexpr std::uint64_t kFreeBytes = 64 << 20;

constexpr std::size_t kMaxNeeds = 5;

std::uint64_t BytesOf(const TorchArchive& archive) {
  std::uint64_t bytes = archive.pickle_record().bytes;
  for (const ArchiveStorage& storage : archive.storages()) {
    bytes += storage.bytes;
  }
  return bytes;
}

/// Returns the shortest two's complement form of a number that may have any length.
std::string TrimmedInt(std::string_view bytes) {
  while (bytes.size() > 1) {
    const char last = bytes.back();
    const bool next_is_negative = (bytes[bytes.size() - 2] & 0x80) != 0;
    if (!((last == 0 && !next_is_negative) || (last == '\xFF' && next_is_negative))) {
      break;
    }
    bytes.remove_suffix(1);
  }
  return bytes.empty() ? std::string(1, '\0') : std::string(bytes);
}

}  // namespace

TorchValues::TorchValues(const TorchArchive& archive, const RangeReader& read)
    : archive_(archive),
      tree_(archive.tree()),
      read_(read),
      nodes_left_(archive.pickle_record().bytes * kGrowth + kFreeNodes),
      bytes_left_(BytesOf(archive) * kGrowth + kFreeBytes) {}

Result<std::optional<Value>> TorchValues::At(PickleRef node) {
  Value value;
  obstacle_.clear();
  const bool converted = status_.ok() && Convert(node, 0, &value);
  VARVE_RETURN_IF_ERROR(status_);
  if (!converted) {
    return std::optional<Value>();
  }
  return std::optional<Value>(std::move(value));
}

Status TorchValues::Charge(std::uint64_t bytes) {
  if (Spend(bytes)) {
    --nodes_left_;
  }
  return status_;
}

Value TorchValues::OpaqueAt(PickleRef node) {
  std::set<std::string> needs;
  // At() reports it when this uses all there is.
  const std::vector<PickleRef> nodes = ReachableNodes(tree_, node, nodes_left_);
  nodes_left_ -= nodes.size();
  for (const PickleRef at : nodes) {
    if (tree_.kind(at) == PickleKind::kGlobal &&
        !FindKnownGlobal(tree_.module(at), tree_.name(at))) {
      needs.insert(GlobalText(tree_.module(at), tree_.name(at)));
    }
  }
  if (needs.empty()) {
    needs.insert(obstacle_);
  }
  Value opaque{.kind = ValueKind::kTorchSave};
  for (const std::string& need : needs) {
    if (opaque.items.size() == kMaxNeeds) {
      break;
    }
    opaque.items.push_back(Value::Str(need));
    bytes_left_ -= std::min<std::uint64_t>(bytes_left_, need.size());
  }
  return opaque;
}

Result<std::optional<PickledMapping>> TorchValues::MappingAt(PickleRef node) {
  if (!IsMappingNode(tree_, node)) {
    return std::optional<PickledMapping>();
  }
  // Counts all items that are visited, valid or not: the same dict may be met many times.
  std::uint64_t looked_at = tree_.items(node).size();
  if (tree_.IsObject(node)) {
    looked_at += tree_.object(node).pairs.size();
    for (const PickleRef argument : ArgumentsOf(tree_, node)) {
      looked_at += tree_.items(argument).size();
    }
  }
  if (!Spend(looked_at * sizeof(PickleRef))) {
    return status_;
  }
  return PickledMappingAt(tree_, node);
}

bool TorchValues::Spend(std::uint64_t bytes) {
  if (bytes > bytes_left_ || nodes_left_ == 0) {
    status_ = InvalidArgument(
        "the archive's objects use one another so often that they would be many times larger than "
        "the archive");
    return false;
  }
  bytes_left_ -= bytes;
  return true;
}

bool TorchValues::Convert(PickleRef node, int depth, Value* out) {
  if (depth > kMaxDepth) {
    obstacle_ = "more than " + std::to_string(kMaxDepth) + " levels of nesting";
    return false;
  }
  if (!Spend(0)) {
    return false;
  }
  --nodes_left_;
  const bool converted =
      tree_.IsObject(node) ? ConvertObject(node, depth, out) : ConvertPlain(node, depth, out);
  if (!converted && obstacle_.empty() && status_.ok()) {
    const PickleRef name = tree_.IsObject(node) ? tree_.object(node).callee : node;
    obstacle_ = name != kNoPickle && tree_.kind(name) == PickleKind::kGlobal
                    ? GlobalText(tree_.module(name), tree_.name(name))
                    : "a storage or another part of torch";
  }
  return converted;
}

bool TorchValues::ConvertPlain(PickleRef node, int depth, Value* out) {
  switch (tree_.kind(node)) {
    case PickleKind::kNone: return true;
    case PickleKind::kBool:
      out->kind = tree_.integer(node) != 0 ? ValueKind::kTrue : ValueKind::kFalse;
      return true;
    case PickleKind::kInt: *out = Value::Int(tree_.integer(node)); return true;
    case PickleKind::kLong: return Text(ValueKind::kInt, TrimmedInt(tree_.text(node)), out);
    case PickleKind::kFloat: *out = Value::Float(tree_.real(node)); return true;
    case PickleKind::kStr: return Text(ValueKind::kStr, std::string(tree_.text(node)), out);
    case PickleKind::kBytes: return Text(ValueKind::kBytes, std::string(tree_.text(node)), out);
    case PickleKind::kByteArray:
      return Text(ValueKind::kByteArray, std::string(tree_.text(node)), out);
    case PickleKind::kTuple: out->kind = ValueKind::kTuple; break;
    case PickleKind::kList: out->kind = ValueKind::kList; break;
    case PickleKind::kSet: out->kind = ValueKind::kSet; break;
    case PickleKind::kFrozenSet: out->kind = ValueKind::kFrozenSet; break;
    case PickleKind::kDict: return ConvertMapping(node, depth, out);
    case PickleKind::kGlobal:
      return IsTorchDType(tree_.module(node), tree_.name(node)) &&
             Text(ValueKind::kTorchDType, std::string(tree_.name(node)), out);
    default: return false;
  }
  return ConvertAll(tree_.items(node), depth, out);
}

bool TorchValues::ConvertObject(PickleRef node, int depth, Value* out) {
  if (tree_.kind(node) != PickleKind::kReduce) {
    return false;
  }
  if (auto zone = ZoneKeyAt(tree_, node)) {
    return Text(ValueKind::kZoneInfo, std::move(zone), out);
  }
  const auto known = KnownCallee(tree_, node);
  if (!known) {
    return false;
  }
  if (IsMappingNode(tree_, node)) {
    return ConvertMapping(node, depth, out);
  }
  const PickleObject& object = tree_.object(node);
  if (!object.items.empty() || !object.pairs.empty() ||
      (object.state != kNoPickle && *known != KnownGlobal::kNumpyArray)) {
    return false;
  }
  const std::span<const PickleRef> arguments = ArgumentsOf(tree_, node);
  switch (*known) {
    case KnownGlobal::kTensor: return ConvertTensor(node, out);
    case KnownGlobal::kBytes:
    case KnownGlobal::kEncodedBytes: return Text(ValueKind::kBytes, BytesAt(tree_, node), out);
    case KnownGlobal::kByteArray:
      return Text(ValueKind::kByteArray, ByteArrayAt(tree_, arguments), out);
    case KnownGlobal::kTorchDevice:
      return Text(ValueKind::kTorchDevice, DeviceText(tree_, arguments), out);
    case KnownGlobal::kPath:
      out->items = {Value::Str(std::string(tree_.name(object.callee)))};
      return Text(ValueKind::kPath, PathText(tree_, arguments), out);
    case KnownGlobal::kSet: out->kind = ValueKind::kSet; break;
    case KnownGlobal::kFrozenSet: out->kind = ValueKind::kFrozenSet; break;
    case KnownGlobal::kTorchSize: out->kind = ValueKind::kTorchSize; break;
    case KnownGlobal::kComplex: return ConvertNumbers(arguments, ValueKind::kComplex, depth, out);
    case KnownGlobal::kRange: return ConvertNumbers(arguments, ValueKind::kRange, depth, out);
    case KnownGlobal::kTimeDelta:
      return ConvertNumbers(arguments, ValueKind::kTimeDelta, depth, out);
    case KnownGlobal::kSlice:
      out->kind = ValueKind::kSlice;
      return arguments.size() == 3 && ConvertAll(arguments, depth, out);
    case KnownGlobal::kDateTime: return ConvertClock(arguments, ValueKind::kDateTime, depth, out);
    case KnownGlobal::kDate: return ConvertClock(arguments, ValueKind::kDate, depth, out);
    case KnownGlobal::kTime: return ConvertClock(arguments, ValueKind::kTime, depth, out);
    case KnownGlobal::kTimeZone: return ConvertTimeZone(arguments, depth, out);
    case KnownGlobal::kNumpyScalar: return Take(NumpyScalarAt(tree_, node), out);
    case KnownGlobal::kNumpyArray: return Take(NumpyArrayAt(tree_, node), out);
    default: return false;
  }
  return ConvertCollection(arguments, depth, out);
}

bool TorchValues::ConvertAll(std::span<const PickleRef> nodes, int depth, Value* out) {
  out->items.reserve(std::min<std::uint64_t>(nodes.size(), nodes_left_));
  for (const PickleRef node : nodes) {
    if (!Convert(node, depth + 1, &out->items.emplace_back())) {
      return false;
    }
  }
  return true;
}

bool TorchValues::ConvertMapping(PickleRef node, int depth, Value* out) {
  const auto mapping = MappingAt(node);
  if (!mapping.ok() || !*mapping) {
    return false;  // An error is in status_ already.
  }
  out->kind = (*mapping)->kind;
  out->text = (*mapping)->factory;
  return ConvertAll((*mapping)->pairs, depth, out);
}

/// Converts a set, frozenset or torch.Size, whose items are in the only argument.
bool TorchValues::ConvertCollection(std::span<const PickleRef> arguments, int depth, Value* out) {
  if (arguments.empty()) {
    return true;
  }
  const PickleKind kind = tree_.kind(arguments[0]);
  if (arguments.size() != 1 || (kind != PickleKind::kList && kind != PickleKind::kTuple)) {
    return false;
  }
  const auto is_int = [&](PickleRef item) { return tree_.kind(item) == PickleKind::kInt; };
  constexpr std::size_t kMaxSizes = 1024;
  const std::span<const PickleRef> items = tree_.items(arguments[0]);
  return (out->kind != ValueKind::kTorchSize ||
          (items.size() <= kMaxSizes && std::all_of(items.begin(), items.end(), is_int))) &&
         ConvertAll(items, depth, out);
}

/// Converts a complex, range or timedelta.
bool TorchValues::ConvertNumbers(std::span<const PickleRef> arguments, ValueKind kind, int depth,
                                 Value* out) {
  out->kind = kind;
  if (kind == ValueKind::kComplex) {
    if (arguments.size() != 2 || tree_.kind(arguments[0]) != PickleKind::kFloat ||
        tree_.kind(arguments[1]) != PickleKind::kFloat) {
      return false;
    }
    out->number = tree_.real(arguments[0]);
    out->imaginary = tree_.real(arguments[1]);
    return true;
  }
  const auto in = [&](std::size_t i, std::int64_t low, std::int64_t high) {
    return tree_.kind(arguments[i]) == PickleKind::kInt && tree_.integer(arguments[i]) >= low &&
           tree_.integer(arguments[i]) <= high;
  };
  const auto is_int = [&](PickleRef node) {
    return tree_.kind(node) == PickleKind::kInt || tree_.kind(node) == PickleKind::kLong;
  };
  if (arguments.size() != 3 || !std::all_of(arguments.begin(), arguments.end(), is_int)) {
    return false;
  }
  // Python makes no range of step 0, and pickles timedeltas only normalised.
  const bool valid = kind == ValueKind::kRange ? !in(2, 0, 0)
                                               : in(0, -999'999'999, 999'999'999) &&
                                                     in(1, 0, 86'399) && in(2, 0, 999'999);
  return valid && ConvertAll(arguments, depth, out);
}

bool TorchValues::Text(ValueKind kind, std::optional<std::string> text, Value* out) {
  if (!text || !Spend(text->size())) {
    return false;
  }
  out->kind = kind;
  out->text = *std::move(text);
  return true;
}

bool TorchValues::Take(Result<std::optional<Value>> value, Value* out) {
  if (!value.ok()) {
    status_ = value.status();
    return false;
  }
  if (!*value || !Spend((*value)->text.size())) {
    return false;
  }
  *out = **std::move(value);
  return true;
}

}  // namespace varve
