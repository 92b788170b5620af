#include "interop/safetensors/hf_checksums.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <simdjson.h>

#include "base/checked.h"
#include "base/checksum.h"
#include "format/data_file.h"
#include "format/json_writer.h"
#include "interop/json_members.h"

namespace varve {
namespace {

constexpr std::size_t kHexDigits = 8;

Status MalformedChecksums(std::string_view what) {
  return DataLoss(std::string(kHfChecksumsName) + " is malformed: " + std::string(what));
}

Result<std::uint64_t> NumberOf(const JsonMembers& members, std::string_view name) {
  const simdjson::dom::element* const found = FindJsonMember(members, name);
  std::uint64_t number = 0;
  if (found == nullptr || found->get(number)) {
    return MalformedChecksums("no number \"" + std::string(name) + "\"");
  }
  return number;
}

Status DecodeFile(const JsonMembers& members, std::uint64_t block_bytes, DataFile* file) {
  VARVE_ASSIGN_OR_RETURN(const std::uint64_t size, NumberOf(members, "size"));
  if (size != file->size) {
    return DataLoss(file->name + " has " + std::to_string(file->size) +
                    " bytes, its checksums in " + std::string(kHfChecksumsName) + " are of " +
                    std::to_string(size) +
                    ": it was cut, or another program has written it anew; in that case remove " +
                    std::string(kHfChecksumsName));
  }
  const simdjson::dom::element* const found = FindJsonMember(members, "crc32c");
  std::string_view text;
  if (found == nullptr || found->get(text) ||
      text.size() != DivideUp(size, block_bytes) * kHexDigits) {
    return MalformedChecksums("not one checksum for each block of " + file->name);
  }
  std::vector<std::uint32_t> sums(text.size() / kHexDigits);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (!ParseHexU32(text.substr(i * kHexDigits, kHexDigits), &sums[i])) {
      return MalformedChecksums("a checksum of " + file->name + " is not 8 hex digits");
    }
  }
  file->block_crc32c = std::move(sums);
  return Status::Ok();
}

}  // namespace

std::string EncodeHfChecksums(const Metadata& metadata) {
  std::string json = R"({"format":"varve-checksums","version":1,"block_bytes":)" +
                     std::to_string(metadata.block_bytes) + R"(,"files":{)";
  bool first = true;
  for (const DataFile& file : metadata.files) {
    json += first ? "" : ",";
    first = false;
    AppendJsonString(file.name, &json);
    json += ":{\"size\":" + std::to_string(file.size) + ",\"crc32c\":\"";
    for (const std::uint32_t sum : file.block_crc32c) {
      json += HexU32(sum);
    }
    json += "\"}";
  }
  return json + "}}";
}

Status DecodeHfChecksums(std::string_view json, Metadata* metadata) {
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  if (const auto error = parser.parse(json.data(), json.size()).get(root); error) {
    return MalformedChecksums(simdjson::error_message(error));
  }
  JsonMembers members;
  VARVE_RETURN_IF_ERROR(ReadJsonMembers(root, kHfChecksumsName, &members));
  const simdjson::dom::element* const format = FindJsonMember(members, "format");
  std::string_view name;
  if (format == nullptr || format->get(name) || name != "varve-checksums") {
    return MalformedChecksums("its format is not varve-checksums");
  }
  VARVE_ASSIGN_OR_RETURN(const std::uint64_t version, NumberOf(members, "version"));
  if (version != 1) {
    return Unimplemented(std::string(kHfChecksumsName) + " has version " + std::to_string(version) +
                         "; this Varve knows 1");
  }
  VARVE_ASSIGN_OR_RETURN(const std::uint64_t block_bytes, NumberOf(members, "block_bytes"));
  if (block_bytes == 0 || block_bytes > kMaxBlockBytes || block_bytes % kDataAlignment != 0) {
    return MalformedChecksums("block_bytes is no multiple of 4096 up to 8 MiB");
  }
  const simdjson::dom::element* const files = FindJsonMember(members, "files");
  if (files == nullptr) {
    return MalformedChecksums("no \"files\"");
  }
  JsonMembers listed;
  VARVE_RETURN_IF_ERROR(ReadJsonMembers(*files, "files", &listed));
  metadata->block_bytes = block_bytes;
  for (DataFile& file : metadata->files) {
    const simdjson::dom::element* const found = FindJsonMember(listed, file.name);
    if (found != nullptr) {
      JsonMembers one;
      VARVE_RETURN_IF_ERROR(ReadJsonMembers(*found, file.name, &one));
      VARVE_RETURN_IF_ERROR(DecodeFile(one, block_bytes, &file));
    }
  }
  return Status::Ok();
}

}  // namespace varve
