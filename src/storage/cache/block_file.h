/// One block of a remote file in a file of its own, with its checksum.
///
/// The file is a header of 64 bytes and the block's bytes. The header holds, little-endian: the
/// text "VARVEBLK", the version 1 and the block's size (4 bytes each), the hash of the remote
/// file's key (16), the block's index (8), the CRC-32C of the block (4), the CRC-32C of the header
/// up to here (4), zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "varve/hash.h"
#include "varve/status.h"

namespace varve::cache {

/// Which block: of what content of what file.
struct BlockName {
  Hash128 file;  ///< Of the name, the version and the size.
  std::uint64_t index = 0;
};

inline constexpr std::size_t kBlockHeaderBytes = 64;

enum class Found : std::uint8_t {
  kWhole,
  kNothing,
  kDamaged,  ///< What is there is not this block, or not as it was written.
};

/// Fills `block`, whose size is the block's, from the file `path`, and marks the file as used now.
Found ReadBlockFile(const std::string& path, const BlockName& name, std::span<std::byte> block);

/// Writes a block file under the new name `path`. A failure removes the file. Errors: those of
/// OpenPosixForWrite and of writing, NotFound where its folder is not there.
Status WriteBlockFile(const std::string& path, const BlockName& name,
                      std::span<const std::byte> block);

}  // namespace varve::cache
