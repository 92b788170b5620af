#include "interop/dcp_checksums.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/checked.h"
#include "base/checksum.h"
#include "tensor/box.h"

namespace varve {
namespace {

constexpr std::uint64_t kVersion = 1;
constexpr std::uint64_t kMaxBlockBytes = std::uint64_t{8} << 20;

void PutDims(const Dims& dims, ByteWriter* out) { out->VarintList(dims); }

void PutExtent(const Metadata& metadata, const Extent& extent, ByteWriter* out) {
  out->String(metadata.files[extent.file].name);
  out->U8(static_cast<std::uint8_t>(extent.encoding));
  out->Varint(extent.begin);
  out->Varint(extent.end);
}

/// XXH3-128 of all that the index says, in a fixed order.
Hash128 Digest(const Metadata& metadata) {
  Xxh3Stream stream;
  stream.Reset();
  Bytes buffer;
  const auto flush = [&] {
    stream.Update(AsByteSpan(buffer));
    buffer.clear();
  };
  ByteWriter out(&buffer);
  for (const TensorMetadata& tensor : metadata.tensors) {
    out.String(tensor.fqn);
    out.U8(static_cast<std::uint8_t>(tensor.dtype));
    PutDims(tensor.shape, &out);
    out.Varint(tensor.chunks.size());
    for (const Chunk& chunk : tensor.chunks) {
      PutDims(chunk.box.offsets, &out);
      PutDims(chunk.box.sizes, &out);
      PutExtent(metadata, chunk.extent, &out);
    }
    flush();
  }
  for (const ObjectMetadata& object : metadata.objects) {
    out.String(object.fqn);
    PutExtent(metadata, object.extent, &out);
    flush();
  }
  return stream.Digest();
}

Status Malformed(std::string_view what) {
  return DataLoss("the checksums of the index are malformed: " + std::string(what));
}

Status ReadFiles(ByteReader* in, Metadata* metadata) {
  const std::uint64_t count = in->Count(2);
  for (std::uint64_t i = 0; i < count && !in->failed(); ++i) {
    const std::string name(in->String());
    const std::uint64_t size = in->Varint();
    const std::uint64_t blocks = in->Count(4);
    const auto file = std::find_if(metadata->files.begin(), metadata->files.end(),
                                   [&](const DataFile& f) { return f.name == name; });
    if (file == metadata->files.end()) {
      (void)in->Raw(blocks * 4);  // A rank that had nothing to store wrote an empty file.
      continue;
    }
    if (blocks != DivideUp(size, metadata->block_bytes)) {
      return Malformed("the count of blocks of " + name);
    }
    file->size = size;
    file->block_crc32c.clear();
    file->block_crc32c.reserve(blocks);
    for (std::uint64_t b = 0; b < blocks; ++b) {
      file->block_crc32c.push_back(in->U32());
    }
  }
  return in->status();
}

Status ApplyPayloads(ByteReader* in, Metadata* metadata) {
  for (TensorMetadata& tensor : metadata->tensors) {
    for (Chunk& chunk : tensor.chunks) {
      const std::uint64_t offset = in->Varint();
      if (offset == 0 || in->failed()) {
        continue;
      }
      const auto bytes = CheckedProduct(chunk.box.sizes);
      const auto size = bytes ? CheckedMul(*bytes, ItemSize(tensor.dtype)) : std::nullopt;
      const std::uint64_t length = chunk.extent.end - chunk.extent.begin;
      if (!size || offset > length || *size > length - offset) {
        return Malformed("the payload of tensor \"" + tensor.fqn + "\" lies outside its item");
      }
      chunk.extent.begin += offset;
      chunk.extent.end = chunk.extent.begin + *size;
      chunk.extent.encoding = Encoding::kPlain;
    }
  }
  return in->status();
}

}  // namespace

Bytes EncodeDcpChecksums(const Metadata& metadata, const PayloadOffsets& payloads) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.Varint(kVersion);
  for (const std::uint8_t byte : Digest(metadata).bytes) {
    out.U8(byte);
  }
  out.Varint(metadata.block_bytes);
  out.Varint(metadata.files.size());
  for (const DataFile& file : metadata.files) {
    out.String(file.name);
    out.Varint(file.size);
    out.Varint(file.block_crc32c.size());
    for (const std::uint32_t crc : file.block_crc32c) {
      out.U32(crc);
    }
  }
  for (const std::uint64_t offset : payloads) {
    out.Varint(offset);
  }
  out.U32(Crc32c(AsByteSpan(bytes)));
  return bytes;
}

Status ApplyDcpChecksums(std::string_view attribute, Metadata* metadata) {
  if (attribute.size() < sizeof(std::uint32_t)) {
    return Malformed("too short");
  }
  ByteReader trailer(attribute.substr(attribute.size() - sizeof(std::uint32_t)));
  attribute.remove_suffix(sizeof(std::uint32_t));
  if (trailer.U32() != Crc32c(AsByteSpan(attribute))) {
    return Malformed("their own checksum does not match");
  }
  ByteReader in(attribute);
  if (in.Varint() != kVersion) {
    return Unimplemented("the checksums of the index were written by a newer version of Varve");
  }
  const std::string_view digest = in.Raw(sizeof(Hash128::bytes));
  const Hash128 expected = Digest(*metadata);
  if (in.failed() ||
      !std::equal(digest.begin(), digest.end(), expected.bytes.begin(),
                  [](char a, std::uint8_t b) { return static_cast<std::uint8_t>(a) == b; })) {
    return DataLoss("the index is not the one its checksums were made for");
  }
  metadata->block_bytes = in.Varint();
  if (metadata->block_bytes == 0 || metadata->block_bytes > kMaxBlockBytes ||
      metadata->block_bytes % 4096 != 0) {
    return Malformed("the size of a block");
  }
  VARVE_RETURN_IF_ERROR(ReadFiles(&in, metadata));
  VARVE_RETURN_IF_ERROR(ApplyPayloads(&in, metadata));
  return in.Finish();
}

}  // namespace varve
