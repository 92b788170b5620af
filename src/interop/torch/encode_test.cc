#include "interop/torch/encode.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "base/checksum.h"
#include "interop/torch/archive.h"
#include "interop/zip/directory.h"
#include "support/archives.h"
#include "support/random.h"
#include "support/status_matchers.h"
#include "tensor/box.h"

namespace varve::encode_test {
namespace {

using test::FailsWith;
using test::IsOk;
using test::Random;
using test::Watched;

std::uint32_t CrcOf(std::string_view content) { return Crc32ZipExtend(0, AsByteSpan(content)); }

TEST(TensorArchive, HoldsTheRecordsThatTorchAsksFor) {
  const std::string payload = "0123456789ab";
  const auto archive = EncodeTensorArchive(DType::kFloat32, {3}, CrcOf(payload), true);
  ASSERT_TRUE(IsOk(archive));
  const std::string file = archive->head + payload + archive->tail;
  EXPECT_EQ(archive->size(), file.size());

  const auto records = ReadZipDirectory(file.size(), Watched(file));
  ASSERT_TRUE(IsOk(records));
  std::vector<std::string> names;
  std::vector<std::string> contents;
  for (const ZipRecord& record : *records) {
    const auto begin = FindRecordContent(record, file.size(), Watched(file));
    ASSERT_TRUE(IsOk(begin));
    names.push_back(record.name);
    contents.push_back(file.substr(*begin, record.size));
    EXPECT_EQ(record.crc32, CrcOf(contents.back())) << record.name;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"archive/data.pkl", "archive/byteorder",
                                             "archive/version", "archive/data/0"}));
  contents.erase(contents.begin());
  EXPECT_EQ(contents, (std::vector<std::string>{"little", "3\n", payload}));
}

TEST(TensorArchive, PicklesTheTensorAsTorchDoes) {
  const auto archive = EncodeTensorArchive(DType::kFloat32, {2, 3}, std::nullopt, false);
  ASSERT_TRUE(IsOk(archive));
  const std::string zero(1, '\0');
  const std::string nothing(3, '\0');
  EXPECT_NE(
      archive->head.find("\x80\x02"
                         "ctorch._utils\n_rebuild_tensor_v2\nq" +
                         zero + "((X\x07" + nothing + "storagectorch\nFloatStorage\nq\x01X\x01" +
                         nothing + "0X\x03" + nothing + "cpuK\x06tQK" + zero +
                         "(K\x02K\x03t(K\x03K\x01t\x89" + "ccollections\nOrderedDict\nq\x02)RtR."),
      std::string::npos);
}

TEST(TensorArchive, NamesTheStorageClassWhereTorchHasOne) {
  const std::vector<std::pair<DType, std::string>> typed{{DType::kBool, "Bool"},
                                                         {DType::kUInt8, "Byte"},
                                                         {DType::kInt8, "Char"},
                                                         {DType::kInt16, "Short"},
                                                         {DType::kInt32, "Int"},
                                                         {DType::kInt64, "Long"},
                                                         {DType::kFloat16, "Half"},
                                                         {DType::kBFloat16, "BFloat16"},
                                                         {DType::kFloat32, "Float"},
                                                         {DType::kFloat64, "Double"},
                                                         {DType::kComplex64, "ComplexFloat"},
                                                         {DType::kComplex128, "ComplexDouble"}};
  std::size_t untyped = 0;
  for (std::uint8_t number = 0; number < kDTypeCount; ++number) {
    const auto dtype = static_cast<DType>(number);
    const auto archive = EncodeTensorArchive(dtype, {3}, std::nullopt, false);
    ASSERT_TRUE(IsOk(archive));
    const auto named = std::find_if(typed.begin(), typed.end(),
                                    [&](const auto& pair) { return pair.first == dtype; });
    const bool has_class = named != typed.end();
    untyped += has_class ? 0 : 1;
    const std::string storage =
        has_class ? "ctorch\n" + named->second + "Storage\n" : "ctorch.storage\nUntypedStorage\n";
    EXPECT_NE(archive->head.find(storage), std::string::npos) << DTypeName(dtype);
    const std::string dtype_global = "ctorch\n" + std::string(DTypeName(dtype)) + "\n";
    EXPECT_EQ(archive->head.find(dtype_global) == std::string::npos, has_class);
    EXPECT_NE(archive->head.find(has_class ? "_rebuild_tensor_v2\n" : "_rebuild_tensor_v3\n"),
              std::string::npos);
  }
  EXPECT_EQ(untyped, kDTypeCount - typed.size());
}

