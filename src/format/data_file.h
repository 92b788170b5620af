/// The data file: a plain safetensors file whose header also has the fields that a checkpoint
/// needs. docs/format.md describes the bytes. Pure: bytes in, values or a Status out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "tensor/region.h"
#include "tensor/tensor_spec.h"
#include "varve/metadata.h"
#include "varve/status.h"

namespace varve {

/// Data starts on a multiple of this, so that it can be written and read with O_DIRECT.
inline constexpr std::uint64_t kDataAlignment = 4096;
/// Default checksum block: small enough that a partial read checks little more than it needs,
/// large enough that 8 hex digits a block are nothing.
inline constexpr std::uint64_t kDefaultBlockBytes = std::uint64_t{1} << 20;
/// Larger blocks would not fit the buffers that check them.
inline constexpr std::uint64_t kMaxBlockBytes = std::uint64_t{8} << 20;
/// safetensors refuses longer headers; so do we, both ways.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
/// Ends the message about a larger one.
inline constexpr std::string_view kTooLargeHeader =
    " exceeds the 100 MB that safetensors readers accept; join small tensors to larger ones, save "
    "them from more ranks or as several checkpoints, or use format=\"dcp\"";

/// A chunk inside a data file. `bytes` is relative to the start of the data.
struct StoredChunk {
  StoredChunk() = default;
  StoredChunk(SharedSpec spec, Box where) : of(std::move(spec)), box(std::move(where)) {}
  StoredChunk(std::string fqn, DType dtype, Dims shape, Box where, ByteRange at = {},
              Hash128 hash = {})
      : of(MakeSpec(std::move(fqn), dtype, std::move(shape))),
        box(std::move(where)),
        bytes(at),
        content(hash) {}

  SharedSpec of;
  Box box;
  ByteRange bytes;
  Hash128 content;

  [[nodiscard]] const std::string& fqn() const { return of->fqn; }
  [[nodiscard]] DType dtype() const { return of->dtype; }
  [[nodiscard]] const Dims& shape() const { return of->shape; }
  friend bool operator==(const StoredChunk& a, const StoredChunk& b) {
    return AreEqual(a.of, b.of) && a.box == b.box && a.bytes == b.bytes && a.content == b.content;
  }
};

struct StoredObject {
  std::string fqn;
  ByteRange bytes;
  Hash128 content{};  ///< Of the encoding; zeros where the file does not say.
  friend bool operator==(const StoredObject&, const StoredObject&) = default;
};

/// Data files with aliases have the second version of the format, those with variants
/// kVariantFormatVersion (variants.h), all other files the first.
inline constexpr std::uint32_t kPlainFormatVersion = 1;
inline constexpr std::uint32_t kAliasFormatVersion = 2;

/// A second name of a tensor: every chunk of `of` in the file is a chunk of `fqn` too.
struct TensorAlias {
  std::string fqn;
  std::string of;
  friend bool operator==(const TensorAlias&, const TensorAlias&) = default;
};

/// The rank, the save and its time: the same for all files of a rank's save.
struct FileIdentity {
  SaveId save_id;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  bool coordinated = true;       ///< False: published without coordination (see docs/format.md).
  std::uint64_t created_ns = 0;  ///< Unix time of the save's start, by the writer's clock.
  std::uint64_t block_bytes = kDefaultBlockBytes;
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

/// All fields of a data file's header. Its version follows from it, see kAliasFormatVersion. Chunks
/// and objects that are variants have names of variants; a chunk's box counts within its variant.
struct DataFileHeader {
  FileIdentity identity;
  std::uint64_t data_bytes = 0;
  std::vector<StoredChunk> chunks;     ///< In file order, packed from byte 0 of the data.
  std::vector<StoredObject> objects;   ///< After the chunks, in file order.
  std::optional<ByteRange> structure;  ///< After the objects.
  std::vector<TensorAlias> aliases;    ///< By fqn, bytewise; `of` has a chunk in this file.
  std::vector<std::uint32_t> block_crc32c;
  friend bool operator==(const DataFileHeader&, const DataFileHeader&) = default;
};

/// Aliases of a file may stand for at most this many chunks: a small hostile header must not make
/// its reader build an index without end.
inline constexpr std::uint64_t kMaxAliasChunks = 1'000'000;

/// Checks the aliases. Errors: InvalidArgument when they stand for more than kMaxAliasChunks
/// chunks, when one stands for no tensor of the file, or has the name of something that is in the
/// file.
Status CheckAliases(const DataFileHeader& header);

/// Returns "data-00003-of-00008.safetensors"; rank-local saves put the save id's first digits
/// before the extension so that two saves in one directory never share a file.
std::string DataFileName(const DataFileHeader& header);

/// Returns true for names that the format itself uses: no tensor and no value of a state may have
/// one.
bool IsReservedName(std::string_view fqn);

/// Sorts chunks so that each starts aligned for its element type, then assigns every byte range
/// and data_bytes. Needs fqn, dtype, box of each chunk, and the sizes of objects and structure
/// (given as ranges from 0). Errors: InvalidArgument when the sizes overflow.
Status LayOut(DataFileHeader* header);

/// Returns the order LayOut gives chunks: element size descending, then fqn, then offsets.
bool ChunkBefore(const StoredChunk& a, const StoredChunk& b);

/// Returns the encoded header, padded so that data starts at its size, a multiple of
/// kDataAlignment. Its size depends on the layout alone, never on checksums, so it can be written
/// after the data. `header_crc32c` receives the checksum that the header also carries inside.
/// Errors: InvalidArgument when the header would exceed kMaxHeaderBytes.
Result<Bytes> EncodeHeader(const DataFileHeader& header, std::uint32_t* header_crc32c);

/// Puts checksums into a header that was encoded without them, which costs less than to encode it
/// anew: what EncodeHeader returns of the same header with them. Errors: Internal when they are not
/// as many as its blocks and chunks.
Status FillHeader(const std::vector<std::uint32_t>& block_crc32c,
                  const std::vector<Hash128>& contents, Bytes* encoded,
                  std::uint32_t* header_crc32c);

/// Returns the bytes of header and prefix together, from a file's first 8 bytes. Errors: DataLoss
/// when absurd.
Result<std::uint64_t> HeaderBytesFromPrefix(std::string_view first_8_bytes);

/// Decodes and checks a whole header (as long as HeaderBytesFromPrefix says). Untrusted input.
/// Errors: DataLoss with the reason; Unimplemented for a newer format version.
Result<DataFileHeader> DecodeHeader(std::string_view bytes, std::uint32_t* header_crc32c);

/// Returns the checksum an encoded header should carry; equals the one inside an intact header.
/// Errors: DataLoss when the bytes hold no checksum field.
Result<std::uint32_t> HeaderChecksum(std::string_view bytes);

/// Checks a header's bytes without decoding them. Errors: DataLoss unless both their checksum and
/// the one inside them are `want`.
Status CheckHeader(std::string_view bytes, std::uint32_t want);

}  // namespace varve
