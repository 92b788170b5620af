#include "async/submission.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

#include "base/octets.h"
#include "save/session.h"
#include "varve/storage.h"

namespace varve {
namespace {

std::uint64_t Milliseconds(std::chrono::milliseconds time) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(time.count(), 0));
}

std::chrono::milliseconds GetMilliseconds(ByteReader* in) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(
      std::min<std::uint64_t>(in->U64(), std::numeric_limits<std::int32_t>::max())));
}

}  // namespace

Bytes EncodeSubmission(const Submission& submission) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.String(submission.path);
  out.String(EncodeSettledSave(submission.settled));
  out.String(EncodeStagedImage(submission.image));
  const SaveOptions& options = submission.options;
  out.U8(static_cast<std::uint8_t>(options.overwrite));
  out.U8(options.direct ? 1 : 0);
  out.U64(Milliseconds(options.timeout));
  out.U64(static_cast<std::uint64_t>(std::max(options.writes_in_flight, 1)));
  out.U64(options.max_write_bandwidth);
  out.U64(static_cast<std::uint64_t>(std::max(submission.retries, 0)));
  out.U64(Milliseconds(submission.retry_delay));
  out.U8(submission.deferred ? 1 : 0);
  return bytes;
}

Result<Submission> DecodeSubmission(std::string_view bytes, std::uint64_t pool_blocks) {
  ByteReader in(bytes);
  Submission submission;
  submission.path = std::string(in.String());
  VARVE_ASSIGN_OR_RETURN(submission.settled, DecodeSettledSave(in.String()));
  VARVE_ASSIGN_OR_RETURN(submission.image, DecodeStagedImage(in.String(), pool_blocks));
  SaveOptions& options = submission.options;
  options.overwrite = static_cast<Overwrite>(std::min<std::uint8_t>(in.U8(), 2));
  options.direct = in.U8() != 0;
  options.timeout = GetMilliseconds(&in);
  options.writes_in_flight = static_cast<int>(std::min<std::uint64_t>(in.U64(), 1024));
  options.max_write_bandwidth = in.U64();
  submission.retries = static_cast<int>(std::min<std::uint64_t>(in.U64(), 1 << 20));
  submission.retry_delay = GetMilliseconds(&in);
  submission.deferred = in.U8() != 0;
  VARVE_RETURN_IF_ERROR(in.Finish());
  options.coordinate = submission.settled.identity.coordinated;
  options.format = submission.settled.format;
  options.block_bytes = submission.settled.identity.block_bytes;
  if (!submission.path.starts_with('/')) {
    return DataLoss("a save of \"" + submission.path + "\", which is not an absolute path");
  }
  VARVE_RETURN_IF_ERROR(CheckSaveOptions(options, submission.path));
  return submission;
}

Bytes EncodeReport(const SaveReport& report) {
  Bytes bytes;
  ByteWriter out(&bytes);
  PutOctets(report.save_id.bytes, &out);
  out.U64(report.bytes_written);
  out.F64(report.seconds);
  out.U8(report.direct ? 1 : 0);
  out.StringList(report.differing_objects);
  out.StringList(report.differing_tensors);
  out.StringList(report.conflicts);
  out.Varint(static_cast<std::uint64_t>(report.attempts));
  return bytes;
}

Result<SaveReport> DecodeReport(std::string_view bytes) {
  ByteReader in(bytes);
  SaveReport report;
  GetOctets(&in, &report.save_id.bytes);
  report.bytes_written = in.U64();
  report.seconds = in.F64();
  report.direct = in.U8() != 0;
  in.StringList(&report.differing_objects);
  in.StringList(&report.differing_tensors);
  in.StringList(&report.conflicts);
  report.attempts = static_cast<int>(in.Varint());
  VARVE_RETURN_IF_ERROR(in.Finish());
  return report;
}

Result<std::string> AbsolutePath(const std::string& path) {
  std::error_code error;
  const auto parent =
      std::filesystem::weakly_canonical(std::filesystem::absolute(ParentPath(path), error), error);
  if (error || path.empty()) {
    return InvalidArgument("\"" + path + "\" cannot be made an absolute path" +
                           (error ? ": " + error.message() : ""));
  }
  return JoinPath(parent.string(), BaseName(path));
}

}  // namespace varve
