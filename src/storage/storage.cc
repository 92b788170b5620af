#include "varve/storage.h"

#include <algorithm>

#include "base/checksum.h"

namespace varve {

Status ReadableFile::ReadAndSum(std::uint64_t offset, std::span<const std::span<std::byte>> parts,
                                std::uint32_t* crc) {
  VARVE_RETURN_IF_ERROR(ReadAt(offset, parts));
  for (const std::span<std::byte> part : parts) {
    *crc = Crc32cExtend(*crc, part);
  }
  return Status::Ok();
}

const DirectoryEntry* FindEntry(const std::vector<DirectoryEntry>& entries, std::string_view name) {
  const auto found = std::lower_bound(
      entries.begin(), entries.end(), name,
      [](const DirectoryEntry& entry, std::string_view wanted) { return entry.name < wanted; });
  return found != entries.end() && found->name == name ? &*found : nullptr;
}

void AskAnew(Storage& storage, const std::string& name) {
  if (RememberedNames* const names = storage.extras().remembered_names) {
    names->AskAnew(ParentPath(name));
    names->AskAnew(name);
  }
}

Result<std::string> ReadWholeFile(Storage& storage, const std::string& name,
                                  std::uint64_t max_bytes) {
  VARVE_ASSIGN_OR_RETURN(const auto file, storage.OpenForRead(name));
  if (file->size() > max_bytes) {
    return DataLoss(name + ": " + std::to_string(file->size()) + " bytes, at most " +
                    std::to_string(max_bytes) + " expected");
  }
  std::string content(file->size(), '\0');
  VARVE_RETURN_IF_ERROR(
      file->ReadAt(0, std::as_writable_bytes(std::span(content.data(), content.size()))));
  return content;
}

Status WriteWholeFile(Storage& storage, const std::string& name, std::string_view content,
                      bool exclusive) {
  VARVE_ASSIGN_OR_RETURN(const auto file, storage.OpenForWrite(name, {.exclusive = exclusive}));
  VARVE_RETURN_IF_ERROR(file->WriteAt(0, std::as_bytes(std::span(content.data(), content.size()))));
  return file->Sync(content.size());
}

std::string JoinPath(std::string_view directory, std::string_view name) {
  std::string path(directory);
  if (!path.empty() && path.back() != '/') {
    path += '/';
  }
  path += name;
  return path;
}

namespace {

std::string_view StripSlashes(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') {
    path.remove_suffix(1);
  }
  return path;
}

}  // namespace

std::string ParentPath(std::string_view path) {
  path = StripSlashes(path);
  const std::size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) {
    return ".";
  }
  return slash == 0 ? "/" : std::string(StripSlashes(path.substr(0, slash)));
}

std::string BaseName(std::string_view path) {
  path = StripSlashes(path);
  const std::size_t slash = path.rfind('/');
  return std::string(slash == std::string_view::npos ? path : path.substr(slash + 1));
}

}  // namespace varve
