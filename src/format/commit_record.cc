#include "format/commit_record.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include <simdjson.h>

#include "base/checksum.h"
#include "base/json_parser.h"
#include "format/json_writer.h"
#include "format/relative_name.h"
#include "varve/metadata.h"

namespace varve {
namespace {

// The record's own checksum comes last and counts as zeros while it is computed.
constexpr std::string_view kChecksumField = "\"crc32c\": \"";
constexpr std::string_view kZeroChecksum = "00000000";
constexpr std::uint32_t kHashesVersion =
    4;  // Of the format: manifests with hashes behind the frame.
constexpr std::size_t kMaxRecordBytes = std::size_t{64} << 10;

Status MalformedRecord(std::string_view what) {
  return DataLoss("malformed varve.json: " + std::string(what));
}

std::uint32_t Checksum(std::string_view bytes, std::size_t digits) {
  std::uint32_t crc = Crc32c(AsByteSpan(bytes.substr(0, digits)));
  crc = Crc32cExtend(crc, AsByteSpan(kZeroChecksum));
  return Crc32cExtend(crc, AsByteSpan(bytes.substr(digits + kZeroChecksum.size())));
}

/// Appends the side files, one a line.
void AppendSideFiles(const std::vector<StoredFile>& files, Bytes* out) {
  *out += ",\n  \"side_files\": [";
  const char* separator = "\n    ";
  for (const StoredFile& file : files) {
    *out += separator;
    *out += "{\"name\": ";
    AppendJsonString(file.name, out);
    *out += ", \"bytes\": " + std::to_string(file.size) + ", \"crc32c\": \"" + HexU32(file.crc32c) +
            "\"}";
    separator = ",\n    ";
  }
  *out += "\n  ]";
}

Result<std::vector<StoredFile>> DecodeSideFiles(const simdjson::dom::object& record) {
  std::vector<StoredFile> files;
  simdjson::dom::array entries;
  const auto found = record["side_files"].get(entries);
  if (found == simdjson::NO_SUCH_FIELD) {
    return files;
  }
  if (found) {
    return MalformedRecord("side_files is not an array");
  }
  for (const simdjson::dom::element entry : entries) {
    StoredFile file;
    std::string_view name;
    std::string_view crc;
    if (entry["name"].get(name) || entry["bytes"].get(file.size) || entry["crc32c"].get(crc) ||
        !ParseHexU32(crc, &file.crc32c)) {
      return MalformedRecord("a side file without name, bytes or crc32c");
    }
    file.name = std::string(name);
    if (!IsRelativeName(file.name)) {
      return MalformedRecord("the side file \"" + file.name +
                             "\" is not in the checkpoint's directory");
    }
    files.push_back(std::move(file));
  }
  if (!std::is_sorted(files.begin(), files.end(),
                      [](const StoredFile& a, const StoredFile& b) { return a.name < b.name; })) {
    return MalformedRecord("side files out of order");
  }
  return files;
}

}  // namespace

CommitRecord MakeCommitRecord(const Metadata& metadata, const EncodedManifest& manifest) {
  return {kFormatVersion,
          metadata.save_id,
          metadata.world_size,
          metadata.files.size(),
          metadata.tensors.size(),
          metadata.objects.size(),
          metadata.TotalBytes(),
          manifest.bytes.size(),
          manifest.bytes.size(),
          manifest.crc32c,
          "varve " + std::string(Version()),
          metadata.side_files,
          {}};
}

Bytes EncodeCommitRecord(const CommitRecord& record) {
  Bytes out = "{\n  \"varve_format\": " + std::to_string(record.format_version);
  out += ",\n  \"save_id\": \"" + ToString(record.save_id) + "\"";
  out += ",\n  \"world_size\": " + std::to_string(record.world_size);
  out += ",\n  \"files\": " + std::to_string(record.file_count);
  out += ",\n  \"tensors\": " + std::to_string(record.tensor_count);
  out += ",\n  \"objects\": " + std::to_string(record.object_count);
  out += ",\n  \"total_bytes\": " + std::to_string(record.total_bytes);
  out += ",\n  \"manifest_bytes\": " + std::to_string(record.manifest_bytes);
  if (record.format_version == kHashesVersion) {
    out += ",\n  \"frame_bytes\": " + std::to_string(record.frame_bytes);
  }
  out += ",\n  \"manifest_crc32c\": \"" + HexU32(record.manifest_crc32c) + "\"";
  out += ",\n  \"writer\": ";
  AppendJsonString(record.writer, &out);
  if (!record.directory.empty()) {
    out += ",\n  \"directory\": ";
    AppendJsonString(record.directory, &out);
  }
  if (!record.side_files.empty()) {
    AppendSideFiles(record.side_files, &out);
  }
  out += ",\n  " + std::string(kChecksumField) + std::string(kZeroChecksum) + "\"\n}\n";
  const std::size_t digits = out.rfind(kChecksumField) + kChecksumField.size();
  out.replace(digits, kZeroChecksum.size(), HexU32(Checksum(out, digits)));
  return out;
}

Result<CommitRecord> DecodeCommitRecord(std::string_view bytes) {
  if (bytes.size() > kMaxRecordBytes) {
    return MalformedRecord("larger than 64 KiB");
  }
  const std::size_t field = bytes.rfind(kChecksumField);
  if (field == std::string_view::npos ||
      bytes.size() - field < kChecksumField.size() + kZeroChecksum.size()) {
    return MalformedRecord("no checksum");
  }
  const std::size_t digits = field + kChecksumField.size();
  const std::string computed = HexU32(Checksum(bytes, digits));
  if (bytes.substr(digits, kZeroChecksum.size()) != computed) {
    return DataLoss("varve.json checksum mismatch (computed " + computed + ")");
  }
  JsonParser parser;
  simdjson::dom::object object;
  if (parser.Parse(bytes).get(object)) {
    return MalformedRecord("not a JSON object");
  }
  CommitRecord record;
  std::uint64_t version = 0;
  if (object["varve_format"].get(version)) {
    return MalformedRecord("no format version");
  }
  if (version > kFormatVersion) {
    return Unimplemented("checkpoint has format version " + std::to_string(version) +
                         ", this Varve reads up to " + std::to_string(kFormatVersion) +
                         "; use a newer Varve");
  }
  record.format_version = static_cast<std::uint32_t>(version);
  std::string_view save_id;
  std::string_view manifest_crc;
  std::string_view writer;
  std::uint64_t world_size = 0;
  if (object["save_id"].get(save_id) || object["world_size"].get(world_size) ||
      object["files"].get(record.file_count) || object["tensors"].get(record.tensor_count) ||
      object["objects"].get(record.object_count) || object["total_bytes"].get(record.total_bytes) ||
      object["manifest_bytes"].get(record.manifest_bytes) ||
      object["manifest_crc32c"].get(manifest_crc) || object["writer"].get(writer)) {
    return MalformedRecord("a member is missing or of the wrong type");
  }
  record.frame_bytes = record.manifest_bytes;
  if (version == kHashesVersion && (object["frame_bytes"].get(record.frame_bytes) ||
                                    record.frame_bytes > record.manifest_bytes)) {
    return MalformedRecord("frame_bytes");
  }
  if (world_size > std::numeric_limits<std::uint32_t>::max()) {
    return MalformedRecord("a world size of " + std::to_string(world_size));
  }
  record.world_size = static_cast<std::uint32_t>(world_size);
  record.writer = std::string(writer);
  if (!ParseHex(save_id, record.save_id.bytes) ||
      !ParseHexU32(manifest_crc, &record.manifest_crc32c)) {
    return MalformedRecord("bad hex");
  }
  std::string_view directory;
  if (const auto found = object["directory"].get(directory); found != simdjson::NO_SUCH_FIELD) {
    if (found || !IsRelativeName(directory) || directory.find('/') != std::string_view::npos) {
      return MalformedRecord("a directory that is not beside it");
    }
    record.directory = std::string(directory);
  }
  VARVE_ASSIGN_OR_RETURN(record.side_files, DecodeSideFiles(object));
  return record;
}

}  // namespace varve
