#include "storage/objects/object_writer.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include "base/checksum.h"
#include "base/guarded.h"
#include "base/retry_time.h"
#include "base/time_source.h"
#include "storage/objects/upload_machine.h"

namespace varve {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kMostParts = 10'000;

/// Returns 32 hex digits by chance.
std::string RandomMark() {
  const std::array words{RandomNumber(), RandomNumber()};
  const auto bytes = std::as_bytes(std::span(words));
  return Hex({reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()});
}

/// Returns the event of a request that failed. FailedPrecondition and the like are the server's own
/// refusals; no answer, no such upload and an answer without sense leave open what was done.
UploadEvent EventOf(const Status& failed) {
  switch (failed.code()) {
    case StatusCode::kUnavailable:
    case StatusCode::kNotFound:
    case StatusCode::kDataLoss: return upload_event::Unclear{};
    default: return upload_event::Refused{};
  }
}

class ObjectWriter final : public WritableFile {
 public:
  ObjectWriter(const ObjectCalls& calls, std::string name, std::uint64_t part_bytes)
      : calls_(calls), name_(std::move(name)), part_bytes_(part_bytes), mark_(RandomMark()) {}
  ObjectWriter(const ObjectWriter&) = delete;
  ObjectWriter& operator=(const ObjectWriter&) = delete;
  ~ObjectWriter() override;

  Status WriteAt(std::uint64_t offset, std::span<const std::byte> data) override;
  Status Sync(std::uint64_t size) override;
  [[nodiscard]] bool direct() const override { return false; }

 private:
  /// Of huge pages, which large parts want.
  static constexpr std::align_val_t kAlignment{std::size_t{2} << 20};
  struct Free {
    void operator()(std::byte* bytes) const { ::operator delete[](bytes, kAlignment); }
  };
  using Buffer = std::unique_ptr<std::byte[], Free>;
  struct Part {
    Buffer bytes;  ///< Null once it has been uploaded. Bytes not written are undefined.
    std::vector<std::pair<std::uint64_t, std::uint64_t>> written;  ///< Begin and end of each write.
    std::uint64_t written_bytes = 0;
    bool full = false;  ///< Sent, or being sent: takes no more bytes.
  };

  Status WriteInto(std::uint64_t index, std::uint64_t at, std::span<const std::byte> data);
  Status Upload(std::uint64_t index, std::span<const std::byte> bytes);
  Status Begin();
  Status Broken();
  Buffer TakeBuffer();
  [[nodiscard]] Buffer MakeBuffer() const;
  std::span<const std::byte> ContentOf(Part* part, std::uint64_t bytes) const;
  Status UploadRest(std::uint64_t size);
  Status PutWhole(std::uint64_t size);
  Status Complete(std::uint64_t count);
  Status Look(const Status& unclear);
  UploadAction Take(const UploadEvent& event);

