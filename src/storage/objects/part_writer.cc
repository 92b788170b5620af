// Parts of equal size, as stores of objects want them, from writes of any size by several threads.
//  - The thread whose bytes complete a part uploads it. A write of exactly one part goes from the
//    caller's memory to the store; other bytes are gathered in memory, at most two parts for each
//    thread that writes in order.
//  - What is not larger than one part becomes visible by one Put, in Sync. So the first part is
//    uploaded last, unless it was written at once.
//  - Nothing is visible before Sync. The destructor gives an upload up.

#include "storage/objects/part_writer.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/guarded.h"
#include "varve/stop.h"

namespace varve {
namespace {

constexpr std::uint64_t kMostParts = 10'000;

/// Returns the size of parts: `least`, and more where there would be more than 10,000.
std::uint64_t SizeOfParts(std::uint64_t size, std::uint64_t least) {
  constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
  const std::uint64_t needed = (size + kMostParts - 1) / kMostParts;
  return std::max(least, (needed + kMiB - 1) / kMiB * kMiB);
}

class PartWriter final : public WritableFile {
 public:
  PartWriter(const ObjectCalls& calls, std::string name, std::uint64_t part_bytes)
      : calls_(calls), name_(std::move(name)), part_bytes_(part_bytes) {}
  PartWriter(const PartWriter&) = delete;
  PartWriter& operator=(const PartWriter&) = delete;
  ~PartWriter() override {
    if (!done_ && !upload_.empty()) {
      const ScopedStop none{std::stop_token()};  // Also where the caller was asked to stop.
      (void)Guarded([&] { return calls_.EndUpload(name_, upload_, nullptr); });
    }
  }

  Status WriteAt(std::uint64_t offset, std::span<const std::byte> data) override {
    while (!data.empty()) {
      const std::uint64_t at = offset % part_bytes_;
      const std::uint64_t now = std::min<std::uint64_t>(data.size(), part_bytes_ - at);
      VARVE_RETURN_IF_ERROR(WriteInto(offset / part_bytes_, at, data.first(now)));
      offset += now;
      data = data.subspan(now);
    }
    return Status::Ok();
  }

  Status Sync(std::uint64_t size) override;
  [[nodiscard]] bool direct() const override { return false; }

 private:
  using Buffer = std::unique_ptr<std::byte[]>;
  struct Part {
    Buffer bytes;  ///< Null once it has been uploaded. What was not written to is undefined.
    std::vector<std::pair<std::uint64_t, std::uint64_t>> written;  ///< Begin and end of each write.
    std::uint64_t written_bytes = 0;
    bool sent = false;
    std::string uploaded;  ///< What the store returned for it.
  };

  Status WriteInto(std::uint64_t index, std::uint64_t at, std::span<const std::byte> data);
  Status Upload(std::uint64_t index, std::span<const std::byte> bytes);
  Buffer TakeBuffer();
  std::span<const std::byte> ContentOf(Part* part, std::uint64_t bytes) const;
  Status UploadRest(std::uint64_t size);
  Result<std::string> UploadId();

