#include "save/dcp_receipt.h"

#include <cstdint>

#include "base/checked.h"

namespace varve {

Bytes EncodeDcpFile(const DcpFile& file) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.Varint(file.size);
  out.Varint(file.block_bytes);
  out.Varint(file.items.size());
  for (const DcpExtent& item : file.items) {
    out.Varint(item.offset);
    out.Varint(item.length);
    out.Varint(item.payload);
  }
  out.Varint(file.block_crc32c.size());
  for (const std::uint32_t crc : file.block_crc32c) {
    out.U32(crc);
  }
  return bytes;
}

Result<DcpFile> DecodeDcpFile(std::string_view bytes) {
  ByteReader in(bytes);
  DcpFile file;
  file.size = in.Varint();
  file.block_bytes = in.Varint();
  const std::uint64_t items = in.Count(3);
  for (std::uint64_t i = 0; i < items && !in.failed(); ++i) {
    DcpExtent item;
    item.offset = in.Varint();
    item.length = in.Varint();
    item.payload = in.Varint();
    if (!CheckedAdd(item.offset, item.length)) {
      in.Fail("an item beyond the end of any file");
    }
    file.items.push_back(item);
  }
  const std::uint64_t blocks = in.Count(4);
  for (std::uint64_t i = 0; i < blocks && !in.failed(); ++i) {
    file.block_crc32c.push_back(in.U32());
  }
  VARVE_RETURN_IF_ERROR(in.Finish());
  return file;
}

}  // namespace varve
