// A folder of safetensors files as Hugging Face's tools write it, with whole tensors. Where several
// ranks can write to one file:
//
//  1. The coordinator lays all files out when it settles the plan, and each rank learns where the
//     tensors of its chunks are.
//  2. Each rank writes the pages that are all its own, in place (layout.h). No two ranks write
//     to one page, so that file systems which cache pages by client lose none.
//  3. A rank's receipt has the checksums of what it wrote, and its fragments of other pages.
//  4. The coordinator writes the headers and the shared pages, and checks that what was written
//     covers each file without a gap or an overlap.
//  5. The index is written last: model.varve-checksums.json, then model.safetensors.index.json,
//     without which the folder is none.
//
// Object stores take a file from one writer. There each file is written by a rank that holds all of
// it (holders.h), header included: one process, ranks with replicas, whole files of a stage of a
// pipeline. Where no rank does, all write pieces first (pieces.h).

#include "catalogue/formats/hf.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "interop/safetensors/decode.h"
#include "interop/safetensors/encode.h"
#include "interop/safetensors/hf_checksums.h"
#include "save/hf/layout.h"
#include "save/hf/pieces.h"
#include "save/hf/place.h"
#include "save/hf/scatter_file.h"
#include "save/hf/shared_pages.h"
#include "save/tensor_source.h"
#include "save/written_format.h"
#include "tensor/box.h"

