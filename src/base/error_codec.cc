#include "base/error_codec.h"

#include <cstdint>
#include <string>
#include <utility>

namespace varve {
namespace {

constexpr std::uint8_t kHasDetails = 0x80;

bool IsErrorCode(std::uint8_t code) {
  return code != 0 && code <= static_cast<std::uint8_t>(StatusCode::kInternal);
}

void EncodeFailure(const RankFailure& failure, ByteWriter* out) {
  out->U32(static_cast<std::uint32_t>(failure.rank));
  out->U8(static_cast<std::uint8_t>(failure.code));
  out->U32(static_cast<std::uint32_t>(failure.system_error));
  out->String(failure.path);
  out->String(failure.message);
}

std::optional<RankFailure> DecodeFailure(ByteReader* in) {
  RankFailure failure;
  failure.rank = static_cast<int>(in->U32());
  const std::uint8_t code = in->U8();
  failure.system_error = static_cast<int>(in->U32());
  failure.path = std::string(in->String());
  failure.message = std::string(in->String());
  if (in->failed() || !IsErrorCode(code)) {
    return std::nullopt;
  }
  failure.code = static_cast<StatusCode>(code);
  return failure;
}

}  // namespace

void EncodeError(const Status& error, ByteWriter* out) {
  const auto code = static_cast<std::uint8_t>(error.code());
  const ErrorDetails& details = error.details();
  if (details == ErrorDetails{}) {
    out->U8(code);
  } else {
    out->U8(code | kHasDetails);
    out->U32(static_cast<std::uint32_t>(details.rank));
    out->U32(static_cast<std::uint32_t>(details.system_error));
    out->U8(static_cast<std::uint8_t>(details.reason));
    out->String(details.path);
    out->U32(static_cast<std::uint32_t>(details.failures.size()));
    for (const RankFailure& failure : details.failures) {
      EncodeFailure(failure, out);
    }
  }
  out->Raw(error.message());
}

std::optional<Status> DecodeError(Bytes bytes) {
  ByteReader in(bytes);
  const std::uint8_t first = in.U8();
  const auto code = static_cast<std::uint8_t>(first & ~kHasDetails);
  ErrorDetails details;
  std::uint8_t reason = 0;
  if ((first & kHasDetails) != 0) {
    details.rank = static_cast<int>(in.U32());
    details.system_error = static_cast<int>(in.U32());
    reason = in.U8();
    details.path = std::string(in.String());
    for (std::uint32_t left = in.U32(); left > 0; --left) {
      auto failure = DecodeFailure(&in);
      if (!failure) {
        return std::nullopt;
      }
      details.failures.push_back(std::move(*failure));
    }
  }
  if (in.failed() || !IsErrorCode(code) ||
      reason > static_cast<std::uint8_t>(ErrorReason::kMayBeVisible)) {
    return std::nullopt;
  }
  details.reason = static_cast<ErrorReason>(reason);
  bytes.erase(0, in.position());
  return Status(static_cast<StatusCode>(code), std::move(bytes)).With(std::move(details));
}

}  // namespace varve
