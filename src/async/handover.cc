#include "async/handover.h"

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

Bytes EncodeHandover(const Handover& handover) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.String(handover.path);
  out.String(EncodeSettledSave(handover.settled));
  out.String(EncodeStagedImage(handover.image));
  const SaveOptions& options = handover.options;
  out.U8(static_cast<std::uint8_t>(options.overwrite));
  out.U8(options.direct ? 1 : 0);
  out.U64(Milliseconds(options.timeout));
  out.U64(static_cast<std::uint64_t>(std::max(options.writes_in_flight, 1)));
  out.U64(options.max_write_bandwidth);
  out.U64(static_cast<std::uint64_t>(std::max(handover.retries, 0)));
  out.U64(Milliseconds(handover.retry_delay));
  out.U8(handover.at_end ? 1 : 0);
  return bytes;
}

Result<Handover> DecodeHandover(std::string_view bytes, std::uint64_t pool_blocks) {
  ByteReader in(bytes);
  Handover handover;
  handover.path = std::string(in.String());
  VARVE_ASSIGN_OR_RETURN(handover.settled, DecodeSettledSave(in.String()));
  VARVE_ASSIGN_OR_RETURN(handover.image, DecodeStagedImage(in.String(), pool_blocks));
  SaveOptions& options = handover.options;
  options.overwrite = static_cast<Overwrite>(std::min<std::uint8_t>(in.U8(), 2));
  options.direct = in.U8() != 0;
  options.timeout = GetMilliseconds(&in);
  options.writes_in_flight = static_cast<int>(std::min<std::uint64_t>(in.U64(), 1024));
  options.max_write_bandwidth = in.U64();
  handover.retries = static_cast<int>(std::min<std::uint64_t>(in.U64(), 1 << 20));
  handover.retry_delay = GetMilliseconds(&in);
  handover.at_end = in.U8() != 0;
  VARVE_RETURN_IF_ERROR(in.Finish());
  options.coordinate = handover.settled.identity.coordinated;
  options.format = handover.settled.format;
  options.block_bytes = handover.settled.identity.block_bytes;
  if (!handover.path.starts_with('/')) {
    return DataLoss("a save of \"" + handover.path + "\", which is not an absolute path");
  }
  VARVE_RETURN_IF_ERROR(CheckSaveOptions(options, handover.path));
  return handover;
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
