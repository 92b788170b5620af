#include "storage/s3/object_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/guarded.h"
#include "varve/stop.h"

namespace varve::s3 {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kMostParts = 10'000;

}  // namespace

std::uint64_t PartBytes(std::uint64_t size, std::uint64_t least) {
  const std::uint64_t needed = (size + kMostParts - 1) / kMostParts;
  return std::max(least, (needed + kMiB - 1) / kMiB * kMiB);
}

ObjectWriter::ObjectWriter(S3Client& client, ObjectName object, std::uint64_t part_bytes)
    : client_(client), object_(std::move(object)), part_bytes_(part_bytes) {}

ObjectWriter::~ObjectWriter() {
  if (!done_ && !upload_.empty()) {
    const ScopedStop none{std::stop_token()};  // Also where the caller was asked to stop.
    (void)Guarded([&] { return client_.AbortUpload(object_, upload_); });
  }
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
    return InvalidArgument(PathOf(object_) + ": larger than the " +
                           std::to_string(kMostParts * part_bytes_) +
                           " bytes that fit the expected size");
  }
  std::byte* target = nullptr;
  {
    const std::scoped_lock lock(mutex_);
    Part& part = parts_[index];
    if (part.sent || part.written_bytes + data.size() > part_bytes_) {
      return Internal(PathOf(object_) + ": bytes of part " + std::to_string(index + 1) +
                      " are written twice");
    }
    if (data.size() == part_bytes_) {
      part.sent = true;
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
    part.sent = true;
    whole = std::move(part.bytes);
  }
  const Status uploaded = Upload(index, std::span(whole.get(), part_bytes_));
  const std::scoped_lock lock(mutex_);
  free_.push_back(std::move(whole));
  return uploaded;
}

/// Called with the lock held.
ObjectWriter::Buffer ObjectWriter::TakeBuffer() {
  if (free_.empty()) {
    return std::make_unique_for_overwrite<std::byte[]>(part_bytes_);
  }
  Buffer buffer = std::move(free_.back());
  free_.pop_back();
  return buffer;
}

Result<std::string> ObjectWriter::UploadId() {
  const std::scoped_lock begin(begin_mutex_);
  {
    const std::scoped_lock lock(mutex_);
    if (!upload_.empty()) {
      return upload_;
    }
  }
  VARVE_ASSIGN_OR_RETURN(std::string id, client_.BeginUpload(object_));
  const std::scoped_lock lock(mutex_);
  upload_ = id;
  return id;
}

Status ObjectWriter::Upload(std::uint64_t index, std::span<const std::byte> bytes) {
  VARVE_ASSIGN_OR_RETURN(const std::string id, UploadId());
  VARVE_ASSIGN_OR_RETURN(UploadedPart part,
                         client_.UploadPart(object_, id, static_cast<int>(index) + 1, bytes));
  const std::scoped_lock lock(mutex_);
  parts_[index].uploaded = std::move(part);
  return Status::Ok();
}

/// Returns the first `bytes` of a part, with zeros where nothing was written.
std::span<const std::byte> ObjectWriter::ContentOf(Part* part, std::uint64_t bytes) const {
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
  if (at < part_bytes_) {
    std::memset(part->bytes.get() + at, 0, part_bytes_ - at);
  }
  return {part->bytes.get(), bytes};
}

/// Uploads the parts that no write has completed. Called when all writes have returned.
Status ObjectWriter::UploadRest(std::uint64_t size) {
  const std::uint64_t count = (size + part_bytes_ - 1) / part_bytes_;
  for (std::uint64_t index = 0; index < count; ++index) {
    Part& part = parts_[index];
    const std::uint64_t bytes = std::min(part_bytes_, size - index * part_bytes_);
    if (part.sent && bytes == part_bytes_) {
      continue;
    }
    if (part.sent) {
      return Internal(PathOf(object_) + ": cut to " + std::to_string(size) +
                      " bytes, which are in a part that has been uploaded");
    }
    VARVE_RETURN_IF_ERROR(Upload(index, ContentOf(&part, bytes)));
    part.sent = true;
    part.bytes.reset();
  }
  parts_.erase(parts_.lower_bound(count), parts_.end());  // Zeros behind the end.
  return Status::Ok();
}

Status ObjectWriter::Complete(std::uint64_t size) {
  std::vector<UploadedPart> parts;
  parts.reserve(parts_.size());
  for (auto& [index, part] : parts_) {
    parts.push_back(std::move(part.uploaded));
  }
  Status completed = client_.CompleteUpload(object_, upload_, parts);
  if (completed.code() == StatusCode::kNotFound) {
    // No such upload: a first try may have been carried out, and its answer lost.
    const auto there = client_.Head(object_);
    if (there.ok() && there->size == size) {
      return Status::Ok();
    }
  }
  return completed;
}

Status ObjectWriter::Sync(std::uint64_t size) {
  if (done_) {
    return Internal(PathOf(object_) + ": synced twice");
  }
  if (size <= part_bytes_ && upload_.empty() && !parts_[0].sent) {
    VARVE_RETURN_IF_ERROR(client_.Put(object_, ContentOf(&parts_[0], size), PutMode::kReplace));
  } else {
    VARVE_RETURN_IF_ERROR(UploadRest(size));
    VARVE_RETURN_IF_ERROR(Complete(size));
  }
  done_ = true;
  parts_.clear();
  free_.clear();
  return Status::Ok();
}

}  // namespace varve::s3
