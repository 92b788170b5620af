/// The bytes of whole-tensor safetensors files that each rank writes. Pure.
///
/// A file has its tensors one after the other, so the shards of several ranks meet inside of it. A
/// page of 4 KiB has one writer: the rank that holds all of it. What a rank holds of other pages
/// are fragments: they travel with its receipt to the coordinator, which writes those pages.
#pragma once

#include <cstdint>
#include <string>
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
  kOwnFiles,     ///< Each file is written by one rank, which holds all of it (holders.h).
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

/// A piece of a chunk, or of the header of an own file: its bytes from `begin` on, and where they
/// are in the rank's image.
struct HfPiece {
  std::uint32_t chunk = 0;  ///< Index into RankAssignment::chunks, and behind those into own files.
  std::uint64_t begin = 0;  ///< Byte of the packed chunk, or of the header.
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
  std::uint64_t fragments_begin = 0;
  std::uint64_t image_bytes = 0;
  [[nodiscard]] std::uint64_t fragment_bytes() const { return image_bytes - fragments_begin; }
};

/// Returns in how many runs of its tensor a box lies: one for shards by rows, and for those by
/// columns one for each row.
std::uint64_t RunsOf(const PlannedTensor& tensor, const Box& box);

/// Finds a rank's share. Errors: Internal where the placement does not fit the plan, and where the
/// rank does not hold all of an own file.
Result<HfShare> ShareOfRank(const LocalPlan& plan, const RankAssignment& assignment,
                            const HfPlacement& placement);

/// For processes of one version of Varve; never stored.
template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, HfPlacement>& placement);

}  // namespace varve
