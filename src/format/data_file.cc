#include "format/data_file.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/checksum.h"
#include "base/name_set.h"
#include "format/json_writer.h"
#include "format/variants.h"
#include "tensor/box.h"
#include "varve/metadata.h"

namespace varve {
namespace {

// The field whose eight digits hold the header's own checksum; they count as zeros while it is
// computed. The text sits inside a JSON string inside JSON, hence the escaped quotes.
constexpr std::string_view kHeaderChecksumField = R"(\"header_crc32c\":\")";
constexpr std::string_view kZeroHeaderChecksum = "00000000";
// Fields behind it, in this order and before all names. They are as long before as after they are
// filled.
constexpr std::string_view kBlocksField = R"(\"blocks_crc32c\":\")";
constexpr std::string_view kContentsField = R"(\"xxh3\":\")";
constexpr std::string_view kFieldEnd = R"(\")";

/// The names of a header's chunks in its file, in their order.
class ChunkNames {
 public:
  explicit ChunkNames(const DataFileHeader& header) {
    NameSet used(header.chunks.size());
    names_.reserve(header.chunks.size());
    for (const StoredChunk& chunk : header.chunks) {
      if (used.Insert(chunk.fqn())) {
        names_.emplace_back(chunk.fqn());
      } else {
        names_.push_back(MadeFor(chunk, used));
        used.Insert(names_.back());
      }
    }
  }

  ~ChunkNames() = default;
  ChunkNames(const ChunkNames&) = delete;
  ChunkNames& operator=(const ChunkNames&) = delete;

  [[nodiscard]] std::size_t size() const { return names_.size(); }
  [[nodiscard]] bool empty() const { return names_.empty(); }
  std::string_view operator[](std::size_t chunk) const { return names_[chunk]; }

 private:
  /// safetensors names must be unique in a file; a second piece of one tensor gets its place added.
  std::string_view MadeFor(const StoredChunk& chunk, const NameSet& used) {
    std::string name = chunk.fqn() + "@" + ToString(chunk.box.offsets);
    while (used.Contains(name)) {
      name += '\'';
    }
    return made_.emplace_back(std::move(name));
  }

