// The notes of uploads that are promised and not done. The note of NAME is `.NAME.varve-upload`
// beside it, with the target's name as its content. It is written before the save of NAME begins,
// so that a crash at any time leaves either a note or no checkpoint; the upload's end removes it.

#include <algorithm>
#include <utility>

#include "catalogue/family.h"
#include "catalogue/names.h"
#include "catalogue/open.h"
#include "publish/claim.h"
#include "publish/publisher.h"
#include "varve/upload.h"

namespace varve {
namespace {

constexpr std::uint64_t kMaxNoteBytes = 4096;

Result<std::optional<std::string>> ReadNote(Storage& storage, const std::string& path) {
  auto text = ReadWholeFile(storage, UploadNotePath(path), kMaxNoteBytes);
  if (text.status().code() == StatusCode::kNotFound) {
    return std::optional<std::string>();
  }
  VARVE_RETURN_IF_ERROR(text.status());
  while (text->ends_with('\n')) {
    text->pop_back();
  }
  return std::optional<std::string>(*std::move(text));
}

}  // namespace

Status NotePendingUpload(const std::string& path, const std::string& to, Storage& storage) {
  VARVE_ASSIGN_OR_RETURN(const std::string where, ResolvePath(path, storage));
  VARVE_ASSIGN_OR_RETURN(const std::string target, ResolvePath(to, storage));
  VARVE_RETURN_IF_ERROR(CheckCheckpointName(where));
  const auto publisher = PublisherOf(storage, where);
  VARVE_RETURN_IF_ERROR(publisher->CheckRenames(where, "a note of an upload"));
  if (target.size() >= kMaxNoteBytes || target.find('\n') != std::string::npos) {
    return InvalidArgument("upload to " + target + ": not a name");
  }
  VARVE_RETURN_IF_ERROR(MakeDirectories(storage, ParentPath(where)));
  return publisher->PublishFile(
      UploadNotePath(where), {.replaces = true},
      [&](const std::string& file) { return WriteWholeFile(storage, file, target + "\n"); });
}

Status ForgetPendingUpload(const std::string& path, Storage& storage) {
  VARVE_ASSIGN_OR_RETURN(const std::string where, ResolvePath(path, storage));
  return storage.Remove(UploadNotePath(where));
}

Result<std::optional<std::string>> PendingUploadOf(const std::string& path, Storage& storage) {
  VARVE_ASSIGN_OR_RETURN(const std::string where, ResolvePath(path, storage));
  return ReadNote(storage, where);
}

Result<std::vector<PendingUpload>> ListPendingUploads(const std::string& directory,
                                                      Storage& storage) {
  VARVE_ASSIGN_OR_RETURN(const std::string where, ResolvePath(directory, storage));
  auto entries = storage.List(where);
  const StatusCode code = entries.status().code();
  if (code == StatusCode::kNotFound || code == StatusCode::kUnimplemented ||  // A web server's.
      (code == StatusCode::kInvalidArgument && IsRemote(storage, where)) ||   // One object.
      entries.status().details().system_error == ENOTDIR) {                   // One file.
    return std::vector<PendingUpload>{};
  }
  VARVE_RETURN_IF_ERROR(entries.status());
  std::stable_sort(entries->begin(), entries->end(),
                   [](const DirectoryEntry& a, const DirectoryEntry& b) {
                     return a.modified_ns < b.modified_ns;
                   });
  std::vector<PendingUpload> pending;
  for (const DirectoryEntry& entry : *entries) {
    const auto name = entry.is_directory ? std::nullopt : ParseUploadNote(entry.name);
    if (!name) {
      continue;
    }
    std::string path = JoinPath(where, *name);
    VARVE_ASSIGN_OR_RETURN(auto to, ReadNote(storage, path));
    if (to) {
      pending.push_back({std::move(path), *std::move(to)});
    }
  }
  return pending;
}

}  // namespace varve
