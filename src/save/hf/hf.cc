// A folder of safetensors files as Hugging Face's tools write it, with whole tensors.
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
#include "base/checked.h"
#include "base/checksum.h"
#include "interop/safetensors/decode.h"
#include "interop/safetensors/hf_checksums.h"
#include "save/hf/layout.h"
#include "save/hf/scatter_file.h"
#include "save/tensor_source.h"
#include "save/written_format.h"
#include "tensor/box.h"

namespace varve {

/// What a rank tells the coordinator: sums by place, fragments with their bytes one after the
/// other.
struct HfReceipt {
  std::vector<BytesSum> sums;
  std::vector<HfRun> fragments;  ///< `image_begin` counts from the beginning of `content`.
  Bytes content;
};

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, BytesSum>& sum) {
  archive(sum.file, sum.begin, sum.bytes, sum.crc32c);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, HfRun>& run) {
  archive(run.file, run.begin, run.bytes, run.image_begin);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, HfReceipt>& receipt) {
  archive(receipt.sums, receipt.fragments, receipt.content);
}

namespace {

/// Fragments pass through the coordinator's memory.
constexpr std::uint64_t kMostFragmentBytes = std::uint64_t{256} << 20;

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
      if (!CanBeSafetensors(tensor.dtype, tensor.shape)) {
        return InvalidArgument("tensor \"" + tensor.fqn + "\" is " +
                               std::string(DTypeName(tensor.dtype)) +
                               ", which safetensors cannot hold");
      }
    }
  }
  return any ? Status::Ok() : InvalidArgument("the state has no tensors");
}

HfFolder FolderOf(const SettledSave& settled) {
  return LayOutHfFolder(settled.plans, settled.settled, settled.shard_size);
}

Result<std::vector<Bytes>> PlaceHf(const SettledSave& settled) {
  const HfFolder folder = FolderOf(settled);
  std::vector<Bytes> placements;
  std::uint64_t fragments = 0;
  for (std::size_t rank = 0; rank < folder.placements.size(); ++rank) {
    const HfPlacement& placement = folder.placements[rank];
    VARVE_ASSIGN_OR_RETURN(
        const HfShare share,
        ShareOfRank(settled.plans[rank], settled.settled.ranks[rank], placement));
    fragments += share.fragment_bytes();
    placements.push_back(EncodeFields(placement));
  }
  if (fragments > kMostFragmentBytes) {
    return InvalidArgument(
        "the ranks hold " + std::to_string(fragments) +
        " bytes in pieces that are smaller than a page of the files, as shards by columns are; at "
        "most 256 MiB of them go through the coordinator. Save with format=\"varve\", and "
        "convert: varve convert --to hf");
  }
  return placements;
}

Result<std::vector<FileSegment>> SegmentsOf(const State& state, const RankAssignment& assignment,
                                            const HfShare& share) {
  std::vector<FileSegment> chunks(assignment.chunks.size());
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const ChunkAssignment& chunk = assignment.chunks[i];
    const SourceTensor& source = state.tensors[chunk.item];
    chunks[i].owner = chunk.item;
    Status status = IsProduced(source.source)
                        ? InvalidArgument("it is made while it is saved, not in memory")
                        : ReadFrom(source.source, source.dtype, source.box, chunk.box, &chunks[i]);
    VARVE_RETURN_IF_ERROR(std::move(status).Annotate("tensor \"" + source.fqn + "\""));
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
    FileSegment& segment = segments.emplace_back(chunks[piece.chunk]);
    segment.begin = piece.begin;
    segment.bytes = piece.bytes;
    at += piece.bytes;
  }
  pad(share.image_bytes);
  return segments;
}

Result<RankFile> LayOutHf(const State* state, const SettledSave& settled) {
  VARVE_ASSIGN_OR_RETURN(HfPlacement placement, DecodeFields<HfPlacement>(settled.placement));
  VARVE_ASSIGN_OR_RETURN(HfShare found, ShareOfRank(settled.plan, settled.assignment, placement));
  const auto share = std::make_shared<const HfShare>(std::move(found));
  const auto outcome = std::make_shared<ScatterOutcome>();
  const std::uint64_t block_bytes = settled.identity.block_bytes;
  RankFile file;
  file.name = "(parts of the model's files)";
  FileWork& work = file.work;
  work.size = share->image_bytes;
  work.block_bytes = block_bytes;
  if (state != nullptr) {
    VARVE_ASSIGN_OR_RETURN(work.segments, SegmentsOf(*state, settled.assignment, *share));
    work.name_of = [state](std::uint32_t owner) { return state->tensors[owner].fqn; };
  }
  work.open = [share, outcome, block_bytes, files = std::move(placement.files)](
                  Storage& storage, const std::string& directory, bool direct) {
    return OpenScatterFile(storage, directory, files, share, block_bytes, direct, outcome);
  };
  work.finish = [share, outcome, block_bytes](const WrittenSegments&) -> Result<FinishedFile> {
    HfReceipt receipt{.sums = outcome->sums, .fragments = share->fragments};
    JoinSums(block_bytes, &receipt.sums);
    for (HfRun& fragment : receipt.fragments) {
      fragment.image_begin -= share->fragments_begin;
    }
    receipt.content = std::move(outcome->fragments);
    return FinishedFile{{}, EncodeFields(receipt)};
  };
  return file;
}

/// The bytes of one file that the coordinator has, and the sums of all bytes.
class SharedPages {
 public:
  explicit SharedPages(const HfFolder& folder) : folder_(folder), parts_(folder.files.size()) {
    for (std::uint32_t i = 0; i < folder.files.size(); ++i) {
      Add({i, 0, folder.files[i].header.size(), 0}, folder.files[i].header);
    }
  }