  std::vector<std::string_view> names_;  // Of the header, or of made_.
  std::deque<std::string> made_;
};

std::string ObjectsName(const DataFileHeader& header) {
  std::array<char, 48> name{};
  std::snprintf(name.data(), name.size(), "__varve__.values.rank%05u", header.identity.rank);
  return name.data();
}

// Returns true when safetensors' dtype and shape describe the chunk fully; "tensors" describes all
// others.
bool IsPlain(const StoredChunk& chunk, std::string_view name) {
  return name == chunk.fqn() && chunk.box.sizes == chunk.shape() &&
         SafetensorsName(chunk.dtype()) && chunk.dtype() != DType::kFloat4E2M1FNX2;
}

// Returns true for chunks that are stored as bytes, with their number as one more dimension: types
// that safetensors cannot name, and a single pair of 4-bit values, which has no dimension to
// double.
bool StoredAsBytes(const StoredChunk& chunk) {
  return !SafetensorsName(chunk.dtype()) ||
         (chunk.dtype() == DType::kFloat4E2M1FNX2 && chunk.box.sizes.empty());
}

void AppendEntry(std::string_view name, std::string_view dtype, const Dims& shape, ByteRange bytes,
                 std::string* out) {
  out->push_back(',');
  AppendJsonString(name, out);
  out->append(":{\"dtype\":\"");
  out->append(dtype);
  out->append("\",\"shape\":");
  AppendJsonDims(shape, out);
  out->append(",\"data_offsets\":[");
  AppendJsonNumber(bytes.begin, out);
  out->push_back(',');
  AppendJsonNumber(bytes.end, out);
  out->append("]}");
}

void AppendChunkEntry(const StoredChunk& chunk, std::string_view name, std::string* out) {
  Dims shape = chunk.box.sizes;
  std::string_view dtype = "U8";
  if (StoredAsBytes(chunk)) {
    shape.push_back(ItemSize(chunk.dtype()));  // The true type is in "tensors".
  } else {
    dtype = *SafetensorsName(chunk.dtype());
    if (chunk.dtype() == DType::kFloat4E2M1FNX2) {
      shape.back() *= 2;  // safetensors counts single 4-bit values, PyTorch pairs of them.
    }
  }
  AppendEntry(name, dtype, shape, chunk.bytes, out);
}

/// Puts a header's checksum into it.
Status SealHeader(Bytes* encoded, std::uint32_t* header_crc32c) {
  VARVE_ASSIGN_OR_RETURN(*header_crc32c, HeaderChecksum(*encoded));
  encoded->replace(encoded->find(kHeaderChecksumField) + kHeaderChecksumField.size(),
                   kZeroHeaderChecksum.size(), HexU32(*header_crc32c));
  return Status::Ok();
}

/// Writes the digits of a field, the next one from `at` on, and sets `at` behind them.
Status FillField(std::string_view field, std::string_view digits, std::size_t* at, Bytes* encoded) {
  const std::size_t found = encoded->find(field, *at);
  const std::size_t begin = found + field.size();
  if (found == Bytes::npos || encoded->size() - begin < digits.size() + kFieldEnd.size() ||
      encoded->compare(begin + digits.size(), kFieldEnd.size(), kFieldEnd) != 0) {
    return Internal("checksums of other blocks or chunks than the header's");
  }
  encoded->replace(begin, digits.size(), digits);
  *at = begin + digits.size();
  return Status::Ok();
}

std::uint32_t VersionOf(const DataFileHeader& header) {
  if (std::any_of(header.chunks.begin(), header.chunks.end(),
                  [](const StoredChunk& chunk) { return IsVariantName(chunk.fqn()); }) ||
      std::any_of(header.objects.begin(), header.objects.end(),
                  [](const StoredObject& object) { return IsVariantName(object.fqn); })) {
    return kVariantFormatVersion;
  }
  return header.aliases.empty() ? kPlainFormatVersion : kAliasFormatVersion;
}

std::string VarveJson(const DataFileHeader& header, const ChunkNames& names) {
  std::string json = "{\"format\":" + std::to_string(VersionOf(header));
  json += ",\"header_crc32c\":\"" + std::string(kZeroHeaderChecksum) + "\"";
  json += ",\"save_id\":\"" + ToString(header.identity.save_id) + "\"";
  json += ",\"rank\":" + std::to_string(header.identity.rank);
  json += ",\"world_size\":" + std::to_string(header.identity.world_size);
  json += std::string(",\"coordinated\":") + (header.identity.coordinated ? "true" : "false");
  json += ",\"created_ns\":" + std::to_string(header.identity.created_ns);
  json += ",\"block_bytes\":" + std::to_string(header.identity.block_bytes);
  std::string blocks;
  blocks.reserve(header.block_crc32c.size() * 8);
  const std::uint64_t block_count = DivideUp(header.data_bytes, header.identity.block_bytes);
  for (std::uint64_t i = 0; i < block_count; ++i) {
    blocks += i < header.block_crc32c.size() ? HexU32(header.block_crc32c[i]) : "00000000";
  }
  json += ",\"blocks_crc32c\":\"" + blocks + "\"";
  json += ",\"xxh3\":\"";
  for (const StoredChunk& chunk : header.chunks) {
    AppendHex(chunk.content.bytes, &json);
  }
  json += "\",\"tensors\":{";
  bool first = true;
  for (std::size_t i = 0; i < header.chunks.size(); ++i) {
    const StoredChunk& chunk = header.chunks[i];
    if (IsPlain(chunk, names[i])) {
      continue;
    }
    json += first ? "" : ",";
    first = false;
    AppendJsonString(names[i], &json);
    json += ":{\"fqn\":";
    AppendJsonString(chunk.fqn(), &json);
    json += ",\"dtype\":\"" + std::string(DTypeName(chunk.dtype())) + "\",\"shape\":";
    AppendJsonDims(chunk.shape(), &json);
    json += ",\"offsets\":";
    AppendJsonDims(chunk.box.offsets, &json);
    json += ",\"sizes\":";
    AppendJsonDims(chunk.box.sizes, &json);
    json += "}";
  }
  json += "},\"objects\":{";
  for (std::size_t i = 0; i < header.objects.size(); ++i) {
    json += i == 0 ? "" : ",";
    AppendJsonString(header.objects[i].fqn, &json);
    json += ":[" + std::to_string(header.objects[i].bytes.begin) + "," +
            std::to_string(header.objects[i].bytes.end) + "]";
  }
  json += "}";
  if (std::any_of(header.objects.begin(), header.objects.end(),
                  [](const StoredObject& object) { return object.content != Hash128(); })) {
    json += ",\"objects_xxh3\":\"";
    for (const StoredObject& object : header.objects) {
      AppendHex(object.content.bytes, &json);
    }
    json += "\"";
  }
  if (header.structure) {
    json += ",\"structure\":[" + std::to_string(header.structure->begin) + "," +
            std::to_string(header.structure->end) + "]";
  }
  if (!header.aliases.empty()) {
    json += ",\"aliases\":{";
    for (std::size_t i = 0; i < header.aliases.size(); ++i) {
      json += i == 0 ? "" : ",";
      AppendJsonString(header.aliases[i].fqn, &json);
      json += ":";
      AppendJsonString(header.aliases[i].of, &json);
    }
    json += "}";
  }
  return json + "}";
}

// PyTorch's convention for sharded safetensors (HuggingFaceStorageWriter, see docs/format.md):
// where each saved piece starts. Its reader takes a file without it as whole tensors, and with it
// demands every name of the file.
std::string ShardingInfo(const DataFileHeader& header, const ChunkNames& names,
                         const std::string& values_name, bool has_values) {
  const bool sharded =
      std::any_of(header.chunks.begin(), header.chunks.end(),
                  [](const StoredChunk& chunk) { return chunk.box.sizes != chunk.shape(); });
  if (!sharded) {
    return "";
  }
  std::string json = "{";
  for (std::size_t i = 0; i < names.size(); ++i) {
    json += i == 0 ? "" : ",";
    AppendJsonString(names[i], &json);
    json += ":{\"saved_offsets\":";
    Dims offsets = header.chunks[i].box.offsets;
    if (StoredAsBytes(header.chunks[i])) {
      offsets.push_back(0);
    } else if (header.chunks[i].dtype() == DType::kFloat4E2M1FNX2) {
      offsets.back() *= 2;
    }
    AppendJsonDims(offsets, &json);
    json += "}";
  }
  if (has_values) {
    json += names.empty() ? "" : ",";
    AppendJsonString(values_name, &json);
    json += ":{\"saved_offsets\":[0]}";
  }
  return json + "}";
}

}  // namespace

Status CheckAliases(const DataFileHeader& header) {
  if (header.aliases.empty()) {
    return Status::Ok();
  }
  std::unordered_map<std::string_view, std::uint64_t> chunks;  // Looked up only.
  std::unordered_set<std::string_view> taken;
  for (const StoredChunk& chunk : header.chunks) {
    ++chunks[chunk.fqn()];
    taken.insert(chunk.fqn());
  }
  for (const StoredObject& object : header.objects) {
    taken.insert(object.fqn);
  }
  std::uint64_t total = 0;
  for (const TensorAlias& alias : header.aliases) {
    const auto stored = chunks.find(alias.of);
    const bool usable =
        IsVariantName(alias.of) ? IsVariantName(alias.fqn) : !IsReservedName(alias.fqn);
    if (stored == chunks.end() || !usable || !taken.insert(alias.fqn).second) {
      return InvalidArgument("alias \"" + alias.fqn + "\" of tensor \"" + alias.of +
                             "\": the name is taken, or the tensor is not in the file");
    }
    total += stored->second;
  }
  if (total > kMaxAliasChunks) {
    return InvalidArgument("aliases stand for " + std::to_string(total) + " chunks, at most " +
                           std::to_string(kMaxAliasChunks) +
                           " are allowed; save fewer tied "
                           "tensors");
  }
  return Status::Ok();
}

std::string DataFileName(const DataFileHeader& header) {
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "data-%05u-of-%05u", header.identity.rank,
                header.identity.world_size);
  std::string text = name.data();
  if (!header.identity.coordinated) {
    text += "-" + ToString(header.identity.save_id).substr(0, 12);
  }
  return text + ".safetensors";
}

