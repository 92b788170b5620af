#include "save/hf/place.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "interop/safetensors/encode.h"
#include "save/hf/holders.h"
#include "save/hf/pieces.h"
#include "tensor/box.h"

namespace varve {
namespace {

/// Fragments pass through the coordinator's memory, with about 100 bytes about each.
constexpr std::uint64_t kMostFragmentBytes = std::uint64_t{1} << 30;
constexpr std::uint64_t kMostFragments = std::uint64_t{4} << 20;

/// A rank needs about 500 bytes for each of its pieces.
constexpr std::uint64_t kMostPieces = std::uint64_t{2} << 20;

constexpr std::string_view kOtherWay =
    "Save with format=\"varve\", and convert: varve convert --to hf";

/// The fragments of all ranks.
struct Fragments {
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
  std::uint64_t column_bytes = 0;  ///< Of shards that are several runs of their tensor.
  std::uint64_t most_runs = 0;
  std::string most_columns;  ///< The tensor of the shard with that many.
};

/// Refuses a rank's shards when they lie in too many pieces, and notes the one with the most.
Status CountRuns(std::size_t rank, const LocalPlan& plan, const RankAssignment& assignment,
                 Fragments* fragments) {
  std::uint64_t pieces = 0;
  for (const ChunkAssignment& chunk : assignment.chunks) {
    const PlannedTensor& tensor = plan.tensors[chunk.item];
    const std::uint64_t runs = RunsOf(tensor, chunk.BoxIn(plan));
    pieces += runs;
    if (runs > fragments->most_runs) {
      fragments->most_runs = runs;
      fragments->most_columns = tensor.fqn();
    }
  }
  if (pieces <= kMostPieces) {
    return Status::Ok();
  }
  return InvalidArgument("the shards of rank " + std::to_string(rank) + " lie in " +
                         std::to_string(pieces) + " pieces of the files, at most " +
                         std::to_string(kMostPieces) +
                         " can be written: they are shards by columns, as that of tensor \"" +
                         fragments->most_columns + "\". " + std::string(kOtherWay));
}

void CountFragments(const LocalPlan& plan, const RankAssignment& assignment, const HfShare& share,
                    Fragments* fragments) {
  fragments->count += share.fragments.size();
  fragments->bytes += share.fragment_bytes();
  for (const HfPiece& piece : share.pieces) {
    const ChunkAssignment& chunk = assignment.chunks[piece.chunk];
    if (piece.image_begin >= share.fragments_begin &&
        RunsOf(plan.tensors[chunk.item], chunk.BoxIn(plan)) > 1) {
      fragments->column_bytes += piece.bytes;
    }
  }
}

Status CheckFragments(const Fragments& fragments, const HfFolder& folder, std::size_t ranks) {
  if (fragments.bytes <= kMostFragmentBytes && fragments.count <= kMostFragments) {
    return Status::Ok();
  }
  std::string message = "the ranks hold " + std::to_string(fragments.bytes) + " bytes in " +
                        std::to_string(fragments.count) +
                        " pieces that are smaller than a page of the files; at most " +
                        std::to_string(kMostFragmentBytes >> 20) + " MiB in " +
                        std::to_string(kMostFragments) + " pieces go through rank 0. ";
  if (fragments.column_bytes > fragments.bytes / 2) {
    message += "They are shards by columns, as those of tensor \"" + fragments.most_columns +
               "\". " + std::string(kOtherWay);
  } else {
    std::size_t tensors = 0;
    for (const HfFolder::File& file : folder.files) {
      tensors += file.entries.size();
    }
    message += "They are the edges of shards by rows, about a page for each of " +
               std::to_string(tensors) + " tensors on each of " + std::to_string(ranks) +
               " ranks. Shard over fewer ranks, or save with format=\"varve\", and convert: varve "
               "convert --to hf";
  }
  return InvalidArgument(message);
}

/// Returns the placements for files that ranks share.
Result<std::vector<Bytes>> PlaceInSharedFiles(const SettledSave& settled, const HfFolder& folder) {
  Fragments fragments;
  for (std::size_t rank = 0; rank < settled.plans.size(); ++rank) {
    VARVE_RETURN_IF_ERROR(
        CountRuns(rank, settled.plans[rank], settled.settled.ranks[rank], &fragments));
  }
  std::vector<Bytes> placements;
  placements.reserve(folder.placements.size());
  for (std::size_t rank = 0; rank < folder.placements.size(); ++rank) {
    const HfPlacement& placement = folder.placements[rank];
    const LocalPlan& plan = settled.plans[rank];
    const RankAssignment& assignment = settled.settled.ranks[rank];
    VARVE_ASSIGN_OR_RETURN(const HfShare share, ShareOfRank(plan, assignment, placement));
    CountFragments(plan, assignment, share, &fragments);
    placements.push_back(EncodeFields(placement));
  }
  VARVE_RETURN_IF_ERROR(CheckFragments(fragments, folder, settled.plans.size()));
  return placements;
}

/// Returns the placements for files of one writer each.
Result<std::vector<Bytes>> PlaceInOwnFiles(SettledSave* settled, const HfFolder& folder) {
  std::uint64_t pieces = 0;
  for (std::size_t rank = 0; rank < settled->plans.size(); ++rank) {
    const LocalPlan& plan = settled->plans[rank];
    for (const ChunkAssignment& chunk : settled->settled.ranks[rank].chunks) {
      pieces += RunsOf(plan.tensors[chunk.item], chunk.BoxIn(plan));
    }
  }
  std::optional<std::vector<std::uint32_t>> owners;
  if (pieces <= kMostPieces) {
    owners = GiveFilesToHolders(folder, settled);
  }
  std::vector<HfPlacement> placements;
  if (owners) {
    placements = LayOutHfFolder(*settled).placements;  // Of the chunks as they are now.
    for (HfPlacement& placement : placements) {
      placement.way = HfWay::kOwnFiles;
    }
    for (std::uint32_t i = 0; i < folder.files.size(); ++i) {
      placements[(*owners)[i]].own.push_back({i, folder.files[i].header});
    }
  } else {
    VARVE_RETURN_IF_ERROR(PreparePieces(settled));
    placements.assign(settled->plans.size(), {HfWay::kPieces, {}, {}});
  }
  std::vector<Bytes> encoded;
  encoded.reserve(placements.size());
  for (const HfPlacement& placement : placements) {
    encoded.push_back(EncodeFields(placement));
  }
  return encoded;
}

}  // namespace

HfFolder LayOutHfFolder(const SettledSave& settled) {
  return LayOutHfFolder(settled.plans, settled.settled, settled.shard_size);
}

Result<std::vector<Bytes>> PlaceHf(SettledSave* settled) {
  const HfFolder folder = LayOutHfFolder(*settled);
  for (const HfFolder::File& file : folder.files) {
    VARVE_RETURN_IF_ERROR(CheckSafetensorsHeader(file.name, file.header));
  }
  return settled->one_writer ? PlaceInOwnFiles(settled, folder)
                             : PlaceInSharedFiles(*settled, folder);
}

}  // namespace varve
