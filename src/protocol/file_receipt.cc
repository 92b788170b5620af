#include "protocol/file_receipt.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "protocol/codec.h"

namespace varve::protocol {

std::string EncodePlace(const Place& place) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.String(place.directory);
  out.Varint(place.rank);
  return bytes;
}

Result<Place> DecodePlace(std::string_view bytes) {
  ByteReader in(bytes);
  Place place;
  place.directory = in.String();
  place.rank = static_cast<std::uint32_t>(in.Varint());
  // The name must not lead anywhere else.
  if (!in.Finish().ok() || place.directory.empty() ||
      place.directory.find('/') != std::string::npos) {
    return InvalidArgument(
        "the plan does not say where to write: its storage_data, as PrepareGlobalPlan made it, was "
        "lost on the way");
  }
  return place;
}

std::string EncodeItemReceipt(const ItemReceipt& receipt) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.Varint(receipt.offset);
  out.Varint(receipt.length);
  out.Varint(receipt.payload);
  out.U8(receipt.file ? 1 : 0);
  if (receipt.file) {
    out.Varint(receipt.file->size);
    out.Varint(receipt.file->block_bytes);
    out.Varint(receipt.file->block_crc32c.size());
    for (const std::uint32_t crc : receipt.file->block_crc32c) {
      out.U32(crc);
    }
  }
  return bytes;
}

Result<ItemReceipt> DecodeItemReceipt(std::string_view bytes) {
  ByteReader in(bytes);
  ItemReceipt receipt;
  receipt.offset = in.Varint();
  receipt.length = in.Varint();
  receipt.payload = in.Varint();
  if (GetFlag(&in)) {
    FileReceipt& file = receipt.file.emplace();
    file.size = in.Varint();
    file.block_bytes = in.Varint();
    const std::uint64_t count = in.Count(4);
    for (std::uint64_t i = 0; i < count; ++i) {
      file.block_crc32c.push_back(in.U32());
    }
  }
  if (!in.Finish().ok() || !CheckedAdd(receipt.offset, receipt.length)) {
    return InvalidArgument("a write result that is not of a FileSystemWriter");
  }
  return receipt;
}

}  // namespace varve::protocol
