#include "catalogue/scan.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "base/ascii.h"
#include "base/bytes.h"
#include "base/checksum.h"
#include "base/stop.h"
#include "catalogue/names.h"
#include "catalogue/open.h"

namespace varve {
namespace {

constexpr std::size_t kNamedDigits = 12;  // See DataFileName.

Result<CheckedHeader> ReadHeader(Storage& storage, const std::string& path,
                                 const std::string& name) {
  VARVE_ASSIGN_OR_RETURN(const auto file, storage.OpenForRead(path));
  VARVE_ASSIGN_OR_RETURN(const std::string bytes, ReadHeaderBytes(*file));
  CheckedHeader checked;
  VARVE_ASSIGN_OR_RETURN(checked.header, DecodeHeader(bytes, &checked.header_crc32c));
  checked.header_bytes = bytes.size();
  if (file->size() != checked.header_bytes + checked.header.data_bytes) {
    return DataLoss("is " + std::to_string(file->size()) + " bytes long instead of " +
                    std::to_string(checked.header_bytes + checked.header.data_bytes));
  }
  if (DataFileName(checked.header) != name) {
    return DataLoss("calls itself " + DataFileName(checked.header) +
                    "; data files must not be renamed");
  }
  return checked;
}

/// The name of a data file, taken apart.
struct ParsedName {
  std::uint32_t rank = 0;
  std::uint32_t world_size = 0;
  std::string save;  ///< As in NamedSet.
};

/// Takes the number at the front of `text` off it.
std::optional<std::uint32_t> TakeNumber(std::string_view* text) {
  std::uint32_t number = 0;
  const auto parsed = std::from_chars(text->data(), text->data() + text->size(), number);
  if (parsed.ec != std::errc()) {
    return std::nullopt;
  }
  text->remove_prefix(static_cast<std::size_t>(parsed.ptr - text->data()));
  return number;
}

std::optional<ParsedName> ParseName(std::string_view name) {
  if (!TakeText(&name, "data-")) {
    return std::nullopt;
  }
  const auto rank = TakeNumber(&name);
  const bool of = TakeText(&name, "-of-");
  const auto world_size = TakeNumber(&name);
  if (!rank || !of || !world_size || *rank >= *world_size) {
    return std::nullopt;
  }
  const std::size_t digits = TakeText(&name, "-") ? kNamedDigits : 0;
  const std::string_view save = name.substr(0, digits);
  return name.substr(save.size()) == ".safetensors"
             ? std::optional(ParsedName{*rank, *world_size, std::string(save)})
             : std::nullopt;
}

Result<ScanResult> ScanFiles(Storage& storage, const std::string& directory,
                             const std::vector<std::string>& names, const std::stop_token& stop) {
  ScanResult result;
  std::map<SaveId, FileGroup> groups;
  for (const std::string& name : names) {
    VARVE_RETURN_IF_ERROR(CheckStop(stop));
    const std::string path = JoinPath(directory, name);
    auto checked = ReadHeader(storage, path, name);
    if (!checked.ok()) {
      result.unread.push_back({name, checked.status().Annotate(path)});
      continue;
    }
    FileGroup& group = groups[checked->header.identity.save_id];
    group.save_id = checked->header.identity.save_id;
    group.world_size = std::max(group.world_size, checked->header.identity.world_size);
    group.created_ns = std::max(group.created_ns, checked->header.identity.created_ns);
    group.files.push_back(std::move(*checked));
  }
  for (auto& [id, group] : groups) {
    std::sort(group.files.begin(), group.files.end(),
              [](const CheckedHeader& a, const CheckedHeader& b) {
                return a.header.identity.rank < b.header.identity.rank;
              });
    if (group.has_rank_0()) {
      group.created_ns = group.files.front().header.identity.created_ns;
    }
    std::size_t next = 0;
    for (std::uint32_t rank = 0; rank < group.world_size; ++rank) {
      if (next < group.files.size() && group.files[next].header.identity.rank == rank) {
        ++next;
      } else {
        group.missing.push_back(rank);
      }
    }
    result.groups.push_back(std::move(group));
  }
  std::stable_sort(
      result.groups.begin(), result.groups.end(),
      [](const FileGroup& a, const FileGroup& b) { return a.created_ns > b.created_ns; });
  return result;
}

}  // namespace

std::string OccupantOf(const SaveId& id) { return "save " + NamedSave(id); }

Result<std::string> OccupantOf(Storage& storage, const std::string& directory) {
  const auto record = ReadCommitRecord(storage, directory);
  if (record.ok()) {
    return OccupantOf(record->save_id);
  }
  const StatusCode code = record.status().code();
  if (code != StatusCode::kNotFound && code != StatusCode::kDataLoss) {
    return record.status();
  }
  const auto entries = storage.List(directory);
  if (entries.status().code() == StatusCode::kNotFound || (entries.ok() && entries->empty())) {
    return std::string();
  }
  VARVE_RETURN_IF_ERROR(entries.status());
  if (const auto sets = GroupByName(*entries); !sets.empty() && sets.front().complete()) {
    return "save " + sets.front().save;
  }
  std::string files;
  for (const DirectoryEntry& entry : *entries) {
    files += entry.name + '\n' + std::to_string(entry.size) + '\n' +
             std::to_string(entry.modified_ns) + '\n';
  }
  return "files " + Hex(Xxh3(AsByteSpan(files)).bytes);
}

Status TryHeader(Storage& storage, const std::string& directory, const std::string& name) {
  const std::string path = JoinPath(directory, name);
  return ReadHeader(storage, path, name).status().Annotate(path);
}

std::optional<std::uint64_t> BeginningOfSave(Storage& storage, const std::string& directory) {
  const auto entries = storage.List(directory);
  const auto sets = entries.ok() ? GroupByName(*entries) : std::vector<NamedSet>();
  if (sets.empty()) {
    return std::nullopt;
  }
  const std::string& name = sets.front().files.begin()->second;
  const auto read = ReadHeader(storage, JoinPath(directory, name), name);
  return read.ok() ? std::optional(read->header.identity.created_ns) : std::nullopt;
}

Result<std::string> ReadHeaderBytes(ReadableFile& file) {
  std::string prefix(8, '\0');
  VARVE_RETURN_IF_ERROR(
      file.ReadAt(0, std::as_writable_bytes(std::span(prefix.data(), prefix.size()))));
  VARVE_ASSIGN_OR_RETURN(const std::uint64_t total, HeaderBytesFromPrefix(prefix));
  if (total > file.size()) {
    return DataLoss("header of " + std::to_string(total) + " bytes in a file of " +
                    std::to_string(file.size()));
  }
  std::string bytes(total, '\0');
  VARVE_RETURN_IF_ERROR(
      file.ReadAt(0, std::as_writable_bytes(std::span(bytes.data(), bytes.size()))));
  return bytes;
}

bool IsRankFileName(std::string_view name) {
  const auto parsed = ParseName(name);
  return parsed && parsed->save.size() == kNamedDigits;
}

std::string NamedSave(const SaveId& id) { return ToString(id).substr(0, kNamedDigits); }

std::vector<NamedSet> GroupByName(const std::vector<DirectoryEntry>& entries) {
  std::map<std::pair<std::string, std::uint32_t>, NamedSet> sets;
  for (const DirectoryEntry& entry : entries) {
    const auto name = entry.is_directory ? std::nullopt : ParseName(entry.name);
    if (name) {
      NamedSet& set = sets[{name->save, name->world_size}];
      set.save = name->save;
      set.world_size = name->world_size;
      set.files.emplace(name->rank, entry.name);
    }
  }
  std::vector<NamedSet> listed;
  listed.reserve(sets.size());
  for (auto& [key, set] : sets) {
    listed.push_back(std::move(set));
  }
  return listed;
}

Result<ScanResult> ScanDataFiles(Storage& storage, const std::string& directory,
                                 const std::stop_token& stop) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage.List(directory));
  std::vector<std::string> names;
  for (const DirectoryEntry& entry : entries) {
    if (!entry.is_directory && IsDataFileName(entry.name)) {
      names.push_back(entry.name);
    }
  }
  return ScanFiles(storage, directory, names, stop);
}

Result<ScanResult> ScanSet(Storage& storage, const std::string& directory, const NamedSet& set,
                           const std::stop_token& stop) {
  std::vector<std::string> names;
  names.reserve(set.files.size());
  for (const auto& [rank, name] : set.files) {
    names.push_back(name);
  }
  return ScanFiles(storage, directory, names, stop);
}

std::string NameRanks(const std::vector<std::uint32_t>& ranks) {
  constexpr std::size_t kMaxNamed = 16;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), kMaxNamed); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  if (ranks.size() > kMaxNamed) {
    text += " and " + std::to_string(ranks.size() - kMaxNamed) + " more";
  }
  return text;
}

}  // namespace varve
