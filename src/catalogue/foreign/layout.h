/// The layouts of directories that other software writes, one entry each, and the functions that
/// they share. Private to catalogue/foreign.cc and this folder.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catalogue/opened.h"
#include "interop/decoded.h"
#include "interop/safetensors/decode.h"
#include "interop/zip/directory.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

// A million chunks take 175 MB.
inline constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{8} << 30;
inline constexpr std::uint64_t kMaxJsonBytes = std::uint64_t{1} << 30;

/// A directory whose entries have been listed.
struct ForeignFolder {
  Storage& storage;
  const std::string& path;
  const std::vector<DirectoryEntry>& entries;
  /// Not 0: so many ranks have saved, and the files of some of them suffice.
  std::uint32_t own_ranks_of = 0;

  [[nodiscard]] bool HasFile(std::string_view name) const;
  [[nodiscard]] bool HasFolder(std::string_view name) const;
};

struct ForeignLayout {
  /// Returns true when the names in the directory are those of this layout. Opens nothing.
  bool (*recognises)(const ForeignFolder& folder) = nullptr;
  /// Reads the index. Errors: as OpenForeign.
  Result<OpenedIndex> (*open)(const ForeignFolder& folder) = nullptr;
  bool opens_own_ranks = false;  ///< `open` heeds ForeignFolder::own_ranks_of.
  /// No file of the layout is written last: half of it looks whole.
  bool has_no_index = false;
  Format format = Format::kDcp;  ///< What `open` finds.
};

/// The entries.
extern const ForeignLayout kHfaiLayout;          // hfai.cc
extern const ForeignLayout kOlmoTorchNewLayout;  // olmo.cc
extern const ForeignLayout kOlmoLocalLayout;     // olmo_ranks.cc
extern const ForeignLayout kOlmoCoreLayout;      // olmo_core.cc
extern const ForeignLayout kOlmoLegacyLayout;    // olmo_ranks.cc
extern const ForeignLayout kOlmoFullLayout;      // olmo.cc
extern const ForeignLayout kDcpLayout;           // dcp.cc
extern const ForeignLayout kDcpRankLocalLayout;  // dcp.cc
extern const ForeignLayout kHfLayout;            // safetensors.cc
extern const ForeignLayout kSafetensorsLayout;   // safetensors.cc
extern const ForeignLayout kHfTorchLayout;       // hf_torch.cc

/// Reads the index of a DCP directory, without the sizes of its files: dcp.cc.
Result<Decoded> ReadDcpIndex(Storage& storage, const std::string& directory);

/// Does OpenedWithSizes for the index of a DCP directory, and finds which keys of optimizers'
/// states are ints: dcp.cc.
Result<OpenedIndex> OpenedDcp(const ForeignFolder& folder, Decoded decoded);

/// Gives tensors that are stored as flattened blocks (Decoded::in_blocks) their own shape and
/// chunks. Looks into each of their chunks: blocks.cc. Errors: Unimplemented for blocks that are no
/// grid.
Status PlaceBlocks(const ForeignFolder& folder, std::vector<std::pair<std::string, Dims>> in_blocks,
                   OpenedIndex* opened);

/// Returns a reader that keeps the file open for as long as it is used.
RangeReader ReadFromFile(std::shared_ptr<ReadableFile> file);

/// Opens the named files of a directory; of many, most are opened anew for each read, so that a few
/// descriptors do. Errors: DataLoss for one that is missing.
Result<std::vector<NamedFile>> OpenAll(Storage& storage, const std::string& directory,
                                       const std::vector<std::string>& names);

/// Calls `read(i, file)` for each of the named files of a directory, on a few threads. Each file is
/// open during its call only: thousands of them need a few descriptors. Errors: DataLoss for a file
/// that is missing; the first error of `read`.
Status ForEachFile(Storage& storage, const std::string& directory,
                   const std::vector<std::string>& names,
                   const std::function<Status(std::size_t, const NamedFile&)>& read);

/// Returns the index that a decoder made of files whose sizes it knows.
OpenedIndex Opened(std::string directory, Decoded decoded);

/// Fills in the sizes that storage has of the files that an index names. Errors: DataLoss for a
/// file that is missing, and for an extent beyond its file's end.
Result<OpenedIndex> OpenedWithSizes(const ForeignFolder& folder, Decoded decoded);

/// Checks that every extent lies in its file, whose size is known. Errors: DataLoss.
Status CheckExtents(const std::string& directory, const Metadata& metadata);

}  // namespace varve
