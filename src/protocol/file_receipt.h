/// What FileSystemWriters tell each other, in SavePlan::storage_data and WriteResult::storage_data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "varve/status.h"

namespace varve::protocol {

/// From the coordinator to a rank: where to write.
struct Place {
  std::string directory;  ///< The staging directory's name, beside the checkpoint's.
  std::uint32_t rank = 0;
};

std::string EncodePlace(const Place& place);
/// Errors: InvalidArgument for bytes that are not of a FileSystemWriter.
Result<Place> DecodePlace(std::string_view bytes);

/// A whole data file.
struct FileReceipt {
  std::uint64_t size = 0;
  std::uint64_t block_bytes = 0;
  std::vector<std::uint32_t> block_crc32c;
};

/// From a rank to the coordinator: where an item lies in the rank's file. `payload` counts from the
/// item's begin; 0 for a value. The first item of a rank says what there is to say of the file.
struct ItemReceipt {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t payload = 0;
  std::optional<FileReceipt> file;
};

std::string EncodeItemReceipt(const ItemReceipt& receipt);
/// Errors: InvalidArgument as DecodePlace.
Result<ItemReceipt> DecodeItemReceipt(std::string_view bytes);

}  // namespace varve::protocol