  const ObjectCalls& calls_;
  const std::string name_;
  const std::uint64_t part_bytes_;
  const std::string mark_;  // That the object carries, so that it is known again.
  std::mutex mutex_;        // Guards all below.
  std::condition_variable changed_;
  UploadState state_;
  Status failed_;                        // The first error.
  std::map<std::uint64_t, Part> parts_;  // By number, from 0 on.
  std::vector<Buffer> free_;             // Of part_bytes_. Memory that has been used is cheaper.
};

ObjectWriter::~ObjectWriter() {
  if (Take(upload_event::GivenUp{}) == UploadAction::kEnd) {
    BestEffort([&] { return calls_.EndUpload(name_, state_.id, nullptr); });
  }
}

UploadAction ObjectWriter::Take(const UploadEvent& event) {
  const std::scoped_lock lock(mutex_);
  const UploadAction action = Step(&state_, event);
  changed_.notify_all();
  return action;
}

Status ObjectWriter::WriteAt(std::uint64_t offset, std::span<const std::byte> data) {
  while (!data.empty()) {
    const std::uint64_t index = offset / part_bytes_;
    const std::uint64_t at = offset % part_bytes_;
    const std::uint64_t now = std::min<std::uint64_t>(data.size(), part_bytes_ - at);
    VARVE_RETURN_IF_ERROR(WriteInto(index, at, data.first(now)));
    offset += now;
    data = data.subspan(now);
  }
  return Status::Ok();
}

Status ObjectWriter::WriteInto(std::uint64_t index, std::uint64_t at,
                               std::span<const std::byte> data) {
  if (index >= kMostParts) {
    return InvalidArgument(calls_.PathOf(name_) + ": larger than the " +
                           std::to_string(kMostParts * part_bytes_) +
                           " bytes that fit the expected size");
  }
  std::byte* target = nullptr;
  {
    const std::scoped_lock lock(mutex_);
    Part& part = parts_[index];
    if (part.full || part.written_bytes + data.size() > part_bytes_) {
      return Internal(calls_.PathOf(name_) + ": bytes of part " + std::to_string(index + 1) +
                      " are written twice");
    }
    if (data.size() == part_bytes_) {
      part.full = true;
    } else if (part.bytes == nullptr) {
      part.bytes = TakeBuffer();
    }
    target = part.bytes.get();
  }
  if (data.size() == part_bytes_) {
    return Upload(index, data);
  }
  std::memcpy(target + at, data.data(), data.size());
  Buffer whole;
  {
    const std::scoped_lock lock(mutex_);
    Part& part = parts_[index];
    part.written.emplace_back(at, at + data.size());
    part.written_bytes += data.size();
    // The first part may be all there is, which only Sync knows.
    if (part.written_bytes < part_bytes_ || index == 0) {
      return Status::Ok();
    }
    part.full = true;
    whole = std::move(part.bytes);
  }
  const Status uploaded = Upload(index, std::span(whole.get(), part_bytes_));
  const std::scoped_lock lock(mutex_);
  free_.push_back(std::move(whole));
  return uploaded;
}

/// Returns memory for a part, in huge pages where it is large: to touch pages of 4 KiB for the
/// first time takes a tenth of the processor time of an upload.
ObjectWriter::Buffer ObjectWriter::MakeBuffer() const {
  Buffer buffer(static_cast<std::byte*>(::operator new[](part_bytes_, kAlignment)));
  const auto page = static_cast<std::uint64_t>(kAlignment);
  if (part_bytes_ >= page) {
    (void)::madvise(buffer.get(), part_bytes_ / page * page, MADV_HUGEPAGE);  // A wish.
  }
  return buffer;
}

/// Called with the lock held.
ObjectWriter::Buffer ObjectWriter::TakeBuffer() {
  if (free_.empty()) {
    return MakeBuffer();
  }
  Buffer buffer = std::move(free_.back());
  free_.pop_back();
  return buffer;
}

/// Returns why the upload is broken. Called with the lock held.
Status ObjectWriter::Broken() {
  return failed_.ok() ? Internal(calls_.PathOf(name_) + ": its upload is not open")
                      : CopyOf(failed_);
}

Status ObjectWriter::Begin() {
  // Others wait for the outcome, whatever the store throws.
  auto id = Guarded([&] { return calls_.StartUpload(name_, part_bytes_, mark_); });
  if (id.ok()) {
    (void)Take(upload_event::Begun{*std::move(id)});
    return Status::Ok();
  }
  {
    const std::scoped_lock lock(mutex_);
    failed_ = CopyOf(id.status());
  }
  (void)Take(EventOf(id.status()));
  return id.status();
}

/// Sends a part, all of whose bytes are there. Threads whose parts are full before the upload has
/// begun wait for the one that begins it.
Status ObjectWriter::Upload(std::uint64_t index, std::span<const std::byte> bytes) {
  if (Take(upload_event::PartIsFull{}) == UploadAction::kBegin) {
    VARVE_RETURN_IF_ERROR(Begin());
  }
  {
    std::unique_lock lock(mutex_);
    Wait(changed_, lock, [&] { return state_.is != UploadStep::kBeginning; });
    if (state_.is != UploadStep::kOpen) {
      return Broken();
    }
  }
  auto part = calls_.UploadPart(name_, state_.id, static_cast<int>(index) + 1, bytes);
  if (part.ok()) {
    (void)Take(upload_event::PartSent{index, *std::move(part)});
    return Status::Ok();
  }
  {
    const std::scoped_lock lock(mutex_);
    failed_ = failed_.ok() ? CopyOf(part.status()) : std::move(failed_);
  }
  (void)Take(EventOf(part.status()));
  return part.status();
}

/// Returns the first `bytes` of a part, with zeros where nothing was written.
std::span<const std::byte> ObjectWriter::ContentOf(Part* part, std::uint64_t bytes) const {
  if (part->bytes == nullptr) {
    part->bytes = MakeBuffer();
  }
  std::sort(part->written.begin(), part->written.end());
  std::uint64_t at = 0;
  const auto fill_until = [&](std::uint64_t end) {
    if (end > at) {
      std::memset(part->bytes.get() + at, 0, end - at);
    }
  };
  for (const auto& [begin, end] : part->written) {
    fill_until(begin);
    at = std::max(at, end);
  }
  fill_until(bytes);
  return {part->bytes.get(), bytes};
}

/// Uploads the parts that no write has completed. Called when all writes have returned.
Status ObjectWriter::UploadRest(std::uint64_t size) {
  const std::uint64_t count = (size + part_bytes_ - 1) / part_bytes_;
  for (std::uint64_t index = 0; index < count; ++index) {
    Part& part = parts_[index];
    const std::uint64_t bytes = std::min(part_bytes_, size - index * part_bytes_);
    if (part.full && bytes == part_bytes_) {
      continue;
    }
    if (part.full) {
      return Internal(calls_.PathOf(name_) + ": cut to " + std::to_string(size) +
                      " bytes, which are in a part that has been uploaded");
    }
    part.full = true;
    VARVE_RETURN_IF_ERROR(Upload(index, ContentOf(&part, bytes)));
    part.bytes.reset();
  }
  return Complete(count);
}

Status ObjectWriter::PutWhole(std::uint64_t size) {
  Status put = calls_.Put(name_, ContentOf(&parts_[0], size), /*if_absent=*/false);
  (void)Take(put.ok() ? UploadEvent(upload_event::Carried{}) : EventOf(put));
  return put;
}

Status ObjectWriter::Complete(std::uint64_t count) {
  if (Take(upload_event::SyncedParts{count}) != UploadAction::kComplete) {
    const std::scoped_lock lock(mutex_);
    return Broken();
  }
  std::vector<std::string> parts;
  parts.reserve(state_.uploaded.size());
  for (auto& [index, part] : state_.uploaded) {
    parts.push_back(std::move(part));
  }
  Status completed = calls_.EndUpload(name_, state_.id, &parts);
  if (completed.ok()) {
    (void)Take(upload_event::Carried{});
    return completed;
  }
  return Take(EventOf(completed)) == UploadAction::kLook ? Look(completed) : completed;
}

/// Looks whether the object under the name is that of this upload. Returns `unclear` where it is
/// not.
Status ObjectWriter::Look(const Status& unclear) {
  const RetryTimeAfter bounded(unclear);
  const auto there = calls_.Head(name_);
  const bool ours = there.ok() && there->mark == mark_;
  (void)Take(upload_event::Looked{ours});
  if (ours) {
    return Status::Ok();
  }
  const std::string what =
      there.ok() || there.status().code() == StatusCode::kNotFound
          ? "the object there is not known to be that of this upload: somebody has ended it, as a "
            "rule of the bucket or a cleanup does, or it was not completed"
          : "whether it was completed is not known: " + there.status().message();
  return {unclear.code() == StatusCode::kNotFound ? StatusCode::kUnavailable : unclear.code(),
          unclear.message() + "; " + what};
}

Status ObjectWriter::Sync(std::uint64_t size) {
  bool small = size <= part_bytes_ && !parts_[0].full;
  {
    const std::scoped_lock lock(mutex_);
    if (state_.is == UploadStep::kDone) {
      return Internal(calls_.PathOf(name_) + ": synced twice");
    }
    small = small && state_.is == UploadStep::kGathering;
  }
  small = small && Take(upload_event::SyncedSmall{}) == UploadAction::kPut;
  VARVE_RETURN_IF_ERROR(small ? PutWhole(size) : UploadRest(size));
  parts_.clear();
  free_.clear();
  return Status::Ok();
}

/// A file of a store without uploads in parts.
class WholeWriter final : public WritableFile {
 public:
  WholeWriter(const ObjectCalls& calls, std::string name, std::uint64_t size)
      : calls_(calls), name_(std::move(name)), content_(size, '\0') {}