bool IsReservedName(std::string_view fqn) {
  return fqn.starts_with("__varve__.") || fqn == "__metadata__";
}

bool ChunkBefore(const StoredChunk& a, const StoredChunk& b) {
  const std::uint64_t item_a = ItemSize(a.dtype());
  const std::uint64_t item_b = ItemSize(b.dtype());
  if (item_a != item_b) {
    return item_a > item_b;
  }
  const int names = a.fqn().compare(b.fqn());
  return names != 0 ? names < 0 : a.box.offsets < b.box.offsets;
}

Status LayOut(DataFileHeader* header) {
  // Mostly they are: sorting what is sorted would move each chunk a few times.
  if (!std::is_sorted(header->chunks.begin(), header->chunks.end(), ChunkBefore)) {
    std::sort(header->chunks.begin(), header->chunks.end(), ChunkBefore);
  }
  std::uint64_t at = 0;
  const auto place = [&at](std::optional<std::uint64_t> size, ByteRange* range) {
    const auto end = size ? CheckedAdd(at, *size) : std::nullopt;
    if (!end || *end > (std::uint64_t{1} << 62)) {
      return InvalidArgument("data file would exceed 2^62 bytes");
    }
    *range = {at, *end};
    at = *end;
    return Status::Ok();
  };
  for (StoredChunk& chunk : header->chunks) {
    const auto elements = CheckedProduct(chunk.box.sizes);
    VARVE_RETURN_IF_ERROR(place(
        elements ? CheckedMul(*elements, ItemSize(chunk.dtype())) : std::nullopt, &chunk.bytes));
  }
  for (StoredObject& object : header->objects) {
    VARVE_RETURN_IF_ERROR(place(object.bytes.end - object.bytes.begin, &object.bytes));
  }
  if (header->structure) {
    VARVE_RETURN_IF_ERROR(
        place(header->structure->end - header->structure->begin, &*header->structure));
  }
  header->data_bytes = at;
  return Status::Ok();
}

