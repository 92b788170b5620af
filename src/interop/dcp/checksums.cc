#include "interop/dcp/checksums.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "base/bytes.h"
#include "base/checked.h"
#include "base/checksum.h"
#include "format/relative_name.h"
#include "interop/pickle/writer.h"
#include "tensor/box.h"

namespace varve {
namespace {

constexpr std::uint64_t kVersion = 1;
constexpr std::uint64_t kVersionWithSideFiles = 2;
constexpr std::uint64_t kMaxBlockBytes = std::uint64_t{8} << 20;

/// How the pickle of an object with several attributes ends: SETITEMS, BUILD, STOP.
constexpr std::string_view kEnd = "ub.";

Status Malformed(std::string_view what) {
  return DataLoss("the checksums of the index are malformed: " + std::string(what));
}

/// Returns the attribute's name as pickles have it.
std::string PickledName() {
  Bytes bytes;
  PickleWriter writer(&bytes);
  const std::size_t begin = bytes.size();  // Behind the protocol's number.
  writer.Str(kDcpChecksums);
  return bytes.substr(begin);
}

/// Returns name and value as AppendDcpChecksums puts them into a pickle.
Result<Bytes> PickledPair(std::string_view attribute) {
  Bytes bytes;
  PickleWriter writer(&bytes);
  const std::size_t begin = bytes.size();
  writer.Str(kDcpChecksums);
  writer.BytesObject(attribute);
  VARVE_RETURN_IF_ERROR(writer.Finish());
  bytes.pop_back();  // STOP.
  return bytes.substr(begin);
}

Bytes EncodeAttribute(const Metadata& metadata, std::string_view index) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.Varint(metadata.side_files.empty() ? kVersion : kVersionWithSideFiles);
  out.Varint(index.size());
  for (const std::uint8_t byte : Xxh3(AsByteSpan(index)).bytes) {
    out.U8(byte);
  }
  out.Varint(metadata.block_bytes);
  const auto has_sums = [](const DataFile& file) { return !file.block_crc32c.empty(); };
  out.Varint(static_cast<std::uint64_t>(
      std::count_if(metadata.files.begin(), metadata.files.end(), has_sums)));
  for (const DataFile& file : metadata.files) {
    if (!has_sums(file)) {
      continue;
    }
    out.String(file.name);
    out.Varint(file.size);
    out.Varint(file.block_crc32c.size());
    for (const std::uint32_t crc : file.block_crc32c) {
      out.U32(crc);
    }
  }
  for (const TensorMetadata& tensor : metadata.tensors) {
    for (const Chunk& chunk : tensor.chunks) {
      out.Varint(chunk.payload);
    }
  }
  if (!metadata.side_files.empty()) {
    out.Varint(metadata.side_files.size());
    for (const StoredFile& file : metadata.side_files) {
      out.String(file.name);
      out.Varint(file.size);
      out.U32(file.crc32c);
    }
  }
  out.U32(Crc32c(AsByteSpan(bytes)));
  return bytes;
}

Status CheckDigest(ByteReader* in, std::string_view index) {
  const std::uint64_t length = in->Varint();
  const std::string_view digest = in->Raw(sizeof(Hash128::bytes));
  if (in->failed() || length > index.size() || !index.substr(length).starts_with(PickledName())) {
    return DataLoss("the index is not the one its checksums were made for");
  }
  const Hash128 found = Xxh3(AsByteSpan(index.substr(0, length)));
  if (!std::equal(digest.begin(), digest.end(), found.bytes.begin(),
                  [](char a, std::uint8_t b) { return static_cast<std::uint8_t>(a) == b; })) {
    return DataLoss("the index is damaged: its digest does not match");
  }
  return Status::Ok();
}

Status ReadFiles(ByteReader* in, Metadata* metadata) {
  std::map<std::string_view, DataFile*, std::less<>> files;
  for (DataFile& file : metadata->files) {
    files[file.name] = &file;
  }
  const std::uint64_t count = in->Count(2);
  for (std::uint64_t i = 0; i < count && !in->failed(); ++i) {
    const std::string_view name = in->String();
    const std::uint64_t size = in->Varint();
    const std::uint64_t blocks = in->Count(4);
    const auto found = files.find(name);
    if (found == files.end()) {
      return Malformed(std::string(name) + " is not named in the index");
    }
    if (blocks != DivideUp(size, metadata->block_bytes)) {
      return Malformed("the count of blocks of " + std::string(name));
    }
    DataFile& file = *found->second;
    file.size = size;
    file.block_crc32c.clear();
    file.block_crc32c.reserve(blocks);
    for (std::uint64_t b = 0; b < blocks; ++b) {
      file.block_crc32c.push_back(in->U32());
    }
  }
  return in->status();
}

Status ReadSideFiles(ByteReader* in, Metadata* metadata) {
  const std::uint64_t count = in->Count(6);
  for (std::uint64_t i = 0; i < count && !in->failed(); ++i) {
    StoredFile file;
    file.name = std::string(in->String());
    file.size = in->Varint();
    file.crc32c = in->U32();
    const bool in_order =
        metadata->side_files.empty() || metadata->side_files.back().name < file.name;
    if (!IsRelativeName(file.name) || !in_order) {
      return Malformed("the name of a side file");
    }
    metadata->side_files.push_back(std::move(file));
  }
  return in->status();
}

Status ReadPayloads(ByteReader* in, Metadata* metadata) {
  for (TensorMetadata& tensor : metadata->tensors) {
    for (Chunk& chunk : tensor.chunks.Listed()) {
      chunk.payload = in->Varint();
      if (chunk.payload == 0 || in->failed()) {
        continue;
      }
      const auto elements = CheckedProduct(chunk.box.sizes);
      const auto size = elements ? CheckedMul(*elements, ItemSize(tensor.dtype)) : std::nullopt;
      const std::uint64_t length = chunk.extent.end - chunk.extent.begin;
      if (!size || chunk.payload > length || *size > length - chunk.payload ||
          chunk.extent.encoding != Encoding::kTorchItem) {
        return Malformed("the payload of tensor \"" + tensor.fqn + "\" lies outside its item");
      }
    }
  }
  return in->status();
}

}  // namespace

