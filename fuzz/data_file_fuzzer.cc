// DecodeHeader: the header of a native data file, docs/format.md sections 2 and 3. An input that
// begins with `{` is the JSON alone: it gets its length, its padding and the checksum that fits.

#include "base/checked.h"
#include "base/checksum.h"
#include "format/data_file.h"
#include "format/manifest.h"
#include "fuzz_target.h"

namespace varve::data_file_fuzzer {
namespace {

Bytes Frame(std::string_view json) {
  Bytes header;
  ByteWriter writer(&header);
  const std::uint64_t total = RoundUp(json.size() + 8, kDataAlignment);
  writer.U64(total - 8);
  writer.Raw(json);
  header.append(total - header.size(), ' ');
  if (const auto checksum = HeaderChecksum(header); checksum.ok()) {
    constexpr std::string_view kField = R"(\"header_crc32c\":\")";
    header.replace(header.find(kField) + kField.size(), 8, HexU32(*checksum));
  }
  return header;
}

void CheckClaims(const DataFileHeader& header) {
  std::uint64_t at = 0;
  for (const StoredChunk& chunk : header.chunks) {
    VARVE_FUZZ_CHECK(chunk.bytes.begin == at && chunk.bytes.end >= at);
    VARVE_FUZZ_CHECK(chunk.box.sizes.size() == chunk.shape().size());
    at = chunk.bytes.end;
  }
  VARVE_FUZZ_CHECK(at <= header.data_bytes);
  VARVE_FUZZ_CHECK(header.identity.rank < header.identity.world_size);
  VARVE_FUZZ_CHECK(header.block_crc32c.size() ==
                   DivideUp(header.data_bytes, header.identity.block_bytes));
}

}  // namespace

VARVE_FUZZ_TARGET(data_file) {
  const Bytes bytes = input.starts_with('{') ? Frame(input) : Bytes(input);
  std::uint32_t crc = 0;
  const auto header = DecodeHeader(bytes, &crc);
  if (!header.ok()) {
    return;
  }
  CheckClaims(*header);
  VARVE_FUZZ_CHECK(DataFileName(*header).ends_with(".safetensors"));
  std::uint32_t ignored = 0;
  if (const auto encoded = EncodeHeader(*header, &ignored); encoded.ok()) {
    const auto again = DecodeHeader(*encoded, &ignored);
    VARVE_FUZZ_CHECK(again.ok() && *again == *header);
  }
  if (const auto metadata = MergeHeaders({{*header, bytes.size(), crc}}); metadata.ok()) {
    VARVE_FUZZ_CHECK(metadata->files.size() == 1);
  }
}

}  // namespace varve::data_file_fuzzer
