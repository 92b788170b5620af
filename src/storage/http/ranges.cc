#include "storage/http/ranges.h"

#include <algorithm>
#include <charconv>
#include <cstring>

namespace varve::http {
namespace {

Status Replaced(std::string_view header, std::string_view was, std::string_view is) {
  return FailedPrecondition("it was replaced while it was read (its " + std::string(header) +
                            " was " + Printable(was) + " and is " + Printable(is) +
                            "); open it again");
}

}  // namespace

std::optional<std::uint64_t> NumberIn(std::string_view text) {
  std::uint64_t value = 0;
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  const auto parsed = std::from_chars(begin, end, value);
  return begin != end && parsed.ptr == end && parsed.ec == std::errc() ? std::optional(value)
                                                                       : std::nullopt;
}

Status CheckVersion(const FileVersion& opened, const HttpResponse& answer) {
  const std::string_view etag = answer.Header("etag");
  if (!opened.etag.empty() && etag != opened.etag) {
    return Replaced("ETag", opened.etag, etag);
  }
  // An answer with a range may leave Last-Modified out where it has an ETag (RFC 9110, 15.3.7).
  const std::string_view modified = answer.Header("last-modified");
  if (!opened.modified.empty() && modified != opened.modified &&
      (opened.etag.empty() || !modified.empty())) {
    return Replaced("Last-Modified", opened.modified, modified);
  }
  return Status::Ok();
}

RangeSink::RangeSink(std::uint64_t offset, std::span<const std::span<std::byte>> parts,
                     const FileVersion& version)
    : offset_(offset), parts_(parts), version_(version) {
  for (const std::span<std::byte> part : parts) {
    bytes_ += part.size();
  }
}

std::string RangeSink::Range() const {
  return "bytes=" + std::to_string(offset_) + "-" + std::to_string(offset_ + bytes_ - 1);
}

/// Some servers answer a range with status 200 and Content-Range; one that answers with the whole
/// object has no such header.
Status RangeSink::Begin(const HttpResponse& head) {
  part_ = 0;
  at_ = 0;
  taken_ = 0;
  const std::string_view range = head.Header("content-range");
  const std::string wanted =
      "bytes " + std::to_string(offset_) + "-" + std::to_string(offset_ + bytes_ - 1) + "/";
  const bool whole = range.empty() && head.status == 200 && offset_ == 0 &&
                     NumberIn(head.Header("content-length")) == bytes_;
  range_ignored_ = range.empty() && head.status == 200 && !whole;
  if (!whole && !range.starts_with(wanted)) {
    return DataLoss("the server was asked for " + wanted + "* and sends \"" + Printable(range) +
                    "\"");
  }
  const std::string_view encoding = head.Header("content-encoding");
  if (!encoding.empty() && encoding != "identity") {
    return DataLoss("the server sends the file encoded (" + Printable(encoding) +
                    "), though it was asked not to");
  }
  if (whole && version_.size > 0 && bytes_ != version_.size) {
    return Replaced("size", std::to_string(version_.size), std::to_string(bytes_));
  }
  if (!whole && version_.size > 0) {
    const auto size = NumberIn(range.substr(wanted.size()));
    if (size && *size != version_.size) {
      return Replaced("size", std::to_string(version_.size), std::to_string(*size));
    }
  }
  return CheckVersion(version_, head);
}

Status RangeSink::Take(std::span<const std::byte> bytes) {
  taken_ += bytes.size();
  if (taken_ > bytes_) {
    return DataLoss("the server sends more bytes than it was asked for");
  }
  while (!bytes.empty()) {
    const std::span<std::byte> rest = parts_[part_].subspan(at_);
    const std::size_t now = std::min(rest.size(), bytes.size());
    if (now > 0) {
      std::memcpy(rest.data(), bytes.data(), now);
    }
    at_ += now;
    bytes = bytes.subspan(now);
    if (at_ == parts_[part_].size()) {
      ++part_;
      at_ = 0;
    }
  }
  return Status::Ok();
}

}  // namespace varve::http
