/// The entry of one format whose checkpoints are directories. formats.cc has the table of them, in
/// order. Code that opens, lists, replaces or removes checkpoints uses these entries and names no
/// format. This module writes nothing: save/written_format.h has the entries that write.
#pragma once

#include <cstdint>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "catalogue/opened.h"
#include "varve/catalogue.h"
#include "varve/metadata.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// A directory whose entries have been listed.
struct ListedFolder {
  Storage& storage;
  const std::string& path;
  const std::vector<DirectoryEntry>& entries;
  /// Not 0: so many ranks have saved, and the files of some of them suffice.
  std::uint32_t own_ranks_of = 0;
  std::stop_token stop{};
  /// Where it is set, it gets the first error of listing a folder below, other than NotFound. Code
  /// that removes files, or reports that there is no checkpoint, looks at it after Recognise.
  Status* failed = nullptr;
  /// Where it is set, it gets the files that are missing or too short, and DCP's and Hugging Face's
  /// folders open with what is left: `verify` reads the rest.
  std::vector<Damage>* damages = nullptr;

  [[nodiscard]] bool HasFile(std::string_view name) const;
  [[nodiscard]] bool HasFolder(std::string_view name) const;
  /// Returns true where a file is there that fits a pattern (FitsName), which may have the name of
  /// one folder before it.
  [[nodiscard]] bool Has(std::string_view pattern) const;
};

using Patterns = std::span<const std::string_view>;

struct KnownFormat {
  Format format = Format::kVarve;

  // ---- a directory of it ----

  /// Returns true when the names in the directory are those of this format. Opens no file.
  bool (*recognises)(const ListedFolder& folder) = nullptr;
  /// Returns true when these names are enough to replace or remove the checkpoint; null: always.
  bool (*is_replaceable)(const ListedFolder& folder) = nullptr;
  /// The files of a model under names that any program gives. They are opened, but nothing replaces
  /// or removes them, and they may lie beside the checkpoints of a run.
  bool is_plain_model = false;
  /// Reads the index. Errors: as OpenKnown.
  Result<OpenedIndex> (*open)(const ListedFolder& folder) = nullptr;
  bool opens_own_ranks = false;  ///< `open` heeds ListedFolder::own_ranks_of.

  // ---- its own names: patterns, relative to the checkpoint's directory ----

  /// The files of which the last that is written makes the checkpoint whole.
  Patterns index{};
  /// All other files that its writers name so, whether an index mentions them or not.
  Patterns names{};
  /// Others give such names too, and the files lie in folders below: they count only where the
  /// directory shows this format.
  bool has_common_names = false;
  /// Returns the names of the files that the index at `path` mentions, whether they are there or
  /// not, relative to the index; null where the index names none. Errors: those of reading it.
  Result<std::vector<std::string>> (*names_in_index)(Storage& storage,
                                                     const std::string& path) = nullptr;

  // ---- a directory that cannot be listed, or is not finished ----

  /// Names of which one is always there, whatever the number of ranks. With a `#`: files that are
  /// numbered from 0 on.
  Patterns looked_for{};
  std::string_view beside{};  ///< A file that may be there with the first of these.
  /// The names, NAME-tmp, of directories in which the software writes NAME before it renames it.
  Patterns unfinished{};

  [[nodiscard]] bool IsIndex(std::string_view name) const;
  /// Returns true for a file that its writers name so, an index too.
  [[nodiscard]] bool Owns(std::string_view name) const;
  /// Returns true for a folder in which they put such files.
  [[nodiscard]] bool OwnsFolder(std::string_view name) const;
};

/// Returns true for a name that fits one of the patterns.
bool FitsAny(Patterns patterns, std::string_view name);

/// Returns the table.
std::span<const KnownFormat* const> KnownFormats();

/// Returns the first entry that recognises the directory, or null.
const KnownFormat* Recognise(const ListedFolder& folder);

/// Returns the names of the files that the indexes in the directory mention. Errors: those of
/// reading one.
Result<std::vector<std::string>> NamesInIndexes(const ListedFolder& folder,
                                                const KnownFormat& known);

/// The entries.
extern const KnownFormat kVarveKnown;         // native.cc
extern const KnownFormat kHfaiKnown;          // hfai.cc
extern const KnownFormat kDcpKnown;           // dcp.cc
extern const KnownFormat kOlmoTorchNewKnown;  // olmo.cc
extern const KnownFormat kOlmoLocalKnown;     // olmo_ranks.cc
extern const KnownFormat kOlmoCoreKnown;      // olmo_core.cc
extern const KnownFormat kHfKnown;            // hf.cc
extern const KnownFormat kOlmoLegacyKnown;    // olmo_ranks.cc
extern const KnownFormat kOlmoFullKnown;      // olmo.cc
extern const KnownFormat kSafetensorsKnown;   // hf.cc
extern const KnownFormat kHfTorchKnown;       // hf_torch.cc

}  // namespace varve
