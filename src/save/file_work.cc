#include "save/file_work.h"

#include <atomic>
#include <chrono>
#include <optional>
#include <utility>

#include "base/time_source.h"
#include "base/trace.h"
#include "varve/storage.h"

namespace varve {

namespace {

constexpr auto kVisibilityWait = std::chrono::seconds(10);
constexpr auto kVisibilityPoll = std::chrono::milliseconds(20);

Result<std::unique_ptr<WritableFile>> Open(Storage& storage, const std::string& path,
                                           const FileWork& work, const SaveOptions& options) {
  return work.open ? work.open(storage, ParentPath(path), options.direct)
                   : storage.OpenForWrite(path, {.size = work.size, .direct = options.direct});
}

/// Opens the file in a directory that another rank has made, which this one may not see yet. The
/// file itself tells: listing the directory would cost each rank a call for every file in it. A
/// rank that opens no file does not find out.
Result<std::unique_ptr<WritableFile>> OpenWhenSeen(Storage& storage, const std::string& path,
                                                   const FileWork& work,
                                                   const SaveOptions& options) {
  const auto give_up = Now() + kVisibilityWait;
  while (true) {
    auto file = Open(storage, path, work, options);
    // Only absence may be a matter of time; any other error is final.
    if (file.status().code() != StatusCode::kNotFound) {
      return file;
    }
    AskAnew(storage, ParentPath(path));
    if (Now() > give_up) {
      return FailedPrecondition("does not see the staging directory " + ParentPath(path) +
                                " that the coordinator made; all ranks must save to one shared "
                                "file system");
    }
    SleepFor(kVisibilityPoll);
  }
}

}  // namespace

Result<WrittenShare> WriteFileWork(Storage& storage, const std::string& path, const FileWork& work,
                                   StagedFile* staged, const SaveOptions& options,
                                   std::vector<Phase>* phases, Directory directory) {
  std::optional<PhaseTimer> timer;
  timer.emplace(phases, "write", work.size);
  VARVE_ASSIGN_OR_RETURN(const auto file, directory == Directory::kOfAnotherRank
                                              ? OpenWhenSeen(storage, path, work, options)
                                              : Open(storage, path, work, options));
  WriteSegmentsOptions write_options{.block_bytes = work.block_bytes,
                                     .sums = work.sums,
                                     .writes_in_flight = options.writes_in_flight,
                                     .max_bytes_per_second = options.max_write_bandwidth,
                                     .on_written = {},
                                     .name_of = work.name_of,
                                     .stop = options.stop};
  std::atomic<std::uint64_t> done{0};
  if (options.progress) {
    write_options.on_written = [&](std::uint64_t bytes) {
      options.progress(done += bytes, work.size);
    };
  }
  VARVE_ASSIGN_OR_RETURN(WrittenSegments data,
                         staged != nullptr ? staged->WriteTo(*file, work.data_begin, write_options)
                                           : WriteSegments(*file, work.data_begin, work.segments,
                                                           BufferPool::Shared(), write_options));
  const std::uint64_t device_bytes = data.device_bytes;
  const std::uint64_t pageable_bytes = data.pageable_bytes;
  VARVE_ASSIGN_OR_RETURN(FinishedFile finished, work.finish(std::move(data)));
  if (finished.header.size() != work.data_begin) {
    return Internal("header of " + path + " changed size with its checksums");
  }
  if (work.data_begin > 0) {
    const FileSegment segment{.bytes = work.data_begin, .literal = AsByteSpan(finished.header)};
    VARVE_RETURN_IF_ERROR(
        WriteSegments(*file, 0, {&segment, 1}, BufferPool::Shared(), write_options).status());
  }
  timer.emplace(phases, "sync");
  VARVE_RETURN_IF_ERROR(file->Sync(work.size));
  return WrittenShare{std::move(finished.receipt), work.size, file->direct(), device_bytes,
                      pageable_bytes};
}

}  // namespace varve
