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

namespace {

class ScatterFile final : public WritableFile {
 public:
  ScatterFile(std::vector<std::unique_ptr<WritableFile>> files, std::vector<std::uint64_t> sizes,
              std::shared_ptr<const HfShare> share, std::uint64_t block_bytes,
              std::shared_ptr<ScatterOutcome> outcome)
      : files_(std::move(files)),
        sizes_(std::move(sizes)),
        share_(std::move(share)),
        block_bytes_(block_bytes),
        outcome_(std::move(outcome)) {
    for (const auto& file : files_) {
      direct_ = direct_ && (file == nullptr || file->direct());
    }
  }

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
  Status Sync(std::uint64_t /*size*/) override {
    for (std::size_t i = 0; i < files_.size(); ++i) {
      if (files_[i] != nullptr) {
        VARVE_RETURN_IF_ERROR(files_[i]->Sync(sizes_[i]));
      }
    }
    return Status::Ok();
  }

  [[nodiscard]] bool direct() const override { return direct_; }

 private:
  /// Writes bytes of a run, and the zeros behind its end up to the end of the page, which Sync cuts
  /// off the file.
  Status WriteRun(const HfRun& run, std::uint64_t at, std::span<const std::byte> data) {
    VARVE_RETURN_IF_ERROR(files_[run.file]->WriteAt(run.begin + at, data));
    std::span<const std::byte> rest =
        data.first(std::min<std::uint64_t>(data.size(), run.bytes - std::min(at, run.bytes)));
    std::vector<BytesSum> sums;
    for (std::uint64_t begin = run.begin + at; !rest.empty();) {
      const std::uint64_t step =
          std::min<std::uint64_t>(rest.size(), block_bytes_ - begin % block_bytes_);
      sums.push_back({run.file, begin, step, Crc32c(rest.first(step))});
      begin += step;
      rest = rest.subspan(step);
    }
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

  const std::vector<std::unique_ptr<WritableFile>> files_;  // Null: nothing of it is the rank's.
  const std::vector<std::uint64_t> sizes_;
  const std::shared_ptr<const HfShare> share_;
  const std::uint64_t block_bytes_;
  const std::shared_ptr<ScatterOutcome> outcome_;
  bool direct_ = true;
  std::mutex mutex_;  // Guards the outcome's sums.
};

}  // namespace

Result<std::unique_ptr<WritableFile>> OpenScatterFile(Storage& storage,
                                                      const std::string& directory,
                                                      const std::vector<HfFileSize>& files,
                                                      std::shared_ptr<const HfShare> share,
                                                      std::uint64_t block_bytes, bool direct,
                                                      std::shared_ptr<ScatterOutcome> outcome) {
  std::vector<bool> used(files.size(), false);
  for (const HfRun& run : share->runs) {
    used[run.file] = true;
  }
  std::vector<std::unique_ptr<WritableFile>> opened(files.size());
  std::vector<std::uint64_t> sizes;
  for (std::size_t i = 0; i < files.size(); ++i) {
    sizes.push_back(files[i].size);
    if (used[i]) {
      const WriteOptions options{.size = files[i].size, .direct = direct, .shared = true};
      VARVE_ASSIGN_OR_RETURN(opened[i],
                             storage.OpenForWrite(JoinPath(directory, files[i].name), options));
    }
  }
  outcome->sums.clear();
  outcome->fragments.assign(share->fragment_bytes(), '\0');
  return std::unique_ptr<WritableFile>(std::make_unique<ScatterFile>(
      std::move(opened), std::move(sizes), std::move(share), block_bytes, std::move(outcome)));
}

}  // namespace varve
