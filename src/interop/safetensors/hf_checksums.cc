#include "interop/safetensors/hf_checksums.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include <simdjson.h>

#include "base/checked.h"
#include "base/checksum.h"
#include "base/json_parser.h"
#include "format/data_file.h"
#include "format/json_writer.h"
#include "format/relative_name.h"
#include "interop/json_members.h"

namespace varve {
namespace {

constexpr std::size_t kHexDigits = 8;
constexpr std::string_view kZeroChecksum = "00000000";
// The last member; its digits count as zeros while the checksum is computed.
constexpr std::string_view kChecksumField = ",\"crc32c\":\"";
constexpr std::string_view kEnd = "\"}";
// As ReadSafetensorsHeader reads at most.
constexpr std::uint64_t kMaxHeaderBytes = (std::uint64_t{256} << 20) + 8;

Status MalformedChecksums(std::string_view what) {
  return DataLoss(std::string(kHfChecksumsName) + " is malformed: " + std::string(what));
}

/// What to do where a file is not the one that Varve wrote.
std::string Remedy() {
  return ". It was damaged, or another program has written it anew; in that case remove " +
         std::string(kHfChecksumsName);
}

/// Returns where the digits of the text's own checksum begin; nothing where it has none.
std::optional<std::size_t> FindTextDigits(std::string_view json) {
  const std::size_t tail = kHexDigits + kEnd.size();
  if (json.size() < tail + kChecksumField.size() || !json.ends_with(kEnd) ||
      !json.substr(0, json.size() - tail).ends_with(kChecksumField)) {
    return std::nullopt;
  }
  return json.size() - tail;
}

std::uint32_t TextChecksum(std::string_view json, std::size_t digits) {
  std::uint32_t crc = Crc32c(AsByteSpan(json.substr(0, digits)));
  crc = Crc32cExtend(crc, AsByteSpan(kZeroChecksum));
  return Crc32cExtend(crc, AsByteSpan(json.substr(digits + kHexDigits)));
}

Status CheckTextChecksum(std::string_view json) {
  const auto digits = FindTextDigits(json);
  std::uint32_t wanted = 0;
  if (!digits || !ParseHexU32(json.substr(*digits, kHexDigits), &wanted)) {
    return MalformedChecksums("it does not end with its own checksum");
  }
  if (const std::uint32_t got = TextChecksum(json, *digits); got != wanted) {
    return DataLoss(std::string(kHfChecksumsName) + ": checksum mismatch (want " + HexU32(wanted) +
                    ", got " + HexU32(got) + ")");
  }
  return Status::Ok();
}

Result<std::uint64_t> NumberOf(const JsonMembers& members, std::string_view name) {
  const simdjson::dom::element* const found = FindJsonMember(members, name);
  std::uint64_t number = 0;
  if (found == nullptr || found->get(number)) {
    return MalformedChecksums("no number \"" + std::string(name) + "\"");
  }
  return number;
}

Result<std::string_view> TextOf(const JsonMembers& members, std::string_view name) {
  const simdjson::dom::element* const found = FindJsonMember(members, name);
  std::string_view text;
  if (found == nullptr || found->get(text)) {
    return MalformedChecksums("no text \"" + std::string(name) + "\"");
  }
  return text;
}

Result<std::uint32_t> SumOf(const JsonMembers& members, std::string_view name) {
  VARVE_ASSIGN_OR_RETURN(const std::string_view text, TextOf(members, name));
  std::uint32_t sum = 0;
  if (!ParseHexU32(text, &sum)) {
    return MalformedChecksums("\"" + std::string(name) + "\" is not 8 hex digits");
  }
  return sum;
}

Result<JsonMembers> MembersOf(const JsonMembers& members, std::string_view name) {
  const simdjson::dom::element* const found = FindJsonMember(members, name);
  if (found == nullptr) {
    return MalformedChecksums("no \"" + std::string(name) + "\"");
  }
  JsonMembers inner;
  VARVE_RETURN_IF_ERROR(ReadJsonMembers(*found, name, &inner));
  return inner;
}

Result<HfChecksums::File> DecodeFile(std::string_view name, const JsonMembers& members,
                                     std::uint64_t block_bytes) {
  HfChecksums::File file;
  file.name = std::string(name);
  VARVE_ASSIGN_OR_RETURN(file.size, NumberOf(members, "size"));
  VARVE_ASSIGN_OR_RETURN(file.header_bytes, NumberOf(members, "header_bytes"));
  VARVE_ASSIGN_OR_RETURN(file.header_crc32c, SumOf(members, "header_crc32c"));
  VARVE_ASSIGN_OR_RETURN(const std::string_view text, TextOf(members, "crc32c"));
  if (file.header_bytes > std::min(file.size, kMaxHeaderBytes)) {
    return MalformedChecksums("header_bytes of " + file.name + " is too large");
  }
  if (text.size() % kHexDigits != 0 ||
      text.size() / kHexDigits != DivideUp(file.size, block_bytes)) {
    return MalformedChecksums("not one checksum for each block of " + file.name);
  }
  file.block_crc32c.resize(text.size() / kHexDigits);
  for (std::size_t i = 0; i < file.block_crc32c.size(); ++i) {
    if (!ParseHexU32(text.substr(i * kHexDigits, kHexDigits), &file.block_crc32c[i])) {
      return MalformedChecksums("a checksum of " + file.name + " is not 8 hex digits");
    }
  }
  return file;
}

Result<StoredFile> DecodeSideFile(std::string_view name, const JsonMembers& members) {
  StoredFile file{std::string(name)};
  if (!IsRelativeName(file.name)) {
    return MalformedChecksums("the side file \"" + file.name + "\" is not in the folder");
  }
  VARVE_ASSIGN_OR_RETURN(file.size, NumberOf(members, "bytes"));
  VARVE_ASSIGN_OR_RETURN(file.crc32c, SumOf(members, "crc32c"));
  return file;
}

Status CheckVersion(const JsonMembers& members) {
  const simdjson::dom::element* const format = FindJsonMember(members, "format");
  std::string_view name;
  if (format == nullptr || format->get(name) || name != "varve-checksums") {
    return MalformedChecksums("its format is not varve-checksums");
  }
  VARVE_ASSIGN_OR_RETURN(const std::uint64_t version, NumberOf(members, "version"));
  return version == 1 ? Status::Ok()
                      : Unimplemented(std::string(kHfChecksumsName) + " has version " +
                                      std::to_string(version) + "; this Varve knows 1");
}

}  // namespace

const HfChecksums::File* HfChecksums::Find(std::string_view name) const {
  const auto at =
      std::lower_bound(files.begin(), files.end(), name,
                       [](const File& file, std::string_view want) { return file.name < want; });
  return at != files.end() && at->name == name ? &*at : nullptr;
}

std::string EncodeHfChecksums(const HfChecksums& checksums) {
  std::string json = R"({"format":"varve-checksums","version":1,"block_bytes":)" +
                     std::to_string(checksums.block_bytes) + R"(,"files":{)";
  bool first = true;
  for (const HfChecksums::File& file : checksums.files) {
    json += first ? "" : ",";
    first = false;
    AppendJsonString(file.name, &json);
    json += ":{\"size\":" + std::to_string(file.size) +
            ",\"header_bytes\":" + std::to_string(file.header_bytes) + ",\"header_crc32c\":\"" +
            HexU32(file.header_crc32c) + "\",\"crc32c\":\"";
    for (const std::uint32_t sum : file.block_crc32c) {
      json += HexU32(sum);
    }
    json += "\"}";
  }
  json += R"(},"side_files":{)";
  first = true;
  for (const StoredFile& file : checksums.side_files) {
    json += first ? "" : ",";
    first = false;
    AppendJsonString(file.name, &json);
    json +=
        ":{\"bytes\":" + std::to_string(file.size) + ",\"crc32c\":\"" + HexU32(file.crc32c) + "\"}";
  }
  json += "}";
  json += kChecksumField;
  const std::size_t digits = json.size();
  json += kZeroChecksum;
  json += kEnd;
  json.replace(digits, kHexDigits, HexU32(TextChecksum(json, digits)));
  return json;
}

Result<HfChecksums> DecodeHfChecksums(std::string_view json) {
  if (json.empty()) {
    return MalformedChecksums("an empty file");
  }
  JsonParser parser;
  simdjson::dom::element root;
  if (const auto error = parser.Parse(json).get(root); error) {
    return MalformedChecksums(simdjson::error_message(error));
  }
  JsonMembers members;
  VARVE_RETURN_IF_ERROR(ReadJsonMembers(root, kHfChecksumsName, &members));
  VARVE_RETURN_IF_ERROR(CheckVersion(members));
  VARVE_RETURN_IF_ERROR(CheckTextChecksum(json));
  HfChecksums checksums;
  VARVE_ASSIGN_OR_RETURN(checksums.block_bytes, NumberOf(members, "block_bytes"));
  if (checksums.block_bytes == 0 || checksums.block_bytes > kMaxBlockBytes ||
      checksums.block_bytes % kDataAlignment != 0) {
    return MalformedChecksums("block_bytes is no multiple of 4096 up to 8 MiB");
  }
  VARVE_ASSIGN_OR_RETURN(const JsonMembers files, MembersOf(members, "files"));
  for (const auto& [name, element] : files) {  // By name.
    JsonMembers one;
    VARVE_RETURN_IF_ERROR(ReadJsonMembers(element, name, &one));
    VARVE_ASSIGN_OR_RETURN(HfChecksums::File file, DecodeFile(name, one, checksums.block_bytes));
    checksums.files.push_back(std::move(file));
  }
  VARVE_ASSIGN_OR_RETURN(const JsonMembers side_files, MembersOf(members, "side_files"));
  for (const auto& [name, element] : side_files) {
    JsonMembers one;
    VARVE_RETURN_IF_ERROR(ReadJsonMembers(element, name, &one));
    VARVE_ASSIGN_OR_RETURN(StoredFile file, DecodeSideFile(name, one));
    checksums.side_files.push_back(std::move(file));
  }
  return checksums;
}

Result<bool> HasWrittenHeader(const HfChecksums::File& wanted, const NamedFile& file) {
  if (file.size != wanted.size) {
    return false;
  }
  VARVE_ASSIGN_OR_RETURN(const std::string header, file.read(0, wanted.header_bytes));
  return header.size() == wanted.header_bytes && Crc32c(AsByteSpan(header)) == wanted.header_crc32c;
}

Status CheckHfFile(const HfChecksums::File& wanted, const NamedFile& file) {
  if (file.size != wanted.size) {
    return DataLoss(file.name + " has " + std::to_string(file.size) + " bytes instead of " +
                    std::to_string(wanted.size) + Remedy());
  }
  VARVE_ASSIGN_OR_RETURN(const bool same, HasWrittenHeader(wanted, file));
  return same ? Status::Ok()
              : DataLoss(file.name + " [0, " + std::to_string(wanted.header_bytes) +
                         "): the header is not the one that was saved (checksum mismatch)" +
                         Remedy());
}

Status ApplyHfChecksums(HfChecksums checksums, const std::vector<NamedFile>& files,
                        Metadata* metadata) {
  for (const HfChecksums::File& wanted : checksums.files) {
    if (std::none_of(files.begin(), files.end(),
                     [&](const NamedFile& file) { return file.name == wanted.name; })) {
      return DataLoss(wanted.name + " has checksums in " + std::string(kHfChecksumsName) +
                      ", and the index does not name it" + Remedy());
    }
  }
  for (const NamedFile& file : files) {
    const HfChecksums::File* const wanted = checksums.Find(file.name);
    if (wanted == nullptr) {
      return DataLoss(file.name + " has no checksums in " + std::string(kHfChecksumsName) +
                      Remedy());
    }
    VARVE_RETURN_IF_ERROR(CheckHfFile(*wanted, file));
  }
  metadata->block_bytes = checksums.block_bytes;
  for (DataFile& file : metadata->files) {
    const HfChecksums::File* const wanted = checksums.Find(file.name);
    if (wanted == nullptr) {
      return Internal(file.name + " is no file of the folder");
    }
    file.block_crc32c = wanted->block_crc32c;
  }
  metadata->side_files = std::move(checksums.side_files);
  return Status::Ok();
}

}  // namespace varve
