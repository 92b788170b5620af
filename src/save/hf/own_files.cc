#include "save/hf/own_files.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <mutex>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/checked.h"
#include "tensor/box.h"

namespace varve {
namespace {

/// A chunk of the settled plan, and all that hold it: each rank with its item, ascending.
struct Holders {
  Box box;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> items;

  /// Returns the item of a rank, or null.
  [[nodiscard]] const std::uint32_t* ItemOf(std::uint32_t rank) const {
    const auto found = std::partition_point(items.begin(), items.end(),
                                            [&](const auto& held) { return held.first < rank; });
    return found == items.end() || found->first != rank ? nullptr : &found->second;
  }
};

/// Returns true where for each tensor some rank holds as many elements as it has: else the search
/// for holders, which looks at all pairs of shards, is in vain.
bool MayHoldWhole(const std::vector<LocalPlan>& plans) {
  std::map<std::string_view, std::pair<std::uint64_t, std::uint64_t>> most;  // And of the shape.
  for (const LocalPlan& plan : plans) {
    std::map<std::string_view, std::uint64_t> held;
    for (const PlannedTensor& tensor : plan.tensors) {
      auto& [largest, whole] = most[tensor.fqn()];
      whole = Volume(tensor.shape());
      largest = std::max(largest, held[tensor.fqn()] += Volume(tensor.box.sizes));
    }
  }
  return std::all_of(most.begin(), most.end(),
                     [](const auto& one) { return one.second.first >= one.second.second; });
}

/// The chunks of all ranks, by the name of the tensor.
class ChunkHolders {
 public:
  explicit ChunkHolders(const SettledSave& settled) {
    const std::vector<std::string>& differing = settled.settled.differing_tensors;
    const auto differs = [&](const std::string& fqn) {
      return std::binary_search(differing.begin(), differing.end(), fqn);
    };
    for (std::uint32_t rank = 0; rank < settled.plans.size(); ++rank) {
      for (const ChunkAssignment& chunk : settled.settled.ranks[rank].chunks) {
        const std::string& fqn = settled.plans[rank].tensors[chunk.item].fqn();
        Holders& holders = chunks_[fqn].emplace_back();
        holders.box = chunk.BoxIn(settled.plans[rank]);
        if (differs(fqn)) {
          holders.items.emplace_back(rank, chunk.item);
        }
      }
    }
    for (std::uint32_t rank = 0; rank < settled.plans.size(); ++rank) {
      const auto& tensors = settled.plans[rank].tensors;
      for (std::uint32_t item = 0; item < tensors.size(); ++item) {
        const auto found = chunks_.find(tensors[item].fqn());
        if (found == chunks_.end() || differs(tensors[item].fqn())) {
          continue;
        }
        for (Holders& chunk : found->second) {
          if (Contains(tensors[item].box, chunk.box) &&
              (chunk.items.empty() || chunk.items.back().first != rank)) {
            chunk.items.emplace_back(rank, item);
          }
        }
      }
    }
  }

  [[nodiscard]] const std::vector<Holders>& Of(std::string_view fqn) const {
    const auto found = chunks_.find(fqn);
    return found == chunks_.end() ? none_ : found->second;
  }

  /// Returns the ranks that hold all of a file, ascending; `ranks` is the number of all.
  [[nodiscard]] std::vector<std::uint32_t> OfFile(const HfFolder::File& file,
                                                  std::uint32_t ranks) const {
    std::vector<std::uint32_t> all(ranks);
    std::iota(all.begin(), all.end(), 0U);
    for (const SafetensorsEntry& entry : file.entries) {
      for (const Holders& chunk : Of(entry.fqn)) {
        std::erase_if(all, [&](std::uint32_t rank) { return chunk.ItemOf(rank) == nullptr; });
      }
    }
    return all;
  }

 private:
  std::map<std::string_view, std::vector<Holders>> chunks_;  // Names of the plans.
  std::vector<Holders> none_;                                // Of a tensor without elements.
};

}  // namespace

std::optional<std::vector<std::uint32_t>> GiveFilesToHolders(const HfFolder& folder,
                                                             SettledSave* settled) {
  if (!MayHoldWhole(settled->plans)) {
    return std::nullopt;
  }
  const ChunkHolders holders(*settled);
  const auto ranks = static_cast<std::uint32_t>(settled->plans.size());
  std::vector<std::uint32_t> owners;
  std::vector<std::uint64_t> bytes(ranks, 0);
  std::vector<std::vector<ChunkAssignment>> chunks(ranks);
  for (const HfFolder::File& file : folder.files) {
    const std::vector<std::uint32_t> able = holders.OfFile(file, ranks);
    if (able.empty()) {
      return std::nullopt;
    }
    const std::uint32_t owner =
        *std::min_element(able.begin(), able.end(),
                          [&](std::uint32_t a, std::uint32_t b) { return bytes[a] < bytes[b]; });
    owners.push_back(owner);
    bytes[owner] += file.size;
    for (const SafetensorsEntry& entry : file.entries) {
      for (const Holders& chunk : holders.Of(entry.fqn)) {
        chunks[owner].push_back(Assigned(settled->plans[owner], *chunk.ItemOf(owner), chunk.box));
      }
    }
  }
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    settled->settled.ranks[rank].chunks = std::move(chunks[rank]);
  }
  return owners;
}

