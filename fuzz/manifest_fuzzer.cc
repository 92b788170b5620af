// DecodeManifest: manifest.bin, docs/format.md section 6. It is compressed and carries a checksum,
// where a changed byte says nothing about the decoder behind. So an input with the frame's magic is
// given the checksum that fits, and any other is taken for the plain part and framed.

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

Bytes Frame(std::string_view plain) {
  Bytes compressed(ZSTD_compressBound(plain.size()), '\0');
  compressed.resize(
      ZSTD_compress(compressed.data(), compressed.size(), plain.data(), plain.size(), 1));
  Bytes frame;
  ByteWriter writer(&frame);
  writer.Raw(kMagic);
  writer.U32(1);
  writer.U64(compressed.size());
  writer.U64(plain.size());
  writer.Raw(compressed);
  return WithChecksum(std::move(frame));
}

}  // namespace

VARVE_FUZZ_TARGET(manifest) {
  const bool framed = input.starts_with(kMagic);
  if (framed) {
    (void)DecodeManifest(input);
  }
  const auto metadata =
      DecodeManifest(framed ? WithChecksum(Bytes(input.substr(
                                  0, input.size() - std::min<std::size_t>(4, input.size() - 8))))
                            : Frame(input));
  if (!metadata.ok()) {
    return;
  }
  const auto encoded = EncodeManifest(*metadata);
  VARVE_FUZZ_CHECK(encoded.ok());
  const auto again = DecodeManifest(*encoded);
  VARVE_FUZZ_CHECK(again.ok() && *again == *metadata);
}

}  // namespace varve::manifest_fuzzer
