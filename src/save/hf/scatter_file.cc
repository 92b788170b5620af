#include "save/hf/scatter_file.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <list>
#include <tuple>
#include <utility>

#include "base/checked.h"
#include "base/checksum.h"

namespace varve {

void JoinSums(std::uint64_t block_bytes, std::vector<BytesSum>* sums) {
  std::sort(sums->begin(), sums->end(), [](const BytesSum& a, const BytesSum& b) {
    return std::tie(a.file, a.begin) < std::tie(b.file, b.begin);
  });
  std::vector<BytesSum> joined;
  for (const BytesSum& sum : *sums) {
    if (!joined.empty()) {
      BytesSum& last = joined.back();
      if (last.file == sum.file && last.begin + last.bytes == sum.begin &&
          last.begin / block_bytes == sum.begin / block_bytes) {
        last.crc32c = Crc32cJoin(last.crc32c, sum.crc32c, sum.bytes);
        last.bytes += sum.bytes;
        continue;
      }
    }
    joined.push_back(sum);
  }
  *sums = std::move(joined);
}

void AddSums(std::uint32_t file, std::uint64_t begin, std::span<const std::byte> data,
             std::uint64_t block_bytes, std::vector<BytesSum>* sums) {
  while (!data.empty()) {
    const std::uint64_t step =
        std::min<std::uint64_t>(data.size(), block_bytes - begin % block_bytes);
    sums->push_back({file, begin, step, Crc32c(data.first(step))});
    begin += step;
    data = data.subspan(step);
  }
}

namespace {

/// The files of a folder that are written to, of which a few are open at a time. Threads: safe to
/// call concurrently.
class OpenFiles {
 public:
  OpenFiles(Storage& storage, std::string directory, std::vector<HfFileSize> files, bool direct)
      : storage_(storage),
        directory_(std::move(directory)),
        files_(std::move(files)),
        direct_(direct) {}

  /// Returns a file, open as long as the caller holds it.
  Result<std::shared_ptr<WritableFile>> Acquire(std::uint32_t number) {
    const std::scoped_lock lock(mutex_);
    for (auto it = open_.begin(); it != open_.end(); ++it) {
      if (it->number == number) {
        open_.splice(open_.begin(), open_, it);
        return it->file;
      }
    }
    VARVE_RETURN_IF_ERROR(CloseOldest());
    const WriteOptions options{.size = files_[number].size, .direct = direct_, .shared = true};
    VARVE_ASSIGN_OR_RETURN(
        std::shared_ptr<WritableFile> file,
        storage_.OpenForWrite(JoinPath(directory_, files_[number].name), options));
    open_.push_front({number, file});
    return file;
  }

  /// Makes all that was written durable.
  Status Sync() {
    const std::scoped_lock lock(mutex_);
    for (const OpenFile& one : open_) {
      VARVE_RETURN_IF_ERROR(one.file->Sync(files_[one.number].size));
    }
    return Status::Ok();
  }

 private:
  struct OpenFile {
    std::uint32_t number = 0;
    std::shared_ptr<WritableFile> file;
  };

  /// Makes room for one file. What is written to a file is durable before it is closed: an error of
  /// the disk is told to those who have the file open.
  Status CloseOldest() {
    for (auto it = open_.end(); open_.size() >= kMostOpen && it != open_.begin();) {
      --it;
      if (it->file.use_count() == 1) {  // No thread writes to it: they ask for it under the lock.
        VARVE_RETURN_IF_ERROR(it->file->Sync(files_[it->number].size));
        it = open_.erase(it);
      }
    }
    return Status::Ok();
  }

  static constexpr std::size_t kMostOpen = 16;

  Storage& storage_;
  const std::string directory_;
  const std::vector<HfFileSize> files_;
  const bool direct_;
  std::mutex mutex_;          // Guards what follows.
  std::list<OpenFile> open_;  // The latest used first.
};

class ScatterFile final : public WritableFile {
 public:
  ScatterFile(std::unique_ptr<OpenFiles> files, bool direct, std::shared_ptr<const HfShare> share,
              std::uint64_t block_bytes, std::shared_ptr<ScatterOutcome> outcome)
      : files_(std::move(files)),
        share_(std::move(share)),
        block_bytes_(block_bytes),
        outcome_(std::move(outcome)),
        direct_(direct) {}

