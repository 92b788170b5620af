/// The places that keys come from, one function each. They return nothing where a place is not set
/// up, and an error where it is and does not answer. Messages hold no keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "storage/s3/keys/profile.h"
#include "storage/s3/signature.h"
#include "varve/status.h"

namespace varve::s3 {

struct FoundKeys {
  Credentials keys;
  std::int64_t expires = 0;  ///< Unix time in seconds; 0: they have no end.
};
using MaybeKeys = Result<std::optional<FoundKeys>>;

MaybeKeys KeysOfWebIdentity(const Environment& environment);
MaybeKeys KeysOfProfile(const Environment& environment);
MaybeKeys KeysOfContainer(const Environment& environment);
MaybeKeys KeysOfInstance(const Environment& environment);

}  // namespace varve::s3
