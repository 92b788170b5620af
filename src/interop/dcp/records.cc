#include "interop/dcp/records.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <limits>
#include <span>

#include "interop/pickle/text.h"

namespace varve {
namespace {

constexpr std::uint32_t kMaxDims = 64;  // As torch.
constexpr std::size_t kMaxAttributes = 64;

// A folded node's tag: the class in the highest byte, the count of PackedDims below.
constexpr unsigned kClassShift = 24;
constexpr std::uint32_t kCountMask = (1U << kClassShift) - 1;

std::uint32_t TagOf(DcpClass kind) { return static_cast<std::uint32_t>(kind) << kClassShift; }

bool IsFolded(const PickleTree& tree, PickleRef node, DcpClass kind) {
  return tree.kind(node) == PickleKind::kFolded &&
         tree.tag(node) >> kClassShift == static_cast<std::uint32_t>(kind);
}

struct Name {
  std::string_view module;
  std::string_view name;
  DcpClass kind;
};

// DCP's classes, in whatever module: torch has moved them (torch.distributed._shard.checkpoint
// until 2.0, TensorProperties and its enum in torch.distributed._shard.sharded_tensor.metadata
// until 2.2), and other software writes indexes with copies of them (OLMo-core, NeMo-Automodel,
// DLRover).
constexpr std::array<Name, 9> kDcpNames = {{
    {"", "ChunkStorageMetadata", DcpClass::kChunk},
    {"", "MetadataIndex", DcpClass::kKey},
    {"", "_StorageInfo", DcpClass::kStorage},
    {"", "BytesStorageMetadata", DcpClass::kBytes},
    {"", "TensorStorageMetadata", DcpClass::kTensor},
    {"", "TensorProperties", DcpClass::kProperties},
    {"", "_MEM_FORMAT_ENCODING", DcpClass::kEnum},
    {"", "MEM_FORMAT_ENCODING", DcpClass::kEnum},
    {"", "Metadata", DcpClass::kMetadata},
}};
// Python 3.11 pickles a member of an enum as getattr(class, name), others as class(value).
constexpr std::array<Name, 4> kOtherNames = {{
    {"torch", "Size", DcpClass::kSize},
    {"torch.serialization", "_get_layout", DcpClass::kLayout},
    {"builtins", "getattr", DcpClass::kEnum},
    {"__builtin__", "getattr", DcpClass::kEnum},
}};

DcpClass ClassByName(std::string_view module, std::string_view name) {
  for (const Name& known : kOtherNames) {
    if (known.name == name && known.module == module) {
      return known.kind;
    }
  }
  for (const Name& known : kDcpNames) {
    if (known.name == name) {
      return known.kind;
    }
  }
  return DcpClass::kOther;
}

/// Reads a length or offset; int64 in the pickle.
bool ReadSize(const PickleTree& tree, PickleRef node, std::uint64_t* value) {
  if (tree.kind(node) != PickleKind::kInt || tree.integer(node) < 0) {
    return false;
  }
  *value = static_cast<std::uint64_t>(tree.integer(node));
  return true;
}

/// Returns true when an object has attributes of all these names.
bool HasDcpAttributes(const PickleTree& tree, PickleRef object,
                      std::initializer_list<std::string_view> names) {
  const PickleRef state = DcpAttributes(tree, object);
  return state != kNoPickle && std::all_of(names.begin(), names.end(), [&](std::string_view name) {
           return tree.Get(state, name) != kNoPickle;
         });
}

}  // namespace

// ---- strings ----

std::uint32_t DcpStrings::Number(std::string_view text) {
  const auto found = numbers_.find(text);
  if (found != numbers_.end()) {
    return found->second;
  }
  const std::less<const char*> before;  // Defined for any two addresses.
  const bool lies_in = !before(text.data(), stable_.data()) &&
                       !before(stable_.data() + stable_.size(), text.data() + text.size());
  if (!lies_in) {
    text = copies_.emplace_back(text);
  }
  const auto number = static_cast<std::uint32_t>(texts_.size());
  numbers_.emplace(text, number);
  texts_.push_back(text);
  return number;
}

std::optional<std::uint32_t> DcpStrings::Find(std::string_view text) const {
  const auto found = numbers_.find(text);
  return found == numbers_.end() ? std::nullopt : std::optional(found->second);
}

// ---- sizes ----

std::optional<PackedDims> DcpRecords::Pack(const PickleTree& tree,
                                           std::span<const PickleRef> items) {
  if (items.size() > kMaxDims) {
    return std::nullopt;
  }
  const auto count = static_cast<std::uint32_t>(items.size());
  const unsigned width = count == 0 ? 64 : 64 / count;
  std::uint64_t all = 0;  // Bits that any size has.
  std::uint64_t bits = 0;
  for (const PickleRef item : items) {
    std::uint64_t size = 0;
    if (!ReadSize(tree, item, &size)) {
      return std::nullopt;
    }
    all |= size;
    bits = (width == 64 ? 0 : bits << width) | size;
  }
  if (count <= 4 && (width == 64 || all >> width == 0)) {
    return PackedDims::Of(count, bits);
  }
  // A pickle that names one long torch.Size over and over would make more of it than it holds.
  const std::uint64_t place = pool_.size();
  if (place + count > pickle_bytes_) {
    return std::nullopt;
  }
  for (const PickleRef item : items) {
    pool_.push_back(static_cast<std::uint64_t>(tree.integer(item)));
  }
  return PackedDims::Of(count | PackedDims::kPooled, place);
}

Dims DcpRecords::Unpack(const PackedDims& dims) const {
  const std::uint32_t count = dims.count & ~PackedDims::kPooled;
  Dims sizes(count);
  const unsigned width = count == 0 ? 64 : 64 / count;
  std::uint64_t bits = dims.bits();
  for (std::uint32_t d = count; d-- > 0;) {
    if (dims.count != count) {
      sizes[d] = pool_[dims.bits() + d];
    } else if (width == 64) {
      sizes[d] = bits;
    } else {
      sizes[d] = bits & ((std::uint64_t{1} << width) - 1);
      bits >>= width;
    }
  }
  return sizes;
}

int DcpRecords::CompareUnpacked(const PackedDims& a, const PackedDims& b) const {
  if (a.IsNone() || b.IsNone()) {
    return static_cast<int>(b.IsNone()) - static_cast<int>(a.IsNone());
  }
  const Dims left = Unpack(a);
  const Dims right = Unpack(b);
  return left < right ? -1 : right < left ? 1 : 0;
}

bool DcpRecords::HasZero(const PackedDims& dims) const {
  const Dims sizes = Unpack(dims);
  return std::find(sizes.begin(), sizes.end(), 0U) != sizes.end();
}

bool DcpRecords::ReadDims(const PickleTree& tree, PickleRef node, PackedDims* dims) {
  if (IsFolded(tree, node, DcpClass::kSize)) {
    *dims =
        PackedDims::Of(tree.tag(node) & kCountMask, static_cast<std::uint64_t>(tree.integer(node)));
    return true;
  }
  if (ClassOf(tree, node) == DcpClass::kSize) {
    const std::span<const PickleRef> args = tree.items(tree.object(node).args);
    if (args.size() != 1) {
      return false;
    }
    node = args[0];
  }
  if (tree.kind(node) != PickleKind::kTuple && tree.kind(node) != PickleKind::kList) {
    return false;
  }
  const auto packed = Pack(tree, tree.items(node));
  *dims = packed.value_or(PackedDims{});
  return packed.has_value();
}

// ---- objects ----

DcpRecords::DcpRecords(std::string_view pickle)
    : names(pickle), paths(pickle), transforms(pickle), pickle_bytes_(pickle.size()) {
  transforms.Number("");
  // Address space, see PickleMachine: about what each record takes in a pickle.
  chunks_.reserve(pickle.size() / 160);
  keys_.reserve(pickle.size() / 160);
  storages_.reserve(pickle.size() / 160);
}

DcpClass DcpRecords::ClassOf(const PickleTree& tree, PickleRef node) {
  if (!tree.IsObject(node)) {
    return DcpClass::kOther;
  }
  const PickleRef callee = tree.object(node).callee;
  if (callee == kNoPickle || tree.kind(callee) != PickleKind::kGlobal) {
    return DcpClass::kOther;
  }
  const std::uint32_t number = tree.tag(callee);
  while (classes_.size() <= number) {
    classes_.push_back(DcpClass::kUnknown);
  }
  if (classes_[number] == DcpClass::kUnknown) {
    classes_[number] = ClassByName(tree.module(callee), tree.name(callee));
  }
  return classes_[number];
}

PickleRef DcpAttributes(const PickleTree& tree, PickleRef object) {
  PickleRef state = tree.IsObject(object) ? tree.object(object).state : kNoPickle;
  if (state != kNoPickle && tree.kind(state) == PickleKind::kTuple &&
      tree.items(state).size() == 2) {
    state = tree.items(state)[1];  // Of a class with slots: (None or a dict, the slots).
  }
  if (state == kNoPickle || tree.kind(state) != PickleKind::kDict ||
      tree.items(state).size() > 2 * kMaxAttributes) {
    return kNoPickle;
  }
  return state;
}

bool DcpRecords::ReadChunk(const PickleTree& tree, PickleRef node, std::uint32_t* chunk) {
  if (IsFolded(tree, node, DcpClass::kChunk)) {
    *chunk = static_cast<std::uint32_t>(tree.integer(node));
    return true;
  }
  const PickleRef state = DcpAttributes(tree, node);
  if (state == kNoPickle) {
    return false;
  }
  const PickleRef offsets = tree.Get(state, "offsets");
  const PickleRef sizes = tree.Get(state, "sizes");
  DcpChunk record;
  if (offsets == kNoPickle || sizes == kNoPickle || !ReadDims(tree, offsets, &record.offsets) ||
      !ReadDims(tree, sizes, &record.sizes)) {
    return false;
  }
  *chunk = static_cast<std::uint32_t>(chunks_.size());
  chunks_.push_back(record);
  return true;
}

bool DcpRecords::ReadKey(const PickleTree& tree, PickleRef node, std::uint32_t* key) {
  if (IsFolded(tree, node, DcpClass::kKey)) {
    *key = static_cast<std::uint32_t>(tree.integer(node));
    return true;
  }
  const PickleRef state = DcpAttributes(tree, node);
  if (state == kNoPickle) {
    return false;
  }
  const PickleRef fqn = tree.Get(state, "fqn");
  const PickleRef offset = tree.Get(state, "offset");
  DcpKey record{0, PackedDims::Of(PackedDims::kNone, 0)};
  if (fqn == kNoPickle || tree.kind(fqn) != PickleKind::kStr) {
    return false;
  }
  if (offset != kNoPickle && tree.kind(offset) != PickleKind::kNone &&
      !ReadDims(tree, offset, &record.offsets)) {
    return false;
  }
  record.name = names.Number(tree.text(fqn));
  *key = static_cast<std::uint32_t>(keys_.size());
  keys_.push_back(record);
  return true;
}

bool DcpRecords::ReadTransforms(const PickleTree& tree, PickleRef node, std::uint32_t* number) {
  *number = 0;
  if (node == kNoPickle || tree.kind(node) == PickleKind::kNone) {
    return true;
  }
  if (tree.kind(node) != PickleKind::kList && tree.kind(node) != PickleKind::kTuple) {
    return false;
  }
  constexpr std::size_t kMaxTransforms = 16;
  std::string joined;
  const std::span<const PickleRef> items = tree.items(node);
  for (const PickleRef item : items) {
    if (items.size() > kMaxTransforms || tree.kind(item) != PickleKind::kStr) {
      return false;
    }
    joined += (joined.empty() ? "" : ", ") + std::string(tree.text(item));
  }
  *number = transforms.Number(joined);
  return true;
}

bool DcpRecords::ReadStorage(const PickleTree& tree, PickleRef node, std::uint32_t* storage) {
  if (IsFolded(tree, node, DcpClass::kStorage)) {
    *storage = static_cast<std::uint32_t>(tree.integer(node));
    return true;
  }
  const PickleRef state = DcpAttributes(tree, node);
  if (state == kNoPickle) {
    return false;
  }
  const PickleRef path = tree.Get(state, "relative_path");
  const PickleRef offset = tree.Get(state, "offset");
  const PickleRef length = tree.Get(state, "length");
  DcpStorage record;
  if (path == kNoPickle || offset == kNoPickle || length == kNoPickle ||
      tree.kind(path) != PickleKind::kStr || !ReadSize(tree, offset, &record.begin) ||
      !ReadSize(tree, length, &record.bytes) ||
      record.begin + record.bytes > std::uint64_t{std::numeric_limits<std::int64_t>::max()} ||
      !ReadTransforms(tree, tree.Get(state, "transform_descriptors"), &record.transform)) {
    return false;
  }
  record.path = paths.Number(tree.text(path));
  *storage = static_cast<std::uint32_t>(storages_.size());
  storages_.push_back(record);
  return true;
}

bool DcpRecords::IsTensor(const PickleTree& tree, PickleRef node) {
  const DcpClass kind = ClassOf(tree, node);
  return kind == DcpClass::kTensor ||
         (kind == DcpClass::kOther &&
          HasDcpAttributes(tree, node, {"properties", "size", "chunks"}));
}

bool DcpRecords::IsIndex(const PickleTree& tree, PickleRef node) {
  const DcpClass kind = ClassOf(tree, node);
  return kind == DcpClass::kMetadata ||
         (kind == DcpClass::kOther &&
          HasDcpAttributes(tree, node, {"state_dict_metadata", "storage_data"}));
}

bool DcpRecords::IsBytes(const PickleTree& tree, PickleRef node) {
  if (IsFolded(tree, node, DcpClass::kBytes)) {
    return true;
  }
  const DcpClass kind = ClassOf(tree, node);
  return kind == DcpClass::kBytes ||
         (kind == DcpClass::kOther && tree.kind(node) == PickleKind::kNewObject &&
          tree.object(node).state == kNoPickle);
}

bool DcpRecords::ReadProperties(const PickleTree& tree, PickleRef node, DType* dtype,
                                std::string* what) {
  if (IsFolded(tree, node, DcpClass::kProperties)) {
    *dtype = static_cast<DType>(tree.integer(node));
    return true;
  }
  if (ClassOf(tree, node) != DcpClass::kProperties || tree.object(node).state == kNoPickle) {
    return false;
  }
  const PickleRef state = tree.object(node).state;
  const std::span<const PickleRef> parts = tree.items(state);
  const bool is_tuple = tree.kind(state) == PickleKind::kTuple && parts.size() >= 2;
  const PickleRef type = is_tuple ? parts[0] : tree.Get(state, "dtype");
  const PickleRef layout = is_tuple ? parts[1] : tree.Get(state, "layout");
  if (type == kNoPickle || tree.module(type) != "torch") {
    return false;
  }
  const auto known = DTypeFromName(tree.name(type));
  if (!known) {
    *what = "dtype " + ShownText(tree.name(type));
    return false;
  }
  *dtype = *known;
  if (layout == kNoPickle || IsFolded(tree, layout, DcpClass::kLayout)) {
    return true;
  }
  const std::span<const PickleRef> args = ClassOf(tree, layout) == DcpClass::kLayout
                                              ? tree.items(tree.object(layout).args)
                                              : std::span<const PickleRef>();
  if (args.size() != 1 || tree.kind(args[0]) != PickleKind::kStr) {
    return false;
  }
  if (tree.text(args[0]) != "torch.strided") {
    *what = "layout " + ShownText(tree.text(args[0]));
    return false;
  }
  return true;
}

bool DcpRecords::Fold(const PickleTree& tree, PickleRef object, std::uint32_t* tag,
                      std::int64_t* value) {
  const DcpClass kind = ClassOf(tree, object);
  const bool has_state = tree.object(object).state != kNoPickle;
  std::uint32_t record = 0;
  PackedDims dims;
  DType dtype = DType::kUInt8;
  std::string what;
  bool folds = false;
  switch (kind) {
    case DcpClass::kSize: folds = ReadDims(tree, object, &dims); break;
    case DcpClass::kChunk: folds = has_state && ReadChunk(tree, object, &record); break;
    case DcpClass::kKey: folds = has_state && ReadKey(tree, object, &record); break;
    case DcpClass::kStorage: folds = has_state && ReadStorage(tree, object, &record); break;
    case DcpClass::kProperties:
      folds = has_state && ReadProperties(tree, object, &dtype, &what);
      record = static_cast<std::uint32_t>(dtype);
      break;
    case DcpClass::kLayout: {
      const std::span<const PickleRef> args = tree.items(tree.object(object).args);
      folds = args.size() == 1 && tree.text(args[0]) == "torch.strided";
      break;
    }
    case DcpClass::kBytes:
    case DcpClass::kEnum: folds = !has_state; break;
    case DcpClass::kOther:
    case DcpClass::kTensor:
    case DcpClass::kMetadata:
    case DcpClass::kUnknown: break;
  }
  *tag = TagOf(kind) | dims.count;
  *value = kind == DcpClass::kSize ? static_cast<std::int64_t>(dims.bits()) : record;
  return folds;
}

}  // namespace varve