Result<Bytes> EncodeHeader(const DataFileHeader& header, std::uint32_t* header_crc32c) {
  VARVE_RETURN_IF_ERROR(CheckAliases(header));
  const ChunkNames names(header);
  const std::string values_name = ObjectsName(header);
  const std::uint64_t values_begin = header.chunks.empty() ? 0 : header.chunks.back().bytes.end;
  const bool has_values = header.data_bytes > values_begin;

  std::string json = R"({"__metadata__":{"format":"pt")";
  if (const std::string info = ShardingInfo(header, names, values_name, has_values);
      !info.empty()) {
    json += R"(,"DCP_VERSION":"1.0","DCP_SHARDING_INFO":)";
    AppendJsonString(info, &json);
  }
  json += ",\"varve\":";
  AppendJsonString(VarveJson(header, names), &json);
  json += "}";
  for (std::size_t i = 0; i < header.chunks.size(); ++i) {
    AppendChunkEntry(header.chunks[i], names[i], &json);
  }
  if (has_values) {
    AppendEntry(values_name, "U8", {header.data_bytes - values_begin},
                {values_begin, header.data_bytes}, &json);
  }
  json += "}";
  const std::uint64_t total = RoundUp(json.size() + 8, kDataAlignment);
  if (total - 8 > kMaxHeaderBytes) {
    return InvalidArgument("header of " + std::to_string(json.size()) + " bytes" +
                           std::string(kTooLargeHeader));
  }
  json.append(total - 8 - json.size(), ' ');
  Bytes out;
  out.reserve(total);
  ByteWriter writer(&out);
  writer.U64(json.size());
  writer.Raw(json);
  VARVE_RETURN_IF_ERROR(SealHeader(&out, header_crc32c));
  return out;
}

Status FillHeader(const std::vector<std::uint32_t>& block_crc32c,
                  const std::vector<Hash128>& contents, Bytes* encoded,
                  std::uint32_t* header_crc32c) {
  std::string blocks;
  blocks.reserve(block_crc32c.size() * 8);
  for (const std::uint32_t crc : block_crc32c) {
    blocks += HexU32(crc);
  }
  std::string hashes;
  hashes.reserve(contents.size() * 32);
  for (const Hash128& content : contents) {
    AppendHex(content.bytes, &hashes);
  }
  std::size_t at = encoded->find(kHeaderChecksumField);
  VARVE_RETURN_IF_ERROR(FillField(kBlocksField, blocks, &at, encoded));
  VARVE_RETURN_IF_ERROR(FillField(kContentsField, hashes, &at, encoded));
  return SealHeader(encoded, header_crc32c);
}

Result<std::uint64_t> HeaderBytesFromPrefix(std::string_view first_8_bytes) {
  ByteReader reader(first_8_bytes);
  const std::uint64_t json_bytes = reader.U64();
  VARVE_RETURN_IF_ERROR(reader.Finish());
  if (json_bytes > kMaxHeaderBytes) {
    return DataLoss("header length " + std::to_string(json_bytes) + " exceeds 100000000");
  }
  if ((json_bytes + 8) % kDataAlignment != 0) {
    return DataLoss("header length " + std::to_string(json_bytes) +
                    " does not put data on a 4096-byte boundary");
  }
  return json_bytes + 8;
}

Result<std::uint32_t> HeaderChecksum(std::string_view bytes) {
  const std::size_t field = bytes.find(kHeaderChecksumField);
  if (field == std::string_view::npos ||
      bytes.size() - field < kHeaderChecksumField.size() + kZeroHeaderChecksum.size()) {
    return DataLoss("header carries no Varve checksum");
  }
  const std::size_t digits = field + kHeaderChecksumField.size();
  std::uint32_t crc = Crc32c(AsByteSpan(bytes.substr(0, digits)));
  crc = Crc32cExtend(crc, AsByteSpan(kZeroHeaderChecksum));
  return Crc32cExtend(crc, AsByteSpan(bytes.substr(digits + kZeroHeaderChecksum.size())));
}

Status CheckHeader(std::string_view bytes, std::uint32_t want) {
  VARVE_ASSIGN_OR_RETURN(const std::uint32_t computed, HeaderChecksum(bytes));
  const std::size_t digits = bytes.find(kHeaderChecksumField) + kHeaderChecksumField.size();
  const std::string_view stored = bytes.substr(digits, kZeroHeaderChecksum.size());
  if (computed != want || stored != HexU32(want)) {
    return DataLoss("header checksum mismatch (want " + HexU32(want) + ", stored " +
                    std::string(stored) + ", computed " + HexU32(computed) + ")");
  }
  return Status::Ok();
}

}  // namespace varve