  Status WriteAt(std::uint64_t offset, std::span<const std::byte> data) override {
    const std::uint64_t end = offset + data.size();
    auto run =
        std::partition_point(share_->runs.begin(), share_->runs.end(), [&](const HfRun& one) {
          return one.image_begin + RoundUp(one.bytes, kDirectAlignment) <= offset;
        });
    for (; run != share_->runs.end() && run->image_begin < end; ++run) {
      const std::uint64_t begin = std::max(offset, run->image_begin);
      const std::uint64_t padded = RoundUp(run->bytes, kDirectAlignment);
      const std::uint64_t stop = std::min(end, run->image_begin + padded);
      VARVE_RETURN_IF_ERROR(
          WriteRun(*run, begin - run->image_begin, data.subspan(begin - offset, stop - begin)));
    }
    Keep(offset, data);
    return Status::Ok();
  }

  /// Makes all files durable; `size` is the image's and of no interest.
  Status Sync(std::uint64_t /*size*/) override { return files_->Sync(); }

  [[nodiscard]] bool direct() const override { return direct_; }

 private:
  /// Writes bytes of a run, and the zeros behind its end up to the end of the page, which Sync cuts
  /// off the file.
  Status WriteRun(const HfRun& run, std::uint64_t at, std::span<const std::byte> data) {
    VARVE_ASSIGN_OR_RETURN(const auto file, files_->Acquire(run.file));
    VARVE_RETURN_IF_ERROR(file->WriteAt(run.begin + at, data));
    std::vector<BytesSum> sums;
    AddSums(run.file, run.begin + at,
            data.first(std::min<std::uint64_t>(data.size(), run.bytes - std::min(at, run.bytes))),
            block_bytes_, &sums);
    const std::scoped_lock lock(mutex_);
    outcome_->sums.insert(outcome_->sums.end(), sums.begin(), sums.end());
    return Status::Ok();
  }

  /// Keeps what of the data are fragments. Blocks are disjoint: no two calls write the same bytes.
  void Keep(std::uint64_t offset, std::span<const std::byte> data) {
    const std::uint64_t begin = std::max(offset, share_->fragments_begin);
    const std::uint64_t end = std::min(offset + data.size(), share_->image_bytes);
    if (begin < end) {
      std::memcpy(outcome_->fragments.data() + (begin - share_->fragments_begin),
                  data.data() + (begin - offset), end - begin);
    }
  }

  const std::unique_ptr<OpenFiles> files_;
  const std::shared_ptr<const HfShare> share_;
  const std::uint64_t block_bytes_;
  const std::shared_ptr<ScatterOutcome> outcome_;
  const bool direct_;
  std::mutex mutex_;  // Guards the outcome's sums.
};

}  // namespace

Result<std::unique_ptr<WritableFile>> OpenScatterFile(Storage& storage,
                                                      const std::string& directory,
                                                      const std::vector<HfFileSize>& files,
                                                      std::shared_ptr<const HfShare> share,
                                                      std::uint64_t block_bytes, bool direct,
                                                      std::shared_ptr<ScatterOutcome> outcome) {
  bool bypasses = direct;
  if (!share->runs.empty()) {  // Whether pages can be bypassed, one file tells for all.
    const HfFileSize& first = files[share->runs.front().file];
    VARVE_ASSIGN_OR_RETURN(
        const auto file,
        storage.OpenForWrite(JoinPath(directory, first.name),
                             {.size = first.size, .direct = direct, .shared = true}));
    bypasses = file->direct();
  }
  outcome->sums.clear();
  outcome->fragments.assign(share->fragment_bytes(), '\0');
  return std::unique_ptr<WritableFile>(std::make_unique<ScatterFile>(
      std::make_unique<OpenFiles>(storage, directory, files, bypasses), bypasses, std::move(share),
      block_bytes, std::move(outcome)));
}

}  // namespace varve