  Status WriteAt(std::uint64_t offset, std::span<const std::byte> data) override {
    return Guarded([&] {
      const std::scoped_lock lock(mutex_);
      if (offset + data.size() > content_.size()) {
        content_.resize(offset + data.size());
      }
      std::memcpy(content_.data() + offset, data.data(), data.size());
    });
  }

  Status Sync(std::uint64_t size) override {
    content_.resize(size);
    return calls_.Put(name_, std::as_bytes(std::span(content_.data(), size)),
                      /*if_absent=*/false);
  }

  [[nodiscard]] bool direct() const override { return false; }

 private:
  const ObjectCalls& calls_;
  const std::string name_;
  std::mutex mutex_;  // Guards content_, which may move when it grows.
  std::string content_;
};

}  // namespace

std::uint64_t PartBytes(std::uint64_t size, std::uint64_t least) {
  const std::uint64_t needed = (size + kMostParts - 1) / kMostParts;
  return needed <= least ? least : (needed + kMiB - 1) / kMiB * kMiB;
}

std::unique_ptr<WritableFile> MakeObjectWriter(const ObjectCalls& calls, std::string name,
                                               std::uint64_t size,
                                               const ObjectStoreOptions& options) {
  if (options.uploads) {
    return std::make_unique<ObjectWriter>(calls, std::move(name),
                                          PartBytes(size, options.part_bytes));
  }
  return std::make_unique<WholeWriter>(calls, std::move(name), size);
}

}  // namespace varve
