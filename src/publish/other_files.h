/// The files in a checkpoint's directory that are not part of the checkpoint: they are found, and
/// brought into the directory of a checkpoint that replaces it. The account of the steps is at the
/// top of other_files.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// Without hard links, other files are copied if all of them together have at most so many bytes.
inline constexpr std::uint64_t kMaxCopiedBytes = std::uint64_t{64} << 20;

/// A file or folder that is not part of the checkpoint.
struct OtherFile {
  std::string name;  ///< Relative to the checkpoint's directory, with '/' below it.
  bool is_directory = false;
  bool is_link = false;    ///< A symbolic link, whatever it leads to.
  std::uint64_t size = 0;  ///< Of a file.
};

/// A file that is part of the checkpoint.
struct OwnFile {
  std::string name;  ///< As above.
  bool is_index = false;
  bool fits_pattern = false;  ///< The name tells; else only the index does.
};

/// The content of a checkpoint's directory.
struct Inventory {
  std::vector<OtherFile> others;  ///< A folder comes before its files.
  std::vector<OwnFile> own;
  std::vector<std::string> folders;  ///< All; a folder comes before those in it.
  std::string note_of_removal;       ///< OwnNames::NoteOfRemoval.
};

/// Lists a checkpoint's directory. Symbolic links are not followed. Errors: those of Storage::List.
Result<Inventory> TakeInventory(Storage& storage, const std::string& directory);

/// A file that a new checkpoint will have.
struct BroughtFile {
  std::string name;                      ///< Relative to the checkpoint's directory.
  const std::string* content = nullptr;  ///< Null where it is not known yet.
  std::string same_as{};                 ///< A file of this content; empty where none is known.
};

/// Returns an error when a file of `others`, which are in `directory`, is in the way of one of
/// `brought`. One with the same content is not. Errors: FailedPrecondition, naming the file.
Status CheckNoneIsTaken(Storage& storage, const std::string& directory,
                        const std::vector<OtherFile>& others,
                        const std::vector<BroughtFile>& brought);

/// Returns an error when `others`, which are in `directory`, could not come into `staging`, before
/// anything has been written there. Errors: FailedPrecondition, naming files.
Status CheckCanKeep(Storage& storage, const std::string& directory,
                    const std::vector<OtherFile>& others, const std::string& staging);

/// Links `others` into `staging`, or copies them; everything but the names in `staging` itself is
/// durable then. One that has disappeared is left out. Errors: FailedPrecondition when the new
/// checkpoint has a file of that name, or when a file can be neither linked nor copied.
Status KeepOtherFiles(Storage& storage, const std::string& directory,
                      const std::vector<OtherFile>& others, const std::string& staging);

/// Returns true when both names stand for one file, or for files or links with the same content.
bool HoldTheSame(Storage& storage, const std::string& a, const std::string& b);

}  // namespace varve
