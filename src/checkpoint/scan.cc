#include "checkpoint/scan.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>

#include "checkpoint/names.h"

namespace varve {
namespace {

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

}  // namespace

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

Result<ScanResult> ScanDataFiles(Storage& storage, const std::string& directory) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage.List(directory));
  ScanResult result;
  std::map<SaveId, FileGroup> groups;
  for (const DirectoryEntry& entry : entries) {
    if (entry.is_directory || !IsDataFileName(entry.name)) {
      continue;
    }
    const std::string path = JoinPath(directory, entry.name);
    auto checked = ReadHeader(storage, path, entry.name);
    if (!checked.ok()) {
      result.damaged.push_back(checked.status().Annotate(path));
      continue;
    }
    FileGroup& group = groups[checked->header.save_id];
    group.save_id = checked->header.save_id;
    group.world_size = std::max(group.world_size, checked->header.world_size);
    group.created_ns = std::max(group.created_ns, checked->header.created_ns);
    group.files.push_back(std::move(*checked));
  }
  for (auto& [id, group] : groups) {
    std::sort(group.files.begin(), group.files.end(),
              [](const CheckedHeader& a, const CheckedHeader& b) {
                return a.header.rank < b.header.rank;
              });
    std::size_t next = 0;
    for (std::uint32_t rank = 0; rank < group.world_size; ++rank) {
      if (next < group.files.size() && group.files[next].header.rank == rank) {
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
