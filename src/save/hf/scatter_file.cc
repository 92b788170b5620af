#include "save/hf/scatter_file.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
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

/// The files of a folder that a rank writes to. The image has all bytes of one before those of the
/// next, so each is open from its first bytes to its last. Threads: safe to call concurrently.
class OpenFiles {
 public:
  OpenFiles(Storage& storage, std::string directory, std::vector<HfFileSize> sizes,
            const HfShare& share, ScatterOptions options)
      : storage_(storage),
        directory_(std::move(directory)),
        sizes_(std::move(sizes)),
        options_(options),
        files_(sizes_.size()) {
    for (const HfRun& run : share.runs) {
      files_[run.file].missing += run.bytes;
    }
  }

  Result<std::shared_ptr<WritableFile>> Acquire(std::uint32_t number) {
    const std::scoped_lock lock(mutex_);
    std::shared_ptr<WritableFile>& file = files_[number].file;
    if (file == nullptr) {
      const HfFileSize& wanted = sizes_[number];
      const WriteOptions how{
          .size = wanted.size, .direct = options_.direct, .shared = options_.shared};
      VARVE_ASSIGN_OR_RETURN(file, storage_.OpenForWrite(JoinPath(directory_, wanted.name), how));
    }
    return file;
  }

  /// Notes bytes that have been written. With its last ones a file is made durable, and closed
  /// after that: an error of the disk is told to those who have the file open.
  Status Written(std::uint32_t number, std::uint64_t bytes) {
    std::shared_ptr<WritableFile> whole;
    {
      const std::scoped_lock lock(mutex_);
      files_[number].missing -= bytes;
      if (files_[number].missing > 0) {
        return Status::Ok();
      }
      whole = std::move(files_[number].file);
    }
    return whole->Sync(sizes_[number].size);
  }

  /// Errors: Internal where bytes of a file have not been written.
  Status CheckWhole() {
    const std::scoped_lock lock(mutex_);
    for (std::size_t i = 0; i < files_.size(); ++i) {
      if (files_[i].missing > 0) {
        return Internal(std::to_string(files_[i].missing) + " bytes of " + sizes_[i].name +
                        " were not written");
      }
    }
    return Status::Ok();
  }

 private:
  struct OpenFile {
    std::shared_ptr<WritableFile> file;
    std::uint64_t missing = 0;  ///< Bytes of this rank.
  };

  Storage& storage_;
  const std::string directory_;
  const std::vector<HfFileSize> sizes_;
  const ScatterOptions options_;
  std::mutex mutex_;             // Guards what follows.
  std::vector<OpenFile> files_;  // By number.
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
    auto run = std::partition_point(
        share_->runs.begin(), share_->runs.end(),
        [&](const HfRun& one) { return one.image_begin + one.bytes <= offset; });
    for (; run != share_->runs.end() && run->image_begin < end; ++run) {
      const std::uint64_t begin = std::max(offset, run->image_begin);
      VARVE_RETURN_IF_ERROR(WriteRun(*run, begin - run->image_begin, data.subspan(begin - offset)));
    }
    Keep(offset, data);
    return Status::Ok();
  }

  /// Each file is durable since its last bytes came; `size` is the image's and of no interest.
  Status Sync(std::uint64_t /*size*/) override { return files_->CheckWhole(); }

  [[nodiscard]] bool direct() const override { return direct_; }

 private:
  /// Writes the bytes of a run that `data` begins with. Whole pages, where they bypass the cache:
  /// Sync cuts off what of them is behind the end of the file.
  Status WriteRun(const HfRun& run, std::uint64_t at, std::span<const std::byte> data) {
    const std::uint64_t bytes = std::min<std::uint64_t>(data.size(), run.bytes - at);
    VARVE_ASSIGN_OR_RETURN(const auto file, files_->Acquire(run.file));
    VARVE_RETURN_IF_ERROR(file->WriteAt(
        run.begin + at, data.first(file->direct() ? RoundUp(bytes, kDirectAlignment) : bytes)));
    std::vector<BytesSum> sums;
    AddSums(run.file, run.begin + at, data.first(bytes), block_bytes_, &sums);
    {
      const std::scoped_lock lock(mutex_);
      outcome_->sums.insert(outcome_->sums.end(), sums.begin(), sums.end());
    }
    return files_->Written(run.file, bytes);
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

Result<std::unique_ptr<WritableFile>> OpenScatterFile(
    Storage& storage, const std::string& directory, const std::vector<HfFileSize>& files,
    std::shared_ptr<const HfShare> share, std::uint64_t block_bytes, ScatterOptions options,
    std::shared_ptr<ScatterOutcome> outcome) {
  auto open = std::make_unique<OpenFiles>(storage, directory, files, *share, options);
  bool direct = options.direct;
  if (direct && !share->runs.empty()) {  // Of pages that bypass, one file tells for all.
    VARVE_ASSIGN_OR_RETURN(const auto first, open->Acquire(share->runs.front().file));
    direct = first->direct();
  }
  outcome->sums.clear();
  outcome->fragments.assign(share->fragment_bytes(), '\0');
  return std::unique_ptr<WritableFile>(std::make_unique<ScatterFile>(
      std::move(open), direct, std::move(share), block_bytes, std::move(outcome)));
}

}  // namespace varve
