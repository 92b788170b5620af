#include "storage/s3/object_writer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <utility>

#include <sys/mman.h>

#include "base/checksum.h"
#include "base/patience.h"
#include "base/time_source.h"
#include "varve/stop.h"

namespace varve::s3 {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kMostParts = 10'000;

/// Returns 32 hex digits by chance, that of a simulation where there is one.
std::string RandomToken() {
  std::array<std::uint64_t, 2> words{};
  for (std::uint64_t& word : words) {
    if (const auto simulated = SimulatedRandom()) {
      word = *simulated;
    } else {
      std::random_device device;
      word = (std::uint64_t{device()} << 32) | device();
    }
  }
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

}  // namespace

std::uint64_t PartBytes(std::uint64_t size, std::uint64_t least) {
  const std::uint64_t needed = (size + kMostParts - 1) / kMostParts;
  return needed <= least ? least : (needed + kMiB - 1) / kMiB * kMiB;
}

ObjectWriter::ObjectWriter(S3Client& client, ObjectName object, std::uint64_t part_bytes)
    : client_(client), object_(std::move(object)), part_bytes_(part_bytes), token_(RandomToken()) {}

ObjectWriter::~ObjectWriter() {
  if (Take(upload_event::GivenUp{}) == UploadAction::kEnd) {
    const ScopedStop none{std::stop_token()};  // Also where the caller was asked to stop.
    BestEffort([&] { return client_.AbortUpload(object_, state_.id); });
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
    return InvalidArgument(PathOf(object_) + ": larger than the " +
                           std::to_string(kMostParts * part_bytes_) +
                           " bytes that fit the expected size");
  }
  std::byte* target = nullptr;
  {
    const std::scoped_lock lock(mutex_);
    Part& part = parts_[index];
    if (part.full || part.written_bytes + data.size() > part_bytes_) {
      return Internal(PathOf(object_) + ": bytes of part " + std::to_string(index + 1) +
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
  return failed_.ok() ? Internal(PathOf(object_) + ": its upload is not open") : CopyOf(failed_);
}

Status ObjectWriter::Begin() {
  auto id = client_.BeginUpload(object_, token_);
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
  if (Take(upload_event::PartIsFull{index}) == UploadAction::kBegin) {
    VARVE_RETURN_IF_ERROR(Begin());
  }
  {
    std::unique_lock lock(mutex_);
    Wait(changed_, lock, [&] { return state_.is != UploadIs::kBeginning; });
    if (!TakePart(&state_, index)) {
      return Broken();
    }
  }
  auto part = client_.UploadPart(object_, state_.id, static_cast<int>(index) + 1, bytes);
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
    std::memset(part->bytes.get(), 0, part_bytes_);
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
    if (part.full && bytes == part_bytes_) {
      continue;
    }
    if (part.full) {
      return Internal(PathOf(object_) + ": cut to " + std::to_string(size) +
                      " bytes, which are in a part that has been uploaded");
    }
    part.full = true;
    VARVE_RETURN_IF_ERROR(Upload(index, ContentOf(&part, bytes)));
    part.bytes.reset();
  }
  return Complete(count);
}

Status ObjectWriter::PutWhole(std::uint64_t size) {
  Status put = client_.Put(object_, ContentOf(&parts_[0], size), PutMode::kReplace);
  (void)Take(put.ok() ? UploadEvent(upload_event::Carried{}) : EventOf(put));
  return put;
}

Status ObjectWriter::Complete(std::uint64_t count) {
  if (Take(upload_event::SyncedParts{count}) != UploadAction::kComplete) {
    const std::scoped_lock lock(mutex_);
    return Broken();
  }
  std::vector<UploadedPart> parts;
  parts.reserve(state_.uploaded.size());
  for (auto& [index, part] : state_.uploaded) {
    parts.push_back(std::move(part));
  }
  Status completed = client_.CompleteUpload(object_, state_.id, parts);
  if (completed.ok()) {
    (void)Take(upload_event::Carried{});
    return completed;
  }
  return Take(EventOf(completed)) == UploadAction::kLook ? Look(completed) : completed;
}

/// Looks whether the object under the name is that of this upload. Returns `unclear` where it is
/// not.
Status ObjectWriter::Look(const Status& unclear) {
  const PatienceAfter patience(unclear);
  const auto there = client_.Head(object_);
  const bool ours = there.ok() && there->token == token_;
  (void)Take(upload_event::Looked{ours});
  if (ours) {
    return Status::Ok();
  }
  const std::string what =
      there.ok() || there.status().code() == StatusCode::kNotFound
          ? "the object there is not that of this upload: somebody has ended it, as a rule of the "
            "bucket or a cleanup does, or it was not completed"
          : "whether it was completed is not known: " + there.status().message();
  return {unclear.code() == StatusCode::kNotFound ? StatusCode::kUnavailable : unclear.code(),
          unclear.message() + "; " + what};
}

Status ObjectWriter::Sync(std::uint64_t size) {
  bool small = size <= part_bytes_ && !parts_[0].full;
  {
    const std::scoped_lock lock(mutex_);
    if (state_.is == UploadIs::kDone) {
      return Internal(PathOf(object_) + ": synced twice");
    }
    small = small && state_.is == UploadIs::kGathering;
  }
  small = small && Take(upload_event::SyncedSmall{}) == UploadAction::kPut;
  VARVE_RETURN_IF_ERROR(small ? PutWhole(size) : UploadRest(size));
  parts_.clear();
  free_.clear();
  return Status::Ok();
}

}  // namespace varve::s3
