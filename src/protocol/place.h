/// The message of the coordinator's FileSystemWriter to those of the other ranks, in
/// SavePlan::storage_data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "varve/status.h"

namespace varve::protocol {

/// The place to which a rank writes.
struct Place {
  /// The name of the staging directory, beside the checkpoint's; or of the checkpoint's own.
  std::string directory;
  bool is_below = false;  ///< It is below the checkpoint's own, and there with its first file.
  std::uint32_t rank = 0;
  std::uint64_t number = 0;  ///< Of the rank's file.
};

std::string EncodePlace(const Place& place);
/// Decodes a place. Errors: InvalidArgument for bytes that are not of a FileSystemWriter.
Result<Place> DecodePlace(std::string_view bytes);

}  // namespace varve::protocol
