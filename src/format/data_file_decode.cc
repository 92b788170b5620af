// Decoding of data file headers. The input is untrusted: a flipped bit, a truncated copy or a
// hostile file must give a Status, never a crash and never a header that lies about its geometry.

#include <algorithm>
#include <cstddef>
#include <unordered_map>
#include <unordered_set>

#include <simdjson.h>

#include "base/checked.h"
#include "base/checksum.h"
#include "base/json_parser.h"
#include "format/data_file.h"
#include "format/variants.h"
#include "tensor/box.h"
#include "varve/metadata.h"

namespace varve {
namespace {

namespace dom = simdjson::dom;

Status Malformed(std::string_view what) {
  return DataLoss("malformed data file header: " + std::string(what));
}

Status ParseJson(std::string_view text, JsonParser* parser, dom::object* out) {
  dom::element root;
  if (const auto error = parser->Parse(text).get(root); error) {
    return Malformed(simdjson::error_message(error));
  }
  if (root.get(*out)) {
    return Malformed("not a JSON object");
  }
  return Status::Ok();
}

Status ReadU64(dom::element element, std::string_view what, std::uint64_t* out) {
  if (element.get(*out)) {
    return Malformed(std::string(what) + " is not an unsigned integer");
  }
  return Status::Ok();
}

Status ReadDims(dom::element element, std::string_view what, Dims* out) {
  dom::array array;
  if (element.get(array)) {
    return Malformed(std::string(what) + " is not a list");
  }
  for (const dom::element item : array) {
    std::uint64_t value = 0;
    VARVE_RETURN_IF_ERROR(ReadU64(item, what, &value));
    out->push_back(value);
  }
  return Status::Ok();
}

Status ReadRange(dom::element element, std::string_view what, ByteRange* out) {
  Dims ends;
  VARVE_RETURN_IF_ERROR(ReadDims(element, what, &ends));
  if (ends.size() != 2 || ends[0] > ends[1]) {
    return Malformed(std::string(what) + " is not a byte range");
  }
  *out = {ends[0], ends[1]};
  return Status::Ok();
}

/// Fetches a member that must be there.
template <class T>
Status Require(dom::object object, std::string_view key, T* out) {
  if (object.at_key(key).get(*out)) {
    return Malformed("\"" + std::string(key) + "\" is missing or of the wrong type");
  }
  return Status::Ok();
}

/// Returns whether a file may hold something of that name. Names of variants came with a version.
bool MayHold(std::string_view fqn, std::uint64_t format) {
  return !IsReservedName(fqn) || (format >= kVariantFormatVersion && IsVariantName(fqn));
}

/// Reads one entry. `special` is its description in "tensors", or null when safetensors describes
/// it fully.
Status ReadEntry(const std::string& name, dom::element element, const dom::element* special,
                 std::uint64_t format, StoredChunk* chunk) {
  dom::object entry;
  if (element.get(entry)) {
    return Malformed("entry \"" + name + "\" is not an object");
  }
  std::string_view dtype;
  dom::element shape;
  dom::element offsets;
  VARVE_RETURN_IF_ERROR(Require(entry, "dtype", &dtype));
  VARVE_RETURN_IF_ERROR(Require(entry, "shape", &shape));
  VARVE_RETURN_IF_ERROR(Require(entry, "data_offsets", &offsets));
  VARVE_RETURN_IF_ERROR(ReadRange(offsets, "data_offsets", &chunk->bytes));
  TensorSpec spec;
  if (special != nullptr) {
    dom::object said;
    if (special->get(said)) {
      return Malformed("\"tensors\" holds something else than objects");
    }
    std::string_view fqn;
    std::string_view true_dtype;
    dom::element value;
    VARVE_RETURN_IF_ERROR(Require(said, "fqn", &fqn));
    VARVE_RETURN_IF_ERROR(Require(said, "dtype", &true_dtype));
    const auto known = DTypeFromName(true_dtype);
    if (!known) {
      return Malformed("unknown dtype " + std::string(true_dtype));
    }
    if (!MayHold(fqn, format)) {
      return Malformed("a tensor is named \"" + std::string(fqn) + "\", which is reserved");
    }
    spec.fqn = std::string(fqn);
    spec.dtype = *known;
    VARVE_RETURN_IF_ERROR(Require(said, "shape", &value));
    VARVE_RETURN_IF_ERROR(ReadDims(value, "shape", &spec.shape));
    VARVE_RETURN_IF_ERROR(Require(said, "offsets", &value));
    VARVE_RETURN_IF_ERROR(ReadDims(value, "offsets", &chunk->box.offsets));
    VARVE_RETURN_IF_ERROR(Require(said, "sizes", &value));
    VARVE_RETURN_IF_ERROR(ReadDims(value, "sizes", &chunk->box.sizes));
  } else {
    const auto known = DTypeFromSafetensorsName(dtype);
    if (!known) {
      return Malformed("unknown dtype " + std::string(dtype));
    }
    spec.fqn = name;
    spec.dtype = *known;
    VARVE_RETURN_IF_ERROR(ReadDims(shape, "shape", &spec.shape));
    chunk->box = WholeBox(spec.shape);
  }
  if (Status status = CheckBox(spec.shape, chunk->box, ItemSize(spec.dtype)); !status.ok()) {
    return Malformed("entry \"" + name + "\": " + status.message());
  }
  if (chunk->bytes.end - chunk->bytes.begin != Volume(chunk->box.sizes) * ItemSize(spec.dtype)) {
    return Malformed("entry \"" + name + "\" has another size than its shape");
  }
  chunk->of = std::make_shared<const TensorSpec>(std::move(spec));
  return Status::Ok();
}

Status ReadIdentity(dom::object varve, std::uint64_t* version, FileIdentity* identity) {
  VARVE_RETURN_IF_ERROR(Require(varve, "format", version));
  if (*version > kVariantFormatVersion) {
    return Unimplemented("data file has format version " + std::to_string(*version) +
                         ", this Varve reads up to " + std::to_string(kVariantFormatVersion) +
                         "; use a newer Varve");
  }
  std::string_view save_id;
  VARVE_RETURN_IF_ERROR(Require(varve, "save_id", &save_id));
  if (!ParseHex(save_id, identity->save_id.bytes)) {
    return Malformed("save_id is not 32 hex digits");
  }
  std::uint64_t rank = 0;
  std::uint64_t world_size = 0;
  VARVE_RETURN_IF_ERROR(Require(varve, "rank", &rank));
  VARVE_RETURN_IF_ERROR(Require(varve, "world_size", &world_size));
  if (world_size == 0 || world_size > 0xFFFFFFFFU || rank >= world_size) {
    return Malformed("rank is not below world_size");
  }
  identity->rank = static_cast<std::uint32_t>(rank);
  identity->world_size = static_cast<std::uint32_t>(world_size);
  VARVE_RETURN_IF_ERROR(Require(varve, "coordinated", &identity->coordinated));
  VARVE_RETURN_IF_ERROR(Require(varve, "created_ns", &identity->created_ns));
  VARVE_RETURN_IF_ERROR(Require(varve, "block_bytes", &identity->block_bytes));
  if (identity->block_bytes == 0 || identity->block_bytes % kDataAlignment != 0 ||
      identity->block_bytes > kMaxBlockBytes) {
    return Malformed("block_bytes is not a multiple of 4096 up to 8 MiB");
  }
  return Status::Ok();
}

Status ReadContentOfObjects(dom::element element, DataFileHeader* header) {
  std::string_view hashes;
  if (element.get(hashes) || hashes.size() != header->objects.size() * 32) {
    return Malformed("objects_xxh3 does not hold one hash per value");
  }
  for (std::size_t i = 0; i < header->objects.size(); ++i) {
    if (!ParseHex(hashes.substr(i * 32, 32), header->objects[i].content.bytes)) {
      return Malformed("objects_xxh3 is not hex");
    }
  }
  return Status::Ok();
}

Status ReadObjects(dom::object varve, std::uint64_t format, DataFileHeader* header) {
  dom::object objects;
  VARVE_RETURN_IF_ERROR(Require(varve, "objects", &objects));
  for (const auto& [fqn, element] : objects) {
    if (!MayHold(fqn, format)) {
      return Malformed("a value is named \"" + std::string(fqn) + "\", which is reserved");
    }
    StoredObject object{std::string(fqn), {}, {}};
    VARVE_RETURN_IF_ERROR(ReadRange(element, "object", &object.bytes));
    header->objects.push_back(std::move(object));
  }
  dom::element content;
  if (varve.at_key("objects_xxh3").get(content) == simdjson::SUCCESS) {
    VARVE_RETURN_IF_ERROR(ReadContentOfObjects(content, header));
  }
  dom::element structure;
  if (varve.at_key("structure").get(structure) == simdjson::SUCCESS) {
    ByteRange range;
    VARVE_RETURN_IF_ERROR(ReadRange(structure, "structure", &range));
    header->structure = range;
  }
  return Status::Ok();
}

/// Files of version 1 have no aliases, whatever members they have.
Status ReadAliases(dom::object varve, std::uint64_t format, DataFileHeader* header) {
  dom::element element;
  dom::object aliases;
  if (format < kAliasFormatVersion || varve.at_key("aliases").get(element) != simdjson::SUCCESS) {
    return Status::Ok();
  }
  if (element.get(aliases)) {
    return Malformed("\"aliases\" is not an object");
  }
  for (const auto& [fqn, value] : aliases) {
    std::string_view of;
    if (value.get(of)) {
      return Malformed("alias \"" + std::string(fqn) + "\" is not of a name");
    }
    header->aliases.push_back({std::string(fqn), std::string(of)});
  }
  std::sort(header->aliases.begin(), header->aliases.end(),
            [](const TensorAlias& a, const TensorAlias& b) { return a.fqn < b.fqn; });
  const Status status = CheckAliases(*header);
  return status.ok() ? status : Malformed(status.message());
}

Status ReadChecksums(dom::object varve, DataFileHeader* header) {
  std::string_view hashes;
  VARVE_RETURN_IF_ERROR(Require(varve, "xxh3", &hashes));
  if (hashes.size() != header->chunks.size() * 32) {
    return Malformed("xxh3 does not hold one hash per chunk");
  }
  for (std::size_t i = 0; i < header->chunks.size(); ++i) {
    if (!ParseHex(hashes.substr(i * 32, 32), header->chunks[i].content.bytes)) {
      return Malformed("xxh3 is not hex");
    }
  }
  std::string_view blocks;
  VARVE_RETURN_IF_ERROR(Require(varve, "blocks_crc32c", &blocks));
  const std::uint64_t count = DivideUp(header->data_bytes, header->identity.block_bytes);
  if (blocks.size() / 8 != count || blocks.size() % 8 != 0) {
    return Malformed("blocks_crc32c does not hold one checksum per block");
  }
  header->block_crc32c.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (!ParseHexU32(blocks.substr(i * 8, 8), &header->block_crc32c[i])) {
      return Malformed("blocks_crc32c is not hex");
    }
  }
  return Status::Ok();
}

/// Checks that chunks, objects and structure follow each other without hole or overlap.
Status CheckPacked(DataFileHeader* header) {
  std::stable_sort(
      header->chunks.begin(), header->chunks.end(), [](const StoredChunk& a, const StoredChunk& b) {
        return a.bytes.begin != b.bytes.begin ? a.bytes.begin < b.bytes.begin : ChunkBefore(a, b);
      });
  std::uint64_t at = 0;
  for (const StoredChunk& chunk : header->chunks) {
    if (chunk.bytes.begin != at) {
      return Malformed("hole or overlap before tensor \"" + chunk.fqn() + "\"");
    }
    at = chunk.bytes.end;
  }
  std::unordered_set<std::string_view> seen;
  for (const StoredObject& object : header->objects) {
    if (object.bytes.begin != at || !seen.insert(object.fqn).second) {
      return Malformed("hole, overlap or duplicate at object \"" + object.fqn + "\"");
    }
    at = object.bytes.end;
  }
  if (header->structure) {
    if (header->structure->begin != at) {
      return Malformed("hole or overlap before the structure");
    }
    at = header->structure->end;
  }
  if (at != header->data_bytes) {
    return Malformed("values do not end where the data ends");
  }
  return Status::Ok();
}

}  // namespace

