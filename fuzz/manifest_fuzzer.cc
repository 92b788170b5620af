// DecodeManifest: manifest.bin, docs/format.md section 6. It is compressed and carries a checksum,
// where a changed byte says nothing about the decoder behind. So an input with the frame's magic is
// given the checksum that fits, and any other is taken for the plain part of an frame and framed.

#include <algorithm>
#include <cstring>
#include <vector>

#include <flatbuffers/flatbuffers.h>
#include <zstd.h>

#include "base/checksum.h"
#include "format/manifest.h"
#include "format/manifest_generated.h"
#include "fuzz_target.h"

namespace varve::manifest_fuzzer {
namespace {

constexpr std::string_view kMagic = "VARVEMF\n";

Bytes WithChecksum(Bytes frame) {
  ByteWriter(&frame).U32(Crc32c(AsByteSpan(frame)));
  return frame;
}

Bytes Frame(std::string_view plain, std::uint32_t version) {
  Bytes compressed(ZSTD_compressBound(plain.size()), '\0');
  compressed.resize(
      ZSTD_compress(compressed.data(), compressed.size(), plain.data(), plain.size(), 1));
  Bytes frame;
  ByteWriter writer(&frame);
  writer.Raw(kMagic);
  writer.U32(version);
  writer.U64(compressed.size());
  writer.U64(plain.size());
  writer.Raw(compressed);
  return WithChecksum(std::move(frame));
}

/// Returns the size of the manifest whose frame is `frame`, with the hashes that `plain` claims.
std::uint64_t ManifestBytes(std::string_view frame, std::string_view plain) {
  constexpr std::uint64_t kMostChunks = 1 << 16;  // More would be a file of more than a megabyte.
  std::uint64_t chunks = 0;
  const std::vector<std::uint64_t> words = [&] {
    std::vector<std::uint64_t> aligned(plain.size() / 8 + 1);
    if (!plain.empty()) {
      std::memcpy(aligned.data(), plain.data(), plain.size());
    }
    return aligned;
  }();
  const auto* data = reinterpret_cast<const std::uint8_t*>(words.data());
  flatbuffers::Verifier verifier(data, plain.size());
  if (fb::VerifyManifestBuffer(verifier) && fb::GetManifest(data)->layouts() != nullptr) {
    for (const fb::LayoutRecord* layout : *fb::GetManifest(data)->layouts()) {
      chunks += std::min(layout->chunk_count(), kMostChunks);
    }
  }
  return frame.size() + 16 * std::min(chunks, kMostChunks);
}

void Check(Result<Metadata> metadata) {
  if (!metadata.ok()) {
    return;
  }
  for (TensorMetadata& tensor : metadata->tensors) {
    for (Chunk& chunk : tensor.chunks.Listed()) {
      chunk.content.bytes[0] |= 1;  // No chunk has a hash of zeros.
    }
  }
  for (TensorVariant& variant : metadata->tensor_variants) {
    for (Chunk& chunk : variant.chunks) {
      chunk.content.bytes[0] |= 1;
    }
  }
  const auto encoded = EncodeManifest(*metadata);
  VARVE_FUZZ_CHECK(encoded.ok());
  const auto again = DecodeManifest(encoded->bytes);
  VARVE_FUZZ_CHECK(again.ok() && *again == *metadata);
}

}  // namespace

VARVE_FUZZ_TARGET(manifest) {
  if (input.starts_with(kMagic)) {
    (void)DecodeManifest(input);
    Check(DecodeManifest(WithChecksum(
        Bytes(input.substr(0, input.size() - std::min<std::size_t>(4, input.size() - 8))))));
    return;
  }
  Check(DecodeManifest(Frame(input, 1)));
  const Bytes frame = Frame(input, 4);
  const auto decoded = DecodeFrame(frame, ManifestBytes(frame, input));
  Check(decoded.ok() ? Result<Metadata>(decoded->metadata) : decoded.status());
}

}  // namespace varve::manifest_fuzzer
