/// Errors in messages between processes of one version: ranks, and trainers with their agent.
#pragma once

#include <optional>

#include "base/bytes.h"
#include "varve/status.h"

namespace varve {

/// Appends an error: one byte of code, its details where bit 7 of that byte is set, the message. An
/// error without details takes no more memory than its message and one byte.
/// Requires: `error` is not Ok.
void EncodeError(const Status& error, ByteWriter* out);

/// Returns the error that EncodeError wrote; nothing where the bytes hold none. The message stays
/// in the memory of `bytes`.
std::optional<Status> DecodeError(Bytes bytes);

}  // namespace varve
