#include "interop/torch/state_reader.h"

#include <algorithm>
#include <utility>

#include "interop/torch/parts.h"
#include "tensor/box.h"

namespace varve {
namespace {

// About what one entry of a tensor takes in memory. A file takes more for it, unless it names one
// tensor many times.
constexpr std::uint64_t kTensorBytes = 512;

bool IsPacked(const ArchiveTensor& tensor) {
  if (Volume(tensor.sizes) == 0) {
    return true;
  }
  std::uint64_t step = 1;
  for (std::size_t d = tensor.sizes.size(); d-- > 0;) {
    if (tensor.sizes[d] != 1 && tensor.strides[d] != static_cast<std::int64_t>(step)) {
      return false;
    }
    step *= tensor.sizes[d];
  }
  return true;
}

}  // namespace

StoredTensor StoredWhole(const TorchArchive& archive, const ArchiveTensor& tensor,
                         std::uint32_t file) {
  const std::uint64_t storage = archive.storages()[tensor.storage].begin;
  const TensorSpan span = SpanOf(tensor);
  Chunk chunk{.box = WholeBox(tensor.sizes),
              .extent = {file, storage + span.begin, storage + span.end, Encoding::kPlain},
              .content = {},
              .strides = IsPacked(tensor) ? Strides() : tensor.strides,
              .conj = tensor.conj,
              .neg = tensor.neg};
  return {tensor.dtype, tensor.sizes, {std::move(chunk)}};
}

std::vector<RecordCrc> StorageRecords(const TorchArchive& archive, std::uint32_t file) {
  std::vector<RecordCrc> records;
  for (const ArchiveStorage& storage : archive.storages()) {
    if (storage.crc32 && storage.bytes != 0) {
      records.push_back({file, storage.begin, storage.begin + storage.bytes, *storage.crc32});
    }
  }
  return records;
}

PickleRef StateMapping::Find(std::string_view key) const {
  for (std::size_t i = keys.size(); i-- > 0;) {
    if (keys[i].kind == ValueKind::kStr && keys[i].text == key) {
      return items[i];
    }
  }
  return kNoPickle;
}

StateReader::StateReader(const TorchArchive& archive, const RangeReader& read, std::uint32_t file,
                         Hook hook)
    : archive_(archive),
      tree_(archive.tree()),
      values_(archive, read),
      file_(file),
      hook_(std::move(hook)) {}

Result<StateNode> StateReader::At(PickleRef node, const std::string& name) {
  return Walk(node, name, 0);
}

Result<std::optional<StateMapping>> StateReader::MappingAt(PickleRef node) {
  VARVE_ASSIGN_OR_RETURN(const auto found, values_.MappingAt(node));
  if (!found) {
    return std::optional<StateMapping>();
  }
  StateMapping mapping{.kind = found->kind, .factory = found->factory, .keys = {}, .items = {}};
  mapping.keys.reserve(found->pairs.size() / 2);
  mapping.items.reserve(found->pairs.size() / 2);
  for (std::size_t i = 0; i + 1 < found->pairs.size(); i += 2) {
    VARVE_ASSIGN_OR_RETURN(auto key, values_.At(found->pairs[i]));
    if (!key) {
      return std::optional<StateMapping>();
    }
    mapping.keys.push_back(*std::move(key));
    mapping.items.push_back(found->pairs[i + 1]);
  }
  return std::optional(std::move(mapping));
}

Result<StateNode> StateReader::Walk(PickleRef node, const std::string& name, int depth) {
  VARVE_RETURN_IF_ERROR(values_.Charge(name.size()));
  if (depth > kMaxStateDepth) {
    return InvalidArgument("\"" + name.substr(0, 100) + "...\" nests deeper than " +
                           std::to_string(kMaxStateDepth) + " levels");
  }
  if (hook_) {
    VARVE_ASSIGN_OR_RETURN(auto special, hook_(node));
    if (special) {
      VARVE_RETURN_IF_ERROR(
          values_.Charge(kTensorBytes * std::max<std::size_t>(special->tensor.chunks.size(), 1)));
      return *std::move(special);
    }
  }
  const std::string prefix = name.empty() ? name : name + ".";
  StateNode out;
  if (tree_.kind(node) == PickleKind::kList && Opens(node)) {
    out.kind = ValueKind::kList;
    for (const PickleRef item : tree_.items(node)) {
      VARVE_ASSIGN_OR_RETURN(StateNode below,
                             Walk(item, prefix + std::to_string(out.items.size()), depth + 1));
      out.items.push_back(std::move(below));
    }
    return out;
  }
  VARVE_ASSIGN_OR_RETURN(auto mapping, MappingAt(node));
  if (!mapping) {
    return LeafAt(node, name);
  }
  out.kind = mapping->kind;
  out.factory = std::move(mapping->factory);
  for (std::size_t i = 0; i < mapping->keys.size(); ++i) {
    VARVE_ASSIGN_OR_RETURN(StateNode below,
                           Walk(mapping->items[i], prefix + KeyText(mapping->keys[i]), depth + 1));
    out.items.push_back(std::move(below));
  }
  out.keys = std::move(mapping->keys);
  return out;
}

Result<StateNode> StateReader::LeafAt(PickleRef node, const std::string& name) {
  auto tensor = archive_.TensorAt(node);
  if (!tensor.ok()) {
    return tensor.status().Annotate("\"" + name + "\"");
  }
  if (*tensor) {
    VARVE_RETURN_IF_ERROR(values_.Charge(kTensorBytes));
    return StateNode::OfTensor(StoredWhole(archive_, **tensor, file_));
  }
  auto value = values_.At(node);
  if (!value.ok()) {
    return value.status().Annotate("\"" + name + "\"");
  }
  return StateNode::OfValue(*value ? **value : values_.OpaqueAt(node));
}

/// Returns true when the list, or a list in it, holds a tensor or a mapping.
bool StateReader::Opens(PickleRef list, int depth) {
  const auto [known, is_new] = opens_.try_emplace(list, false);
  if (!is_new || depth > kMaxStateDepth) {
    return known->second;
  }
  for (const PickleRef item : tree_.items(list)) {
    const bool is_list = tree_.kind(item) == PickleKind::kList;
    if (is_list ? Opens(item, depth + 1)
                : IsTensorNode(tree_, item) || IsMappingNode(tree_, item)) {
      opens_[list] = true;
      return true;
    }
  }
  return false;
}

namespace {

Status DecodeState(const TorchArchive& archive, const RangeReader& read, Decoded* out) {
  StateReader reader(archive, read, 0);
  const PickleRef root = archive.tree().root();
  VARVE_ASSIGN_OR_RETURN(const auto mapping, reader.MappingAt(root));
  VARVE_ASSIGN_OR_RETURN(StateNode state, mapping ? reader.At(root, "") : reader.LeafAt(root, ""));
  return FlattenState(std::move(state), out);
}

}  // namespace

Result<Decoded> DecodeTorchFile(std::uint64_t size, const RangeReader& read,
                                std::string file_name) {
  auto archive = TorchArchive::Open(size, read);
  if (!archive.ok()) {
    return archive.status().Annotate(file_name);
  }
  Decoded decoded;
  decoded.metadata.format = Format::kTorchSave;
  decoded.metadata.world_size = 1;
  decoded.records = StorageRecords(*archive, 0);
  if (const Status status = DecodeState(*archive, read, &decoded); !status.ok()) {
    return status.Annotate(file_name);
  }
  DataFile file{.name = std::move(file_name)};
  file.size = size;
  decoded.metadata.files.push_back(std::move(file));
  return decoded;
}

}  // namespace varve
