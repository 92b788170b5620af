// DecodeManifest: manifest.bin, docs/format.md section 6. It is compressed and carries a checksum,
// where a changed byte says nothing about the decoder behind. So an input with the frame's magic is
// given the checksum that fits, and any other is taken for the plain part of a frame and framed.

#include <algorithm>

#include <zstd.h>

#include "base/checksum.h"
#include "format/manifest.h"
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

void Check(const Result<Metadata>& metadata) {
  if (!metadata.ok()) {
    return;
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
  Check(DecodeManifest(Frame(input, 5)));
}

}  // namespace varve::manifest_fuzzer