  Status AddRank(std::size_t rank, const HfReceipt& receipt) {
    const auto fits = [&](std::uint32_t file, std::uint64_t begin, std::uint64_t bytes) {
      return file < folder_.files.size() && begin <= folder_.files[file].size &&
             bytes <= folder_.files[file].size - begin;
    };
    bool good = true;
    for (const BytesSum& sum : receipt.sums) {
      good = good && fits(sum.file, sum.begin, sum.bytes);
    }
    for (const HfRun& run : receipt.fragments) {
      good = good && fits(run.file, run.begin, run.bytes) &&
             run.image_begin <= receipt.content.size() &&
             run.bytes <= receipt.content.size() - run.image_begin;
    }
    if (!good) {
      return Internal("rank " + std::to_string(rank) + " reports bytes outside of the files");
    }
    sums_.insert(sums_.end(), receipt.sums.begin(), receipt.sums.end());
    for (const HfRun& run : receipt.fragments) {
      Add(run, std::string_view(receipt.content).substr(run.image_begin, run.bytes));
    }
    return Status::Ok();
  }

  /// Returns the pages to be written, and gives `metadata` its files with their sums.
  Result<std::vector<FilePatch>> Finish(std::uint64_t block_bytes, Metadata* metadata) {
    std::vector<FilePatch> patches;
    patches.reserve(folder_.files.size());
    for (std::uint32_t i = 0; i < folder_.files.size(); ++i) {
      patches.push_back(PatchOf(i, block_bytes));
    }
    JoinSums(block_bytes, &sums_);
    metadata->block_bytes = block_bytes;
    for (const HfFolder::File& file : folder_.files) {
      metadata->files.push_back({.name = file.name, .size = file.size});
    }
    for (const BytesSum& sum : sums_) {
      DataFile& file = metadata->files[sum.file];
      const std::uint64_t begin = file.block_crc32c.size() * block_bytes;
      if (sum.begin != begin || sum.bytes != std::min(block_bytes, file.size - begin)) {
        return Internal("the ranks have not written block " +
                        std::to_string(file.block_crc32c.size()) + " of " + file.name +
                        " once and whole");
      }
      file.block_crc32c.push_back(sum.crc32c);
    }
    for (const DataFile& file : metadata->files) {
      if (file.block_crc32c.size() != DivideUp(file.size, block_bytes)) {
        return Internal("the ranks have not written the end of " + file.name);
      }
    }
    return patches;
  }

 private:
  struct Part {
    std::uint64_t begin = 0;
    Bytes content;
  };

  void Add(const HfRun& place, std::string_view content) {
    if (!content.empty()) {
      parts_[place.file].push_back({place.begin, Bytes(content)});
    }
  }

  /// Joins the parts of a file, and notes their sums.
  FilePatch PatchOf(std::uint32_t number, std::uint64_t block_bytes) {
    FilePatch patch{folder_.files[number].name, folder_.files[number].size, {}};
    std::vector<Part>& parts = parts_[number];
    std::sort(parts.begin(), parts.end(),
              [](const Part& a, const Part& b) { return a.begin < b.begin; });
    for (Part& part : parts) {
      for (std::uint64_t at = 0; at < part.content.size();) {
        const std::uint64_t begin = part.begin + at;
        const std::uint64_t step =
            std::min<std::uint64_t>(part.content.size() - at, block_bytes - begin % block_bytes);
        sums_.push_back({number, begin, step, Crc32c(AsByteSpan(part.content).subspan(at, step))});
        at += step;
      }
      if (!patch.parts.empty() &&
          patch.parts.back().first + patch.parts.back().second.size() == part.begin) {
        patch.parts.back().second += part.content;
      } else {
        patch.parts.emplace_back(part.begin, std::move(part.content));
      }
    }
    parts.clear();
    return patch;
  }

  const HfFolder& folder_;
  std::vector<std::vector<Part>> parts_;  // By file.
  std::vector<BytesSum> sums_;
};

Result<CheckpointIndex> MakeHfIndex(const SettledSave& settled,
                                    const std::vector<std::string>& receipts) {
  const HfFolder folder = FolderOf(settled);
  SharedPages pages(folder);
  for (std::size_t rank = 0; rank < receipts.size(); ++rank) {
    VARVE_ASSIGN_OR_RETURN(const HfReceipt receipt, DecodeFields<HfReceipt>(receipts[rank]));
    VARVE_RETURN_IF_ERROR(pages.AddRank(rank, receipt));
  }
  CheckpointIndex made;
  Metadata metadata;
  VARVE_ASSIGN_OR_RETURN(made.patches, pages.Finish(settled.identity.block_bytes, &metadata));
  made.files = metadata.files;
  HfIndex index;
  std::uint64_t tensor_bytes = 0;
  for (const HfFolder::File& file : folder.files) {
    for (const SafetensorsEntry& entry : file.entries) {
      index.weight_map.emplace_back(entry.fqn, file.name);
      tensor_bytes += entry.bytes();
    }
  }
  std::sort(index.weight_map.begin(), index.weight_map.end());
  made.index = {{std::string(kHfChecksumsName), EncodeHfChecksums(metadata)},
                {"model.safetensors.index.json", EncodeHfIndex(index, tensor_bytes)}};
  return made;
}

}  // namespace

const WrittenFormat kHfFormat{.format = Format::kSafetensors,
                              .rank_local = false,
                              .check = CheckHf,
                              .place = PlaceHf,
                              .lay_out = LayOutHf,
                              .make_index = MakeHfIndex};

}  // namespace varve
