#include "catalogue/step_notes.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "catalogue/formats.h"
#include "catalogue/names.h"
#include "catalogue/open.h"
#include "catalogue/side_files.h"

namespace varve {
namespace {

constexpr std::uint64_t kMaxStepNoteBytes = std::uint64_t{1} << 20;

/// Returns the directory of the files of a checkpoint that has no commit record. In an object store
/// a save in another format puts them below the checkpoint's own, in a directory that its index
/// names; a copy that was uploaded has them beside the index.
Result<std::string> DirectoryOfFiles(Storage& storage, const std::string& directory) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage.List(directory));
  std::vector<std::string> data;
  for (const DirectoryEntry& entry : entries) {
    if (!entry.is_directory && entry.name == kStepNoteName) {
      return directory;
    }
    if (entry.is_directory && IsDataDirectoryName(entry.name)) {
      data.push_back(entry.name);
    }
  }
  if (data.size() > 1) {  // One is the checkpoint's; what dead saves have left lies beside it.
    VARVE_ASSIGN_OR_RETURN(const auto names, IndexedNames(storage, directory, entries));
    std::erase_if(data, [&](const std::string& one) {
      return std::none_of(names.begin(), names.end(),
                          [&](const std::string& name) { return DataDirectoryOf(name) == one; });
    });
  }
  return data.size() == 1 ? JoinPath(directory, data.front()) : directory;
}

/// Returns the note of a checkpoint that has no commit record, or none that can be read.
Result<std::optional<StepNote>> NoteWithoutRecord(Storage& storage, const std::string& directory) {
  const auto files = DirectoryOfFiles(storage, directory);
  if (TellsNothing(storage, directory, files.status())) {
    return files.status();
  }
  const auto text = ReadWholeFile(storage, JoinPath(files.ok() ? *files : directory, kStepNoteName),
                                  kMaxStepNoteBytes);
  if (TellsNothing(storage, directory, text.status())) {
    return text.status();
  }
  auto note = text.ok() ? DecodeStepNote(*text) : Result<StepNote>(text.status());
  return note.ok() ? std::optional(*std::move(note)) : std::nullopt;
}

}  // namespace

Result<std::optional<StepNote>> ReadStepNote(Storage& storage, const std::string& path,
                                             bool displaced) {
  const std::string directory =
      displaced && storage.List(DisplacedPath(path)).ok() ? DisplacedPath(path) : path;
  const auto record = ReadCommitRecord(storage, directory);
  if (!record.ok()) {
    return TellsNothing(storage, directory, record.status())
               ? record.status()
               : NoteWithoutRecord(storage, directory);
  }
  for (const StoredFile& file : record->side_files) {
    if (file.name == kStepNoteName) {
      const std::string files =
          record->directory.empty() ? directory : JoinPath(directory, record->directory);
      const auto text = ReadSideFile(storage, files, file);
      if (!text.ok() &&
          ReadCommitRecord(storage, directory).status().code() == StatusCode::kNotFound) {
        return std::optional<StepNote>();  // The step has been removed since it was listed.
      }
      VARVE_RETURN_IF_ERROR(text.status());
      auto note = DecodeStepNote(*text);  // A file of that name may be anyone's.
      return note.ok() ? std::optional(*std::move(note)) : std::nullopt;
    }
  }
  return std::optional<StepNote>();
}

}  // namespace varve