  const ObjectCalls& calls_;
  const std::string name_;
  const std::uint64_t part_bytes_;
  std::mutex begin_mutex_;  // Held while the upload is begun, before mutex_.
  std::mutex mutex_;        // Guards all below. Never held while the store is called.
  std::string upload_;      // Empty: not begun.
  bool done_ = false;
  std::map<std::uint64_t, Part> parts_;  // By number, from 0 on.
  std::vector<Buffer> free_;             // Of part_bytes_. Memory that has been used is cheaper.
};

Status PartWriter::WriteInto(std::uint64_t index, std::uint64_t at,
                             std::span<const std::byte> data) {
  if (index >= kMostParts) {
    return InvalidArgument(calls_.PathOf(name_) + ": larger than the " +
                           std::to_string(kMostParts * part_bytes_) +
                           " bytes that fit the expected size");
  }
  const bool is_whole = data.size() == part_bytes_;
  std::byte* target = nullptr;
  {
    const std::scoped_lock lock(mutex_);
    Part& part = parts_[index];
    if (part.sent || part.written_bytes + data.size() > part_bytes_) {
      return Internal(calls_.PathOf(name_) + ": bytes of part " + std::to_string(index + 1) +
                      " are written twice");
    }
    if (is_whole) {
      part.sent = true;
    } else if (part.bytes == nullptr) {
      part.bytes = TakeBuffer();
    }
    target = part.bytes.get();
  }
  if (is_whole) {
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
    part.sent = true;
    whole = std::move(part.bytes);
  }
  const Status uploaded = Upload(index, std::span(whole.get(), part_bytes_));
  const std::scoped_lock lock(mutex_);
  free_.push_back(std::move(whole));
  return uploaded;
}

/// Called with the lock held.
PartWriter::Buffer PartWriter::TakeBuffer() {
  if (free_.empty()) {
    return std::make_unique_for_overwrite<std::byte[]>(part_bytes_);
  }
  Buffer buffer = std::move(free_.back());
  free_.pop_back();
  return buffer;
}

Result<std::string> PartWriter::UploadId() {
  const std::scoped_lock begin(begin_mutex_);
  {
    const std::scoped_lock lock(mutex_);
    if (!upload_.empty()) {
      return upload_;
    }
  }
  VARVE_ASSIGN_OR_RETURN(std::string id, calls_.StartUpload(name_, part_bytes_));
  if (id.empty()) {
    return FailedPrecondition("begin the upload of " + calls_.PathOf(name_) +
                              ": the store returns an empty id");
  }
  const std::scoped_lock lock(mutex_);
  upload_ = id;
  return id;
}

Status PartWriter::Upload(std::uint64_t index, std::span<const std::byte> bytes) {
  VARVE_ASSIGN_OR_RETURN(const std::string id, UploadId());
  VARVE_ASSIGN_OR_RETURN(std::string uploaded,
                         calls_.UploadPart(name_, id, static_cast<int>(index) + 1, bytes));
  const std::scoped_lock lock(mutex_);
  parts_[index].uploaded = std::move(uploaded);
  return Status::Ok();
}

/// Returns the first `bytes` of a part, with zeros where nothing was written.
std::span<const std::byte> PartWriter::ContentOf(Part* part, std::uint64_t bytes) const {
  if (part->bytes == nullptr) {
    part->bytes = std::make_unique<std::byte[]>(part_bytes_);
    return {part->bytes.get(), bytes};
  }
  std::sort(part->written.begin(), part->written.end());
  std::uint64_t at = 0;
  for (const auto& [begin, end] : part->written) {
    if (begin > at) {
      std::memset(part->bytes.get() + at, 0, begin - at);
    }
    at = std::max(at, end);
  }
  std::memset(part->bytes.get() + at, 0, part_bytes_ - at);
  return {part->bytes.get(), bytes};
}

/// Uploads the parts that no write has completed. Called when all writes have returned.
Status PartWriter::UploadRest(std::uint64_t size) {
  const std::uint64_t count = (size + part_bytes_ - 1) / part_bytes_;
  for (std::uint64_t index = 0; index < count; ++index) {
    Part& part = parts_[index];
    const std::uint64_t bytes = std::min(part_bytes_, size - index * part_bytes_);
    if (part.sent && bytes == part_bytes_) {
      continue;
    }
    if (part.sent) {
      return Internal(calls_.PathOf(name_) + ": cut to " + std::to_string(size) +
                      " bytes, which are in a part that has been uploaded");
    }
    VARVE_RETURN_IF_ERROR(Upload(index, ContentOf(&part, bytes)));
    part.sent = true;
    part.bytes.reset();
  }
  parts_.erase(parts_.lower_bound(count), parts_.end());  // Zeros behind the end.
  return Status::Ok();
}

Status PartWriter::Sync(std::uint64_t size) {
  if (done_) {
    return Internal(calls_.PathOf(name_) + ": synced twice");
  }
  if (size <= part_bytes_ && upload_.empty() && !parts_[0].sent) {
    VARVE_RETURN_IF_ERROR(calls_.Put(name_, ContentOf(&parts_[0], size), /*if_absent=*/false));
  } else {
    VARVE_RETURN_IF_ERROR(UploadRest(size));
    std::vector<std::string> parts;
    parts.reserve(parts_.size());
    for (auto& [index, part] : parts_) {
      parts.push_back(std::move(part.uploaded));
    }
    VARVE_RETURN_IF_ERROR(calls_.EndUpload(name_, upload_, &parts));
  }
  done_ = true;
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
      return Status::Ok();
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

std::unique_ptr<WritableFile> MakePartWriter(const ObjectCalls& calls, std::string name,
                                             std::uint64_t size,
                                             const ObjectStoreOptions& options) {
  if (options.uploads) {
    return std::make_unique<PartWriter>(calls, std::move(name),
                                        SizeOfParts(size, options.part_bytes));
  }
  return std::make_unique<WholeWriter>(calls, std::move(name), size);
}

}  // namespace varve