namespace varve {
namespace {

constexpr std::array<std::byte, kDirectAlignment> kPadding{};

Status CheckHf(const SettledSave& settled) {
  bool any = false;
  for (const LocalPlan& plan : settled.plans) {
    if (!plan.objects.empty()) {
      return InvalidArgument("\"" + plan.objects[0].fqn +
                             "\" is not a tensor, and a folder of safetensors files holds tensors "
                             "alone: give the model's state dict");
    }
    for (const PlannedTensor& tensor : plan.tensors) {
      any = true;
      if (!CanBeSafetensors(tensor.dtype(), tensor.shape())) {
        return InvalidArgument("tensor \"" + tensor.fqn() + "\" is " +
                               std::string(DTypeName(tensor.dtype())) +
                               ", which safetensors cannot hold");
      }
    }
  }
  if (!any) {
    return InvalidArgument("the state has no tensors");
  }
  for (const SideFile& file : settled.side_files) {
    if (file.name == kHfIndexName) {
      return InvalidArgument("files: \"" + file.name +
                             "\" is the index that the save itself writes; leave it out");
    }
  }
  return Status::Ok();
}

std::vector<std::string> NamesOfHf(const SettledSave& settled) {
  std::vector<std::string> names{std::string(kHfIndexName), std::string(kHfChecksumsName)};
  if (const auto placement = DecodeFields<HfPlacement>(settled.placement); placement.ok()) {
    for (const HfFileSize& file : placement->files) {
      names.push_back(file.name);
    }
  }
  return names;
}

Result<std::vector<FileSegment>> SegmentsOf(const State& state, const LocalPlan& plan,
                                            const RankAssignment& assignment,
                                            const HfPlacement& placement, const HfShare& share) {
  std::vector<FileSegment> sources;  // By HfPiece::chunk.
  sources.reserve(assignment.chunks.size() + placement.own.size());
  for (const ChunkAssignment& chunk : assignment.chunks) {
    const SourceTensor& source = state.tensors[chunk.item];
    FileSegment& segment = sources.emplace_back();
    segment.owner = chunk.item;
    Status status =
        IsProduced(source.source)
            ? InvalidArgument("it is made while it is saved, not in memory")
            : ReadFrom(source.source, source.dtype, source.box, chunk.BoxIn(plan), &segment);
    VARVE_RETURN_IF_ERROR(std::move(status).Annotate("tensor \"" + source.fqn + "\""));
  }
  for (const HfOwnFile& own : placement.own) {
    sources.push_back({.literal = AsByteSpan(own.header)});
  }
  std::vector<FileSegment> segments;
  segments.reserve(share.pieces.size() + share.runs.size() + share.fragments.size());
  std::uint64_t at = 0;
  const auto pad = [&](std::uint64_t to) {
    if (at < to) {  // Less than a page.
      segments.push_back({.bytes = to - at, .literal = std::span(kPadding).first(to - at)});
      at = to;
    }
  };
  for (const HfPiece& piece : share.pieces) {
    pad(piece.image_begin);
    FileSegment& segment = segments.emplace_back(sources[piece.chunk]);
    segment.begin = piece.begin;
    segment.bytes = piece.bytes;
    at += piece.bytes;
  }
  pad(share.image_bytes);
  return segments;
}

Result<RankFile> LayOutHf(const State* state, const SettledSave& settled) {
  VARVE_ASSIGN_OR_RETURN(HfPlacement decoded, DecodeFields<HfPlacement>(settled.placement));
  if (decoded.way == HfWay::kPieces) {
    return LayOutPiece(state, settled);
  }
  const auto placement = std::make_shared<const HfPlacement>(std::move(decoded));
  VARVE_ASSIGN_OR_RETURN(HfShare found,
                         ShareOfRank(settled.plan(), settled.assignment(), *placement));
  const auto share = std::make_shared<const HfShare>(std::move(found));
  const auto outcome = std::make_shared<ScatterOutcome>();
  const std::uint64_t block_bytes = settled.identity.block_bytes;
  RankFile file;
  file.name = "(parts of the model's files)";
  FileWork& work = file.work;
  work.size = share->image_bytes;
  work.block_bytes = block_bytes;
  work.sums = false;  // Its blocks are not the files': the scatter file sums theirs.
  if (state != nullptr) {
    VARVE_ASSIGN_OR_RETURN(work.segments, SegmentsOf(*state, settled.plan(), settled.assignment(),
                                                     *placement, *share));
    work.name_of = [state](std::uint32_t owner) { return state->tensors[owner].fqn; };
  }
  work.keep = placement;  // Has the headers.
  work.open = [share, outcome, block_bytes, placement](
                  Storage& storage, const std::string& directory,
                  bool direct) -> Result<std::unique_ptr<WritableFile>> {
    const bool shared = placement->way == HfWay::kSharedFiles;
    return OpenScatterFile(storage, directory, placement->files, share, block_bytes,
                           {.direct = direct && shared, .shared = shared}, outcome);
  };
  work.finish = [share, outcome, block_bytes](const WrittenSegments&) -> Result<FinishedFile> {
    HfReceipt receipt{
        .sums = outcome->sums, .fragments = share->fragments, .content = outcome->fragments};
    JoinSums(block_bytes, &receipt.sums);
    for (HfRun& fragment : receipt.fragments) {
      fragment.image_begin -= share->fragments_begin;
    }
    FinishedFile finished{{}, EncodeFields(receipt)};
    outcome->fragments = {};
    return finished;
  };
  return file;
}

Result<CheckpointIndex> MakeHfIndex(const SettledSave& settled,
                                    const std::vector<std::string>& receipts,
                                    const std::string& below) {
  VARVE_ASSIGN_OR_RETURN(const auto all, settled.OfAllRanks());
  const auto folder =
      std::make_shared<const HfFolder>(LayOutHfFolder(all.first, all.second, settled.shard_size));
  SharedPages pages(*folder, /*headers=*/!settled.one_writer);
  for (std::size_t rank = 0; rank < receipts.size(); ++rank) {
    VARVE_ASSIGN_OR_RETURN(const HfReceipt receipt, DecodeFields<HfReceipt>(receipts[rank]));
    VARVE_RETURN_IF_ERROR(pages.AddRank(rank, receipt));
  }
  CheckpointIndex made;
  if (kJoinedHfFiles.is_needed(settled)) {
    made.used_up.emplace_back(kPiecesDirectory);
  }
  made.keep = folder;
  HfChecksums checksums;
  VARVE_ASSIGN_OR_RETURN(made.patches, pages.Finish(settled.identity.block_bytes, &checksums));
  for (HfChecksums::File& file : checksums.files) {
    file.name = below + file.name;
  }
  checksums.side_files = SideFilesOfFolder(settled.side_files, below);
  HfIndex index;
  std::uint64_t tensor_bytes = 0;
  for (const HfFolder::File& file : folder->files) {
    made.files.push_back({.name = file.name, .size = file.size});
    for (const SafetensorsEntry& entry : file.entries) {
      index.weight_map.emplace_back(entry.fqn, below + file.name);
      tensor_bytes += entry.bytes();
    }
  }
  std::sort(index.weight_map.begin(), index.weight_map.end());
  made.index = {{std::string(kHfChecksumsName), EncodeHfChecksums(checksums)},
                {std::string(kHfIndexName), EncodeHfIndex(index, tensor_bytes)}};
  return made;
}

}  // namespace

const WrittenFormat kHfFormat{.format = Format::kSafetensors,
                              .rank_local = false,
                              .holds_variants = false,
                              .check = CheckHf,
                              .place = PlaceHf,
                              .lay_out = LayOutHf,
                              .names = NamesOfHf,
                              .index_name = kHfIndexName,
                              .make_index = MakeHfIndex,
                              .joined = &kJoinedHfFiles};

}  // namespace varve