Result<HfShare> ShareOfOwner(const LocalPlan& plan, const RankAssignment& assignment,
                             const HfPlacement& placement) {
  const auto bad = [] { return Internal("the chunks of a rank do not fill the files it writes"); };
  VARVE_ASSIGN_OR_RETURN(const auto held, HeldBytesOf(plan, assignment, placement));
  HfShare share;
  auto next = held.begin();
  for (const HfOwnFile& own : placement.own) {  // By file, as `held` is.
    if (own.file >= placement.files.size()) {
      return bad();
    }
    share.image_bytes = RoundUp(share.image_bytes, kDirectAlignment);
    const HfRun run{own.file, 0, placement.files[own.file].size, share.image_bytes};
    share.headers.emplace_back(run.image_begin, own.header);
    std::uint64_t at = own.header.size();
    for (; next != held.end() && next->file == own.file; ++next) {
      if (next->begin != at) {
        return bad();
      }
      share.pieces.push_back(
          {next->chunk, next->chunk_begin, next->end - next->begin, run.image_begin + at});
      at = next->end;
    }
    if (at != run.bytes) {
      return bad();
    }
    share.runs.push_back(run);
    share.image_bytes += run.bytes;
  }
  share.fragments_begin = share.image_bytes;
  return next == held.end() ? Result<HfShare>(std::move(share)) : bad();
}

namespace {

class OwnFiles final : public WritableFile {
 public:
  OwnFiles(Storage& storage, std::string directory, std::vector<HfFileSize> files,
           std::shared_ptr<const HfShare> share, std::uint64_t block_bytes,
           std::shared_ptr<ScatterOutcome> outcome)
      : storage_(storage),
        directory_(std::move(directory)),
        files_(std::move(files)),
        share_(std::move(share)),
        block_bytes_(block_bytes),
        outcome_(std::move(outcome)),
        open_(share_->runs.size()) {
    for (std::size_t i = 0; i < open_.size(); ++i) {
      open_[i].missing = share_->runs[i].bytes;
    }
  }

  Status WriteAt(std::uint64_t offset, std::span<const std::byte> data) override {
    const std::uint64_t end = offset + data.size();
    const auto& runs = share_->runs;
    auto run = std::partition_point(runs.begin(), runs.end(), [&](const HfRun& one) {
      return one.image_begin + one.bytes <= offset;
    });
    for (; run != runs.end() && run->image_begin < end; ++run) {
      const std::uint64_t begin = std::max(offset, run->image_begin);
      const std::uint64_t stop = std::min(end, run->image_begin + run->bytes);
      VARVE_RETURN_IF_ERROR(WriteRun(static_cast<std::size_t>(run - runs.begin()),
                                     begin - run->image_begin,
                                     data.subspan(begin - offset, stop - begin)));
    }
    return Status::Ok();
  }

  /// Each file is durable since its last bytes came; `size` is the image's and of no interest.
  Status Sync(std::uint64_t /*size*/) override {
    const std::scoped_lock lock(mutex_);
    for (std::size_t i = 0; i < open_.size(); ++i) {
      if (open_[i].missing != 0) {
        return Internal(std::to_string(open_[i].missing) + " bytes of " +
                        files_[share_->runs[i].file].name + " were not written");
      }
    }
    return Status::Ok();
  }

  [[nodiscard]] bool direct() const override { return false; }

 private:
  struct OpenFile {
    std::shared_ptr<WritableFile> file;
    std::uint64_t missing = 0;  ///< Bytes.
  };

  Status WriteRun(std::size_t number, std::uint64_t at, std::span<const std::byte> data) {
    const HfRun& run = share_->runs[number];
    VARVE_ASSIGN_OR_RETURN(const auto file, Acquire(number));
    VARVE_RETURN_IF_ERROR(file->WriteAt(at, data));
    std::vector<BytesSum> sums;
    AddSums(run.file, at, data, block_bytes_, &sums);
    {
      const std::scoped_lock lock(mutex_);
      outcome_->sums.insert(outcome_->sums.end(), sums.begin(), sums.end());
      open_[number].missing -= data.size();
      if (open_[number].missing > 0) {
        return Status::Ok();
      }
      open_[number].file.reset();
    }
    return file->Sync(run.bytes);  // All that was written to it has returned.
  }

  Result<std::shared_ptr<WritableFile>> Acquire(std::size_t number) {
    const std::scoped_lock lock(mutex_);
    std::shared_ptr<WritableFile>& file = open_[number].file;
    if (file == nullptr) {
      const HfFileSize& wanted = files_[share_->runs[number].file];
      VARVE_ASSIGN_OR_RETURN(
          file, storage_.OpenForWrite(JoinPath(directory_, wanted.name), {.size = wanted.size}));
    }
    return file;
  }

  Storage& storage_;
  const std::string directory_;
  const std::vector<HfFileSize> files_;
  const std::shared_ptr<const HfShare> share_;
  const std::uint64_t block_bytes_;
  const std::shared_ptr<ScatterOutcome> outcome_;
  std::mutex mutex_;            // Guards what follows, and the outcome's sums.
  std::vector<OpenFile> open_;  // By run.
};

}  // namespace

std::unique_ptr<WritableFile> OpenOwnFiles(Storage& storage, const std::string& directory,
                                           const std::vector<HfFileSize>& files,
                                           std::shared_ptr<const HfShare> share,
                                           std::uint64_t block_bytes,
                                           std::shared_ptr<ScatterOutcome> outcome) {
  outcome->sums.clear();
  outcome->fragments.clear();
  return std::make_unique<OwnFiles>(storage, directory, files, std::move(share), block_bytes,
                                    std::move(outcome));
}

}  // namespace varve