Status AppendDcpChecksums(const Metadata& metadata, std::string* index) {
  if (!index->ends_with(kEnd)) {
    return InvalidArgument("the index is a pickle that does not end with attributes of Metadata");
  }
  index->resize(index->size() - kEnd.size());
  VARVE_ASSIGN_OR_RETURN(const Bytes pair, PickledPair(EncodeAttribute(metadata, *index)));
  index->append(pair);
  index->append(kEnd);
  return Status::Ok();
}

bool HoldsDcpChecksums(std::string_view index) {
  constexpr std::string_view kCall = "c_codecs\nencode\n";
  return index.find(PickledName() + std::string(kCall)) != std::string_view::npos;
}

Status ApplyDcpChecksums(std::string_view index, std::string_view attribute, Metadata* metadata) {
  if (attribute.size() < sizeof(std::uint32_t)) {
    return Malformed("too short");
  }
  ByteReader trailer(attribute.substr(attribute.size() - sizeof(std::uint32_t)));
  attribute.remove_suffix(sizeof(std::uint32_t));
  if (trailer.U32() != Crc32c(AsByteSpan(attribute))) {
    return Malformed("their own checksum does not match");
  }
  ByteReader in(attribute);
  const std::uint64_t version = in.Varint();
  if (version != kVersion && version != kVersionWithSideFiles) {
    return Unimplemented("the checksums of the index were written by a newer version of Varve");
  }
  VARVE_RETURN_IF_ERROR(CheckDigest(&in, index));
  metadata->block_bytes = in.Varint();
  if (metadata->block_bytes == 0 || metadata->block_bytes > kMaxBlockBytes ||
      metadata->block_bytes % 4096 != 0) {
    return Malformed("the size of a block");
  }
  VARVE_RETURN_IF_ERROR(ReadFiles(&in, metadata));
  VARVE_RETURN_IF_ERROR(ReadPayloads(&in, metadata));
  if (version == kVersionWithSideFiles) {
    VARVE_RETURN_IF_ERROR(ReadSideFiles(&in, metadata));
  }
  return in.Finish();
}

}  // namespace varve