TEST(TensorArchive, ThePayloadBeginsAtAPageOrAt64Bytes) {
  for (const Dims& sizes : {Dims{}, Dims{0}, Dims{1}, Dims{123'456, 7}, Dims(20, 2)}) {
    for (std::uint8_t dtype = 0; dtype < kDTypeCount; ++dtype) {
      for (const bool align : {false, true}) {
        const auto archive =
            EncodeTensorArchive(static_cast<DType>(dtype), sizes, std::nullopt, align);
        ASSERT_TRUE(IsOk(archive));
        EXPECT_EQ(archive->head.size() % (align ? kTorchItemAlignment : 64), 0U);
        EXPECT_LE(archive->head.size(), align ? kTorchItemAlignment : 1024U);
        EXPECT_TRUE(archive->tail.starts_with("PK\1\2")) << "the directory alone";
        const std::size_t text_bytes = archive->head.size() - archive->filler_bytes;
        EXPECT_EQ(archive->head.find_last_not_of(kTorchFiller) + 1, text_bytes);
      }
    }
  }
}

TEST(TensorArchive, EveryTypeAndShapeReadsBack) {
  Random random(1);
  for (std::uint8_t number = 0; number < kDTypeCount; ++number) {
    const auto dtype = static_cast<DType>(number);
    for (const Dims& sizes :
         {Dims{}, Dims{0}, Dims{3, 0, 2}, Dims{5}, Dims{2, 3, 4}, Dims{300, 70'000, 0}}) {
      const std::string payload = random.Bytes(Volume(sizes) * ItemSize(dtype));
      const auto archive = EncodeTensorArchive(dtype, sizes, CrcOf(payload), number % 2 == 0);
      ASSERT_TRUE(IsOk(archive));
      ASSERT_EQ(archive->payload_bytes, payload.size());
      const std::string file = archive->head + payload + archive->tail;
      const auto item = ReadTensorItem(file.size(), Watched(file));
      ASSERT_TRUE(IsOk(item)) << DTypeName(dtype) << ToString(sizes);
      EXPECT_EQ(item->tensor.dtype, dtype);
      EXPECT_EQ(item->tensor.sizes, sizes);
      EXPECT_EQ(item->tensor.strides, RowMajorStrides(sizes));
      EXPECT_FALSE(item->tensor.requires_grad);
      EXPECT_EQ(item->storage.begin, archive->head.size());
      EXPECT_EQ(item->storage.bytes, payload.size());
      EXPECT_EQ(item->storage.crc32, CrcOf(payload));
    }
  }
}

TEST(TensorArchive, WithoutAChecksumItSaysNone) {
  const auto archive = EncodeTensorArchive(DType::kUInt8, {4}, std::nullopt, true);
  ASSERT_TRUE(IsOk(archive));
  const std::string file = archive->head + "abcd" + archive->tail;
  const auto item = ReadTensorItem(file.size(), Watched(file));
  ASSERT_TRUE(IsOk(item));
  EXPECT_FALSE(item->storage.crc32);
}

TEST(TensorArchive, APayloadOf5GiBIsReadBack) {
  for (const bool align : {false, true}) {
    constexpr std::uint64_t kPayload = std::uint64_t{5} << 30;
    const auto archive =
        EncodeTensorArchive(DType::kBFloat16, {kPayload / 2}, std::uint32_t{0x12345678}, align);
    ASSERT_TRUE(IsOk(archive));
    EXPECT_EQ(archive->payload_bytes, kPayload);
    EXPECT_EQ(archive->head.size() % (align ? 4096 : 64), 0U);
    const std::uint64_t tail_begin = archive->head.size() + kPayload;
    // The payload is never read.
    const RangeReader read = [&](std::uint64_t begin, std::uint64_t size) -> Result<std::string> {
      std::string out;
      for (std::uint64_t at = begin; at < begin + size; ++at) {
        out += at < archive->head.size() ? archive->head[at]
               : at < tail_begin         ? '\0'
                                         : archive->tail.at(at - tail_begin);
      }
      return out;
    };
    const auto records = ReadZipDirectory(archive->size(), read);
    ASSERT_TRUE(IsOk(records));
    EXPECT_EQ(records->back().size, kPayload);
    EXPECT_EQ(records->back().crc32, 0x12345678U);
    const auto item = ReadTensorItem(archive->size(), read);
    ASSERT_TRUE(IsOk(item));
    EXPECT_EQ(item->tensor.sizes, Dims{kPayload / 2});
    EXPECT_EQ(item->storage.begin, archive->head.size());
    EXPECT_EQ(item->storage.bytes, kPayload);
  }
}

TEST(TensorArchive, SizesThatOverflowAreRefused) {
  const std::uint64_t huge = std::uint64_t{1} << 62;
  for (const Dims& sizes :
       {Dims{huge}, Dims{huge, huge}, Dims{~std::uint64_t{0}}, Dims{0, huge, huge},
        Dims{huge, 0, 4}, Dims{std::uint64_t{1} << 32, std::uint64_t{1} << 31}}) {
    EXPECT_TRUE(FailsWith(EncodeTensorArchive(DType::kInt16, sizes, std::nullopt, true),
                          StatusCode::kInvalidArgument, {ToString(sizes), "int16", "2^62"}));
  }
}

TEST(PickledArchive, HasEachStorageBehindItsHead) {
  const std::vector<std::string> storages{std::string(kTorchItemAlignment, 'x'), "", "abc"};
  const StorageHeads archive =
      EncodePickledArchive("the pickle", std::vector<std::uint64_t>{kTorchItemAlignment, 0, 3});
  EXPECT_TRUE(archive.on_page);
  std::string file;
  for (std::size_t i = 0; i < storages.size(); ++i) {
    EXPECT_TRUE(archive.heads[i].ends_with(std::string(archive.filler_bytes[i], kTorchFiller)));
    file += archive.heads[i] + storages[i];
  }
  file += archive.tail;
  const auto records = ReadZipDirectory(file.size(), Watched(file));
  ASSERT_TRUE(IsOk(records));
  ASSERT_EQ(records->size(), 6U);
  EXPECT_EQ((*records)[0].name, "archive/data.pkl");
  for (std::size_t i = 0; i < storages.size(); ++i) {
    const ZipRecord& record = (*records)[3 + i];
    EXPECT_EQ(record.name, "archive/data/" + std::to_string(i));
    EXPECT_EQ(record.crc32, 0U);
    const auto begin = FindRecordContent(record, file.size(), Watched(file));
    ASSERT_TRUE(IsOk(begin));
    EXPECT_EQ(file.substr(*begin, record.size), storages[i]);
    EXPECT_EQ(*begin % (i == 0 ? kTorchItemAlignment : 64), 0U);
  }
}

}  // namespace
}  // namespace varve::encode_test
