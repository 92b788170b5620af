/// The names in a checkpoint's directory that are part of the checkpoint. Every other file there
/// belongs to the user, and no save removes it.
///
/// Part of a checkpoint are
///  - the index: varve.json and manifest.bin; `.metadata` and `__R.metadata`;
///    `model.safetensors.index.json`, and `model.varve-checksums.json` beside it;
///  - what the index names;
///  - what the format's writers name their files, whether an index mentions them or not:
///    `data-R-of-N[-ID].safetensors`; `*.distcp`; `model.safetensors` and
///    `model-I-of-N.safetensors`; hfai's `PART_000.pt`. So stale files of an earlier save go with
///    the checkpoint;
///  - Varve's own hidden names: parts of files, locks of ranks, the mark of a staging directory.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "varve/metadata.h"
#include "varve/storage.h"

namespace varve {

/// OLMo writes this file last. It has the configuration of the training.
inline constexpr std::string_view kOlmoMark = "config.yaml";

/// Returns the format of the checkpoint that these entries of a directory show, or nothing when
/// they show none. Where they show several, it is the one that a reader opens.
std::optional<Format> ShownFormat(const std::vector<DirectoryEntry>& entries);

/// Returns true for a name that DCP's writers give: `.metadata`, `__R.metadata`, these two with
/// `.tmp` behind them while they are written, and `*.distcp`.
bool IsDcpName(std::string_view name);

/// Returns true for `model.safetensors` and `model-I-of-N.safetensors`.
bool IsHfDataName(std::string_view name);

/// Returns true for a name directly in a checkpoint's directory that checkpoints of some format, or
/// Varve, use themselves: no side file may have it, but for `model.safetensors.index.json`.
bool IsReservedFileName(std::string_view name);

class OwnNames {
 public:
  /// Examines the directory of a checkpoint. The index is read only when a name does not tell for
  /// itself; one that cannot be read names nothing. In a directory that shows no checkpoint, which
  /// only a dead save leaves, the patterns of all formats count. Both arguments must outlive this.
  OwnNames(Storage& storage, const std::string& directory,
           const std::vector<DirectoryEntry>& entries);

  /// Returns true for an index file; `name` is relative to the directory.
  [[nodiscard]] bool IsIndex(std::string_view name) const;

  /// Returns true for a name that tells for itself that it is part of the checkpoint.
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
  std::optional<Format> format_;
  std::optional<std::set<std::string>> named_;  ///< By the index, once it has been read.
  /// The directory of the files, and '/', of a copy of a checkpoint of an object store.
  std::string below_;
};

/// Returns true when what ShownFormat sees in a directory with these entries is a checkpoint: in
/// the folders that OLMo's layouts have there are files of theirs.
bool IsCheckpoint(Storage& storage, const std::string& directory,
                  const std::vector<DirectoryEntry>& entries);

/// Returns true when `directory` shows an index or data files of a checkpoint.
bool HoldsCheckpoint(Storage& storage, const std::string& directory);

}  // namespace varve
