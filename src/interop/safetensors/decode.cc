// The header of one safetensors file. The input is untrusted: any fault gives a Status, and every
// byte range of an accepted header lies in the file and belongs to one tensor.
//
// The format: https://github.com/huggingface/safetensors, section "Format". More is accepted than
// by its own library: bytes of no tensor are ignored. PyTorch's addition for sharded
// files, DCP_SHARDING_INFO, is described in docs/format.md, section 3.

#include "interop/safetensors/decode.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <simdjson.h>

#include "base/bytes.h"
#include "base/checked.h"
#include "base/json_parser.h"
#include "interop/json_members.h"

namespace varve {
namespace {

namespace dom = simdjson::dom;

constexpr std::uint64_t kPrefixBytes = 8;
// The format's own library stops at 100 MB, others do not. Parsing takes up to 16 times as much
// memory as there is text, so a limit is needed.
constexpr std::uint64_t kMaxJsonBytes = std::uint64_t{256} << 20;

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::string_view kShardingKey = "DCP_SHARDING_INFO";
constexpr std::string_view kVarveKey = "varve";

using Tensor = SafetensorsHeader::Tensor;

constexpr std::string_view kMalformed = "malformed safetensors header";

Status Malformed(std::string_view what) { return DataLoss(std::string(what)).Annotate(kMalformed); }

Result<std::string> ReadExactly(const NamedFile& file, std::uint64_t begin, std::uint64_t size) {
  VARVE_ASSIGN_OR_RETURN(std::string bytes, file.read(begin, size));
  if (bytes.size() != size) {
    return Malformed("the file ends early");
  }
  return bytes;
}

/// Reads the header's text. Nothing of its size is allocated before the file is known to be that
/// long.
Result<std::string> ReadJson(const NamedFile& file) {
  if (file.size < kPrefixBytes) {
    return Malformed("the file has " + std::to_string(file.size) + " bytes, too few for a length");
  }
  VARVE_ASSIGN_OR_RETURN(const std::string prefix, ReadExactly(file, 0, kPrefixBytes));
  const std::uint64_t length = ByteReader(prefix).U64();
  if (length > file.size - kPrefixBytes) {
    return Malformed("its length " + std::to_string(length) + " reaches beyond the file of " +
                     std::to_string(file.size) + " bytes");
  }
  if (length > kMaxJsonBytes) {
    return Unimplemented("safetensors header of " + std::to_string(length) +
                         " bytes; at most 256 MiB are read");
  }
  return ReadExactly(file, kPrefixBytes, length);
}

Status ReadDims(dom::element element, std::string_view what, Dims* out) {
  return ReadJsonDims(element, what, out).Annotate(kMalformed);
}

Status ReadMembers(dom::element element, std::string_view what, JsonMembers* out) {
  return ReadJsonMembers(element, what, out).Annotate(kMalformed);
}

Status ReadMetadata(dom::element element, SafetensorsHeader* header) {
  JsonMembers members;
  VARVE_RETURN_IF_ERROR(ReadMembers(element, kMetadataKey, &members));
  header->metadata.reserve(members.size());
  for (const auto& [key, value] : members) {
    std::string_view text;
    if (value.get(text)) {
      return Malformed("\"" + std::string(key) + "\" in __metadata__ is not a string");
    }
    header->metadata.emplace_back(key, text);
  }
  return Status::Ok();
}

const std::string* FindMetadata(const SafetensorsHeader& header, std::string_view key) {
  for (const auto& [name, value] : header.metadata) {
    if (name == key) {
      return &value;
    }
  }
  return nullptr;
}

/// Halves the last dimension: safetensors counts single 4-bit floats; PyTorch and Varve count the
/// bytes that hold two each.
Status HalveLast(Dims* dims) {
  if (dims->empty() || dims->back() % 2 != 0) {
    return Unimplemented("4-bit elements with " + ToString(*dims) +
                         " do not fill whole bytes along the last dimension");
  }
  dims->back() /= 2;
  return Status::Ok();
}

/// Reads a tensor's entry of the header; `data_begin` is the offset of the data in the file.
Status ReadTensor(dom::element element, const NamedFile& file, std::uint64_t data_begin,
                  Tensor* tensor) {
  JsonMembers members;
  VARVE_RETURN_IF_ERROR(ReadMembers(element, "the entry", &members));
  const dom::element* dtype = FindJsonMember(members, "dtype");
  const dom::element* shape = FindJsonMember(members, "shape");
  const dom::element* offsets = FindJsonMember(members, "data_offsets");
  std::string_view name;
  if (dtype == nullptr || shape == nullptr || offsets == nullptr || dtype->get(name)) {
    return Malformed("dtype, shape or data_offsets is missing or of the wrong type");
  }
  Dims range;
  VARVE_RETURN_IF_ERROR(ReadDims(*shape, "shape", &tensor->shape));
  VARVE_RETURN_IF_ERROR(ReadDims(*offsets, "data_offsets", &range));
  const auto known = DTypeFromSafetensorsName(name);
  if (!known) {
    return Unimplemented("dtype " + std::string(name) + " is not known");
  }
  tensor->dtype = *known;
  if (tensor->dtype == DType::kFloat4E2M1FNX2) {
    VARVE_RETURN_IF_ERROR(HalveLast(&tensor->shape));
  }
  if (range.size() != 2 || range[0] > range[1] || range[1] > file.size - data_begin) {
    return Malformed("data_offsets " + ToString(range) + " are no range of the file's " +
                     std::to_string(file.size - data_begin) + " bytes of data");
  }
  auto bytes = CheckedProduct(tensor->shape);
  if (bytes) {
    bytes = CheckedMul(*bytes, ItemSize(tensor->dtype));
  }
  if (!bytes || *bytes != range[1] - range[0]) {
    return Malformed("data_offsets " + ToString(range) + " do not fit " +
                     std::string(DTypeName(tensor->dtype)) + ToString(tensor->shape));
  }
  tensor->begin = data_begin + range[0];
  tensor->end = data_begin + range[1];
  return Status::Ok();
}

/// Reads a shard's offsets; `info` is DCP_SHARDING_INFO's entry for this tensor.
Status ReadOffsets(dom::element info, bool varve_wrote_it, Tensor* tensor) {
  JsonMembers members;
  VARVE_RETURN_IF_ERROR(ReadMembers(info, kShardingKey, &members));
  const dom::element* offsets = FindJsonMember(members, "saved_offsets");
  if (offsets == nullptr) {
    return Status::Ok();
  }
  VARVE_RETURN_IF_ERROR(ReadDims(*offsets, "saved_offsets", &tensor->offsets));
  if (tensor->offsets.size() != tensor->shape.size()) {
    return Malformed("saved_offsets " + ToString(tensor->offsets) + " do not fit shape " +
                     ToString(tensor->shape));
  }
  // PyTorch writes the offsets of its own tensor, in pairs of 4-bit floats, beside a shape in
  // single ones. Varve's data files count both alike.
  if (varve_wrote_it && tensor->dtype == DType::kFloat4E2M1FNX2) {
    VARVE_RETURN_IF_ERROR(HalveLast(&tensor->offsets));
  }
  return Status::Ok();
}

Status ReadSharding(SafetensorsHeader* header) {
  const std::string* text = FindMetadata(*header, kShardingKey);
  if (text == nullptr || text->empty()) {
    return Status::Ok();
  }
  JsonParser parser;
  dom::element root;
  if (const auto error = parser.Parse(*text).get(root); error) {
    return Malformed(std::string(kShardingKey) + ": " + simdjson::error_message(error));
  }
  JsonMembers by_name;
  VARVE_RETURN_IF_ERROR(ReadMembers(root, kShardingKey, &by_name));
  const bool varve_wrote_it = FindMetadata(*header, kVarveKey) != nullptr;
  for (Tensor& tensor : header->tensors) {
    if (const dom::element* info = FindJsonMember(by_name, tensor.fqn); info != nullptr) {
      const Status status = ReadOffsets(*info, varve_wrote_it, &tensor);
      VARVE_RETURN_IF_ERROR(status.Annotate("tensor \"" + tensor.fqn + "\""));
    }
  }
  return Status::Ok();
}

/// Checks that no byte of the file belongs to two tensors.
Status CheckDisjoint(const std::vector<Tensor>& tensors) {
  std::vector<const Tensor*> order;
  for (const Tensor& tensor : tensors) {
    if (tensor.begin != tensor.end) {
      order.push_back(&tensor);
    }
  }
  std::sort(order.begin(), order.end(),
            [](const Tensor* a, const Tensor* b) { return a->begin < b->begin; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (order[i]->begin < order[i - 1]->end) {
      return Malformed("the bytes of tensors \"" + order[i - 1]->fqn + "\" and \"" + order[i]->fqn +
                       "\" overlap");
    }
  }
  return Status::Ok();
}

Result<SafetensorsHeader> ReadHeader(const NamedFile& file) {
  VARVE_ASSIGN_OR_RETURN(const std::string json, ReadJson(file));
  JsonParser parser;
  dom::element root;
  if (const auto error = parser.Parse(json).get(root); error) {
    return Malformed(simdjson::error_message(error));
  }
  JsonMembers entries;
  VARVE_RETURN_IF_ERROR(ReadMembers(root, "the header", &entries));
  SafetensorsHeader header;
  header.tensors.reserve(entries.size());
  for (const auto& [name, element] : entries) {
    if (name == kMetadataKey) {
      if (!element.is_null()) {
        VARVE_RETURN_IF_ERROR(ReadMetadata(element, &header));
      }
      continue;
    }
    Tensor tensor;
    tensor.fqn = std::string(name);
    const Status status = ReadTensor(element, file, kPrefixBytes + json.size(), &tensor);
    VARVE_RETURN_IF_ERROR(status.Annotate("tensor \"" + tensor.fqn + "\""));
    header.tensors.push_back(std::move(tensor));
  }
  VARVE_RETURN_IF_ERROR(CheckDisjoint(header.tensors));
  VARVE_RETURN_IF_ERROR(ReadSharding(&header));
  return header;
}

}  // namespace

Result<SafetensorsHeader> ReadSafetensorsHeader(const NamedFile& file) {
  return ReadHeader(file).Annotate(file.name);
}

}  // namespace varve
