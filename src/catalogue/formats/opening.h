/// Functions that several formats use to open a directory. Private to this folder.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catalogue/formats/known_format.h"
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
Result<OpenedIndex> OpenedWithSizes(const ListedFolder& folder, Decoded decoded);

/// Checks that no upload of a format of which no file is written last is under way: half of it
/// looks whole. Errors: FailedPrecondition.
Status CheckIsUploaded(const ListedFolder& folder);

/// Checks that every extent lies in its file, whose size is known. Errors: DataLoss, unless
/// `damages` gets what is wrong.
Status CheckExtents(const std::string& directory, const Metadata& metadata,
                    std::vector<Damage>* damages = nullptr);

/// Gives tensors that are stored as flattened blocks (Decoded::in_blocks) their own shape and
/// chunks. Looks into each of their chunks: blocks.cc. Errors: Unimplemented for blocks that are no
/// grid.
Status PlaceBlocks(const ListedFolder& folder, std::vector<std::pair<std::string, Dims>> in_blocks,
                   OpenedIndex* opened);

}  // namespace varve
