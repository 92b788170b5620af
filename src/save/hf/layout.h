/// The bytes of whole-tensor safetensors files that each rank writes. Pure.
///
/// A file has its tensors one after the other, so the shards of several ranks meet inside of it. A
/// page of 4 KiB has one writer: the rank that holds all of it. What a rank holds of other pages
/// are fragments: they travel with its receipt to the coordinator, which writes those pages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/fields.h"
#include "interop/safetensors/encode.h"
#include "plan/save_plan.h"
#include "varve/status.h"

namespace varve {

/// A file of the folder: its name and whole size.
struct HfFileSize {
  std::string name;
  std::uint64_t size = 0;
};

/// The place of a tensor: the number of its file and where its bytes begin there.
struct HfTensorPlace {
  std::uint32_t file = 0;
  std::uint64_t begin = 0;
};

/// The ranks that write a file.
enum class HfWay : std::uint8_t {
  kSharedFiles,  ///< Ranks write their pages into the files, and the coordinator those between.
  kOwnFiles,     ///< Each file is written by one rank, which holds all of it (own_files.h).
  kPieces,       ///< Each rank writes what it holds, and then files of what all have (pieces.h).
};

/// A file that the rank writes alone.
struct HfOwnFile {
  std::uint32_t file = 0;
  Bytes header;
};

/// What a rank learns from the coordinator: the files, and the place of the tensor of each chunk of
/// its assignment, in that order.
struct HfPlacement {
  HfWay way = HfWay::kSharedFiles;
  std::vector<HfFileSize> files;
  std::vector<HfTensorPlace> chunks;
  std::vector<HfOwnFile> own{};  ///< kOwnFiles only.
};

/// All files, laid out.
struct HfFolder {
  struct File {
    std::string name;
    Bytes header;  ///< Ends with a page, so that data begin with one.
    std::uint64_t size = 0;
    std::vector<SafetensorsEntry> entries;
  };
  std::vector<File> files;
  std::vector<HfPlacement> placements;  ///< By rank.
};

/// Lays the files out. Requires: the tensors are what safetensors can hold.
HfFolder LayOutHfFolder(const std::vector<LocalPlan>& plans, const SettledPlan& settled,
                        std::uint64_t shard_size);

/// A piece of a chunk: its bytes from `begin` on, and where they are in the rank's image.
struct HfPiece {
  std::uint32_t chunk = 0;  ///< Index into RankAssignment::chunks.
  std::uint64_t begin = 0;  ///< Byte of the packed chunk.
  std::uint64_t bytes = 0;
  std::uint64_t image_begin = 0;
};

/// Bytes of a file that lie together in the rank's image.
struct HfRun {
  std::uint32_t file = 0;
  std::uint64_t begin = 0;  ///< In the file.
  std::uint64_t bytes = 0;
  std::uint64_t image_begin = 0;
};

/// What a rank writes, one after the other in an image of its own: whole pages, each run of which
/// begins with a page of the image, and then the fragments.
struct HfShare {
  std::vector<HfPiece> pieces;   ///< By image_begin.
  std::vector<HfRun> runs;       ///< By image_begin; the last page of a file may be short.
  std::vector<HfRun> fragments;  ///< Likewise; each begins at a multiple of 16.
  /// The headers of own files, each with its place in the image. Views of the placement.
  std::vector<std::pair<std::uint64_t, std::string_view>> headers{};
  std::uint64_t fragments_begin = 0;
  std::uint64_t image_bytes = 0;
  [[nodiscard]] std::uint64_t fragment_bytes() const { return image_bytes - fragments_begin; }
};

/// Returns in how many runs of its tensor a box lies: one for shards by rows, and for those by
/// columns one for each row.
std::uint64_t RunsOf(const PlannedTensor& tensor, const Box& box);

/// Bytes of a file that a rank holds, of one chunk and in one piece.
struct HfHeldBytes {
  std::uint32_t file = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint32_t chunk = 0;
  std::uint64_t chunk_begin = 0;
};

/// Returns all that the chunks of an assignment hold of the files, by place. Errors: as
/// ShareOfRank.
Result<std::vector<HfHeldBytes>> HeldBytesOf(const LocalPlan& plan,
                                             const RankAssignment& assignment,
                                             const HfPlacement& placement);

/// Finds a rank's share of shared files. Errors: Internal where the placement does not fit the
/// plan.
Result<HfShare> ShareOfRank(const LocalPlan& plan, const RankAssignment& assignment,
                            const HfPlacement& placement);

/// For processes of one version of Varve; never stored.
template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, HfPlacement>& placement);

}  // namespace varve
