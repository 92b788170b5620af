/// Ranges of a file that a server has: how they are asked for, and the check of the answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "storage/http/transport.h"
#include "varve/status.h"

namespace varve::http {

/// Returns the decimal number that is all of `text`; nothing where there is none.
std::optional<std::uint64_t> NumberIn(std::string_view text);

/// One version of a file, as the server told when the file was opened. Empty: it did not tell.
struct FileVersion {
  std::string etag;
  std::string modified;    ///< Last-Modified.
  std::uint64_t size = 0;  ///< 0: not compared.
};

/// Fills spans with the body of an answer to a ranged GET, once for each try. Refuses a body of
/// another range, of another version, and one that is too long.
class RangeSink final : public BodySink {
 public:
  /// `parts` are filled in order with the bytes from `offset` on. All must outlive the sink.
  RangeSink(std::uint64_t offset, std::span<const std::span<std::byte>> parts,
            const FileVersion& version);

  /// Returns the value of the header Range: "bytes=0-9". Requires bytes() > 0.
  [[nodiscard]] std::string Range() const;

  /// Errors: DataLoss for another range than the wanted one and for an encoded body;
  /// FailedPrecondition for another version.
  Status Begin(const HttpResponse& head) override;
  Status Take(std::span<const std::byte> bytes) override;

  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] bool complete() const { return taken_ == bytes_; }
  /// Returns true where the server has answered with the whole file in place of the range.
  [[nodiscard]] bool range_ignored() const { return range_ignored_; }

 private:
  const std::uint64_t offset_;
  const std::span<const std::span<std::byte>> parts_;
  const FileVersion& version_;
  std::uint64_t bytes_ = 0;
  std::uint64_t taken_ = 0;
  std::size_t part_ = 0;
  std::size_t at_ = 0;
  bool range_ignored_ = false;
};

/// Returns FailedPrecondition where an answer belongs to another version than `opened`.
Status CheckVersion(const FileVersion& opened, const HttpResponse& answer);

}  // namespace varve::http