Result<DataFileHeader> DecodeHeader(std::string_view bytes, std::uint32_t* header_crc32c) {
  VARVE_ASSIGN_OR_RETURN(const std::uint64_t total, HeaderBytesFromPrefix(bytes.substr(0, 8)));
  if (bytes.size() != total) {
    return Malformed("cut short");
  }
  VARVE_ASSIGN_OR_RETURN(*header_crc32c, HeaderChecksum(bytes));
  VARVE_RETURN_IF_ERROR(CheckHeader(bytes, *header_crc32c));
  JsonParser outer_parser;
  JsonParser inner_parser;
  dom::object outer;
  dom::object metadata;
  dom::object varve;
  std::string_view varve_text;
  VARVE_RETURN_IF_ERROR(ParseJson(bytes.substr(8), &outer_parser, &outer));
  VARVE_RETURN_IF_ERROR(Require(outer, "__metadata__", &metadata));
  VARVE_RETURN_IF_ERROR(Require(metadata, "varve", &varve_text));
  VARVE_RETURN_IF_ERROR(ParseJson(varve_text, &inner_parser, &varve));

  DataFileHeader header;
  std::uint64_t format = 0;
  VARVE_RETURN_IF_ERROR(ReadIdentity(varve, &format, &header.identity));
  dom::object special_list;
  VARVE_RETURN_IF_ERROR(Require(varve, "tensors", &special_list));
  std::unordered_map<std::string_view, dom::element> special;  // Looked up only.
  for (const auto& [name, element] : special_list) {
    if (!special.emplace(name, element).second) {
      return Malformed("duplicate name in \"tensors\"");
    }
  }
  std::unordered_set<std::string_view> seen;
  bool has_values = false;
  ByteRange values;
  for (const auto& [name, element] : outer) {
    if (!seen.insert(name).second) {
      return Malformed("duplicate name \"" + std::string(name) + "\"");
    }
    if (name == "__metadata__") {
      continue;
    }
    if (name.starts_with("__varve__.values.")) {
      dom::element offsets;
      dom::object entry;
      if (has_values || element.get(entry)) {
        return Malformed("more than one values entry");
      }
      VARVE_RETURN_IF_ERROR(Require(entry, "data_offsets", &offsets));
      VARVE_RETURN_IF_ERROR(ReadRange(offsets, "data_offsets", &values));
      has_values = true;
      continue;
    }
    StoredChunk chunk;
    const auto found = special.find(name);
    VARVE_RETURN_IF_ERROR(ReadEntry(std::string(name), element,
                                    found == special.end() ? nullptr : &found->second, format,
                                    &chunk));
    header.chunks.push_back(std::move(chunk));
  }
  for (const StoredChunk& chunk : header.chunks) {
    header.data_bytes = std::max(header.data_bytes, chunk.bytes.end);
  }
  if (has_values) {
    header.data_bytes = std::max(header.data_bytes, values.end);
  }
  VARVE_RETURN_IF_ERROR(ReadObjects(varve, format, &header));
  VARVE_RETURN_IF_ERROR(ReadAliases(varve, format, &header));
  VARVE_RETURN_IF_ERROR(CheckPacked(&header));
  VARVE_RETURN_IF_ERROR(ReadChecksums(varve, &header));
  return header;
}

}  // namespace varve
