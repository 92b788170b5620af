/// The variables of a process that decide how it reaches an object store, for another process of
/// the same user and host: it finds the same settings, and keys in the same places, and asks for
/// new ones when they end. Keys of a function of the program go along as they are, with their end.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "storage/s3/keys/credential_sources.h"
#include "storage/s3/keys/profile.h"
#include "varve/status.h"

namespace varve::s3 {

/// How a process reaches an object store.
struct Access {
  Environment environment;        ///< Of the variables that settings and keys come from.
  std::optional<FoundKeys> keys;  ///< Those of a function of the program, which come first.
};

/// Returns variables, values and keys, for DecodeAccess. Holds secrets.
std::string EncodeAccess(const Access& access);

/// Returns what EncodeAccess was given. Errors: DataLoss for other bytes.
Result<Access> DecodeAccess(std::string_view bytes);

}  // namespace varve::s3
