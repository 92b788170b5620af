/// One object that is written in parts of equal size, as S3's multipart uploads want it, by several
/// threads. upload_machine.h decides which request comes next and what its answer means; this holds
/// the bytes and sends the requests.
//
//  - The thread whose bytes complete a part uploads it. A write of exactly one part goes from the
//    caller's memory to the network; other bytes are gathered in memory, at most two parts for each
//    thread that writes in order.
//  - What is not larger than one part becomes visible by one PUT, in Sync.
//  - Nothing is visible before Sync. The destructor ends an upload that is not done; `varve gc`
//    ends those of processes that died.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "storage/s3/client.h"
#include "storage/s3/upload_machine.h"
#include "varve/storage.h"

namespace varve::s3 {

/// Returns the size of the parts of an object of `size` bytes (0: not known): `least`, and more
/// where it would have more than 10,000 parts.
std::uint64_t PartBytes(std::uint64_t size, std::uint64_t least);

class ObjectWriter final : public WritableFile {
 public:
  /// `client` outlives the writer.
  ObjectWriter(S3Client& client, ObjectName object, std::uint64_t part_bytes);
  ObjectWriter(const ObjectWriter&) = delete;
  ObjectWriter& operator=(const ObjectWriter&) = delete;
  ~ObjectWriter() override;

  /// No byte may be written twice. Bytes that are never written are zeros, as in a file.
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
    Buffer bytes;  ///< Null once it has been uploaded. What was not written to is undefined.
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

  S3Client& client_;
  const ObjectName object_;
  const std::uint64_t part_bytes_;
  const std::string token_;  // That the object carries, so that it is known again.
  std::mutex mutex_;         // Guards all below.
  std::condition_variable changed_;
  UploadState state_;
  Status failed_;                        // The first error.
  std::map<std::uint64_t, Part> parts_;  // By number, from 0 on.
  std::vector<Buffer> free_;             // Of part_bytes_. Memory that has been used is cheaper.
};

}  // namespace varve::s3
