/// The manifest file: Metadata as FlatBuffers, framed with zstd and a CRC (docs/format.md, section
/// 6). It has no hashes of chunks: loads do without, and the data files' headers have them. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "format/data_file.h"
#include "varve/metadata.h"
#include "varve/status.h"

namespace varve {

/// A decoded header together with the checksum of its encoded form.
struct CheckedHeader {
  DataFileHeader header;
  std::uint64_t header_bytes = 0;
  std::uint32_t header_crc32c = 0;
};

/// Merges the headers of the data files of one save, one after the other: all headers of many ranks
/// take more memory than their merged metadata.
class HeaderMerge {
 public:
  HeaderMerge();
  ~HeaderMerge();
  HeaderMerge(const HeaderMerge&) = delete;
  HeaderMerge& operator=(const HeaderMerge&) = delete;

  /// Adds the next file, in the order of their ranks. Errors: MergeHeaders'; Internal for another
  /// order. Call nothing after an error.
  Status Add(const CheckedHeader& file);

  /// Adds the next file where it has the chunks of the file before, at the same bytes, with boxes
  /// that follow those, and has no structure. `file` says the rest of it, without chunks. Chunk i of the
  /// file before has in this one the box `boxes[box_of_chunk[i]]`; chunks of one number are of
  /// tensors of one dtype and shape. That takes time by the number of boxes, not of chunks. Returns
  /// false, and adds nothing, where the boxes are not the next ones of grids (chunk_grid.h): Add
  /// takes such a file. Errors: Add's.
  Result<bool> AddAlike(const CheckedHeader& file, std::span<const Box> boxes,
                        std::span<const std::uint32_t> box_of_chunk);
  /// Errors: MergeHeaders'.
  Result<Metadata> Finish();

 private:
  struct Merged;
  std::unique_ptr<Merged> merged_;
};

/// Merges headers in any order. The result depends only on the headers, not on
/// their order. Errors: DataLoss when files disagree (save, world size, a tensor's dtype or shape),
/// when a name is stored twice, or when chunks overlap or leave a hole.
Result<Metadata> MergeHeaders(std::vector<CheckedHeader> headers);

/// Checks that the chunks of one tensor tile its shape. Errors: DataLoss naming an overlap or the
/// box that no chunk holds.
Status CheckTiling(const TensorMetadata& tensor);

/// The numbers that determine the size of a manifest.
struct ManifestCounts {
  std::uint64_t files = 0;
  std::uint64_t blocks = 0;  ///< Checksum blocks of all files.
  std::uint64_t tensors = 0;
  std::uint64_t chunks = 0;
  std::uint64_t objects = 0;
  std::uint64_t dims = 0;        ///< Of all tensors' shapes and all chunks' boxes.
  std::uint64_t name_bytes = 0;  ///< Of all tensors, objects and files.
};

/// Checks a manifest's size before it is made. Errors: InvalidArgument when it would be too large
/// to be written.
Status CheckManifestSize(const ManifestCounts& counts);

/// Returns what a manifest keeps of merged headers: all but the hashes of chunks.
Metadata WithoutHashes(Metadata metadata);

struct EncodedManifest {
  Bytes bytes;
  std::uint32_t crc32c = 0;  ///< What the bytes end with.
};

/// Encodes a manifest. The same metadata always gives the same bytes (with one zstd library
/// version). Errors: CheckManifestSize's.
Result<EncodedManifest> EncodeManifest(const Metadata& metadata);

/// Decodes a manifest's frame: all of the file, but in version 4, where hashes of chunks follow,
/// which nothing reads. Untrusted input. Errors: DataLoss when damaged; Unimplemented for a newer
/// format version.
Result<Metadata> DecodeManifest(std::string_view frame);

}  // namespace varve
