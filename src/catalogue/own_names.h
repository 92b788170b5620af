/// The names in a checkpoint's directory that are part of the checkpoint. Every other file there
/// belongs to the user, and no save removes it.
///
/// Part of a checkpoint are
///  - what the format's writers name their files, whether an index mentions them or not
///    (KnownFormat::Owns). So stale files of an earlier save go with the checkpoint;
///  - what the index names;
///  - Varve's own hidden names: parts of files, locks of ranks, the mark of a staging directory;
///  - the note of a manager, also where the record that names it is lost.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "varve/metadata.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

struct KnownFormat;

/// Returns true for a name directly in a checkpoint's directory that checkpoints of some format, or
/// Varve, use themselves: no side file may have it, but for `model.safetensors.index.json`.
bool IsReservedFileName(std::string_view name);

class OwnNames {
 public:
  /// Examines the directory of a checkpoint. The index is read only for a name that fits no pattern
  /// of the format; one that cannot be read names nothing. In a directory that shows no checkpoint,
  /// which only a dead save leaves, the names of all formats count that no other software gives. The
  /// arguments must outlive this.
  OwnNames(Storage& storage, const std::string& directory,
           const std::vector<DirectoryEntry>& entries);

  /// Returns an error where a folder could not be listed that may tell the format: then all else
  /// here may be wrong, and nothing may be removed or moved by it.
  [[nodiscard]] const Status& status() const { return failed_; }

  /// Returns true for an index file; `name` is relative to the directory.
  [[nodiscard]] bool IsIndex(std::string_view name) const;

  /// Returns true for a name that the format's writers give, or Varve.
  [[nodiscard]] bool FitsPattern(std::string_view name) const;

  /// Returns true for a folder that the format's writers make. One without files is then no
  /// user's.
  [[nodiscard]] bool OwnsFolder(std::string_view name) const;

  /// Returns the name of a file that a removal puts into the directory before it begins, because
  /// the names that are left when it is interrupted do not tell the format; empty where they do.
  [[nodiscard]] std::string NoteOfRemoval() const;

  /// Returns true for every part of the checkpoint; of a file in a folder below, `name` has that
  /// folder's name before it.
  [[nodiscard]] bool Contains(const std::string& name);

 private:
  Storage& storage_;
  const std::string& directory_;
  const std::vector<DirectoryEntry>& entries_;
  Status failed_;                               // Before known_, which sets it.
  const KnownFormat* known_;                    ///< Null where the directory shows no checkpoint.
  std::optional<std::set<std::string>> named_;  ///< By the index, once it has been read.
};

/// Returns the format of the checkpoint in a directory with these entries, or nothing where none
/// may be replaced or removed there: the directory holds none, or nothing tells which files are the
/// checkpoint's. It is the format that a reader opens.
std::optional<Format> ShownFormat(Storage& storage, const std::string& directory,
                                  const std::vector<DirectoryEntry>& entries);

/// Returns true when ShownFormat finds a checkpoint.
bool IsCheckpoint(Storage& storage, const std::string& directory,
                  const std::vector<DirectoryEntry>& entries);

/// Returns true when `directory` shows an index or data files of a checkpoint.
bool HoldsCheckpoint(Storage& storage, const std::string& directory);

}  // namespace varve
