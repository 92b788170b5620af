#include "save/dcp_items.h"

#include <atomic>

#include <gtest/gtest.h>

#include "base/checksum.h"
#include "interop/torch/archive.h"
#include "interop/torch/encode.h"
#include "storages/memory.h"
#include "support/archives.h"
#include "support/fake_cuda.h"
#include "support/random.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "tensor/box.h"

namespace varve::dcp_items_test {
namespace {

using test::FailsWith;
using test::IsOk;
using test::Random;
using test::TempDir;
using test::Watched;

constexpr const char* kPath = "__0_0.distcp";
constexpr std::uint64_t kAnySize = std::uint64_t{1} << 30;

DcpItem TensorItemOf(DType dtype, const Dims& sizes, const std::string& memory,
                     Strides strides = {}) {
  return WholeDcpTensor("w", dtype, sizes, HostMemory{memory.data(), std::move(strides)});
}

DcpItem BytesItemOf(std::string bytes) { return {"step", std::move(bytes)}; }

std::string_view ItemOf(const std::string& file, const DcpExtent& extent) {
  return std::string_view(file).substr(extent.offset, extent.length);
}

/// Items of `sizes` bytes each, with their memory.
struct State {
  std::vector<std::string> memory;
  std::vector<DcpItem> items;
};

State TensorsOf(const std::vector<std::uint64_t>& sizes) {
  Random random(5);
  State state;
  for (const std::uint64_t size : sizes) {
    state.memory.push_back(random.Bytes(size));
  }
  for (const std::string& bytes : state.memory) {
    state.items.push_back(TensorItemOf(DType::kUInt8, {bytes.size()}, bytes));
  }
  return state;
}

TEST(DcpWriter, EveryItemIsAnArchiveOfItsOwn) {
  const State state = TensorsOf({0, 1, 4095, 4096, 100'000, 3, 9'000'000});
  std::vector<DcpItem> items = state.items;
  const std::string archive = *EncodeValueArchive(Value::Int(7));
  items.insert(items.begin() + 2, BytesItemOf(archive));
  items.push_back(BytesItemOf(""));
  for (const bool direct : {false, true}) {
    MemoryStorage storage;
    const auto written = WriteDcpFile(kPath, items, {.direct = direct}, storage);
    ASSERT_TRUE(IsOk(written));
    const std::string file = *ReadWholeFile(storage, kPath, kAnySize);
    EXPECT_EQ(written->size, file.size());
    EXPECT_EQ(written->direct, direct);
    ASSERT_EQ(written->items.size(), items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      const std::string_view item = ItemOf(file, written->items[i]);
      const std::uint64_t payload = written->items[i].offset + written->items[i].payload;
      const auto* const tensor = std::get_if<DcpTensor>(&items[i].content);
      if (tensor == nullptr) {
        EXPECT_EQ(item, std::get<std::string>(items[i].content));
        EXPECT_EQ(payload, written->items[i].offset);
        continue;
      }
      const auto read = ReadTensorItem(item.size(), Watched(item));
      ASSERT_TRUE(IsOk(read));
      const Dims& sizes = tensor->part.sizes;
      EXPECT_EQ(read->tensor.sizes, sizes);
      EXPECT_EQ(written->items[i].offset + read->storage.begin, payload);
      const auto expected_item =
          EncodeTensorArchive(DType::kUInt8, sizes, std::nullopt, sizes[0] >= 4096);
      ASSERT_TRUE(IsOk(expected_item));
      EXPECT_TRUE(item.starts_with(expected_item->head) && item.ends_with(expected_item->tail));
      const auto* const data = static_cast<const char*>(std::get<HostMemory>(tensor->source).data);
      EXPECT_TRUE(file.substr(payload, sizes[0]) == std::string_view(data, sizes[0])) << i;
    }
  }
}

TEST(DcpWriter, LargeTensorsBeginAtPagesAndSmallItemsArePacked) {
  State state = TensorsOf({10, 4096, 4095, 5000, 0});
  state.items.insert(state.items.begin(), BytesItemOf("an archive"));
  state.items.push_back(BytesItemOf("another"));
  MemoryStorage storage;
  const auto written = WriteDcpFile(kPath, state.items, {}, storage);
  ASSERT_TRUE(IsOk(written));
  std::uint64_t end = 0;
  const std::string file = *ReadWholeFile(storage, kPath, kAnySize);
  for (std::size_t i = 0; i < state.items.size(); ++i) {
    const DcpExtent& extent = written->items[i];
    const auto* const tensor = std::get_if<DcpTensor>(&state.items[i].content);
    const bool large = tensor != nullptr && tensor->part.sizes[0] >= 4096;
    EXPECT_EQ(extent.offset, large ? (end + 4095) / 4096 * 4096 : end) << i;
    EXPECT_EQ(large, (written->items[i].offset + written->items[i].payload) % 4096 == 0 && i > 0)
        << i;
    EXPECT_EQ(file.find_first_not_of('\0', end), extent.offset) << "gaps are zeros";
    end = extent.offset + extent.length;
  }
  EXPECT_EQ(end, file.size());
}

TEST(DcpWriter, StridedMemoryIsStoredRowMajor) {
  const std::string memory = "abcdefghijkl";
  // Column-major; every other element; backwards.
  const std::vector<std::pair<DcpItem, std::string>> cases{
      {TensorItemOf(DType::kUInt8, {3, 4}, memory, {1, 3}), "adgjbehkcfil"},
      {TensorItemOf(DType::kInt16, {3}, memory, {2}), "abefij"},
      {TensorItemOf(DType::kUInt8, {2, 2}, memory, {0, 5}), "afaf"},
      {TensorItemOf(DType::kFloat32, {}, memory), "abcd"},
  };
  for (const auto& [item, expected] : cases) {
    MemoryStorage storage;
    const auto written = WriteDcpFile(kPath, {item}, {}, storage);
    ASSERT_TRUE(IsOk(written));
    const std::string file = *ReadWholeFile(storage, kPath, kAnySize);
    EXPECT_EQ(file.substr(written->items[0].offset + written->items[0].payload, expected.size()),
              expected);
    const auto read = ReadTensorItem(file.size(), Watched(file));
    ASSERT_TRUE(IsOk(read));
    EXPECT_EQ(read->tensor.strides, RowMajorStrides(std::get<DcpTensor>(item.content).part.sizes));
    EXPECT_EQ(read->storage.bytes, expected.size());
  }
}

TEST(DcpWriter, BlockChecksumsAreThoseOfTheFile) {
  const State state = TensorsOf({20'000, 7, 50'000});
  MemoryStorage storage;
  const auto written = WriteDcpFile(kPath, state.items, {.block_bytes = 8192}, storage);
  ASSERT_TRUE(IsOk(written));
  EXPECT_EQ(written->block_bytes, 8192U);
  const std::string file = *ReadWholeFile(storage, kPath, kAnySize);
  std::vector<std::uint32_t> expected;
  for (std::size_t at = 0; at < file.size(); at += 8192) {
    expected.push_back(Crc32c(AsByteSpan(std::string_view(file).substr(at, 8192))));
  }
  EXPECT_EQ(written->block_crc32c, expected);
}

TEST(DcpWriter, NoItemsMakeAnEmptyFile) {
  const TempDir folder;
  const auto written = WriteDcpFile(folder / kPath, {});
  ASSERT_TRUE(IsOk(written));
  EXPECT_EQ(written->size, 0U);
  EXPECT_TRUE(written->block_crc32c.empty());
  EXPECT_EQ(*ReadWholeFile(PosixStorage(), folder / kPath, kAnySize), "");
}

TEST(DcpWriter, WritesRealFilesLikeThoseInMemory) {
  const State state = TensorsOf({100'000, 10, 4096});
  const TempDir folder;
  MemoryStorage memory;
  const auto real = WriteDcpFile(folder / kPath, state.items);
  const auto held = WriteDcpFile(kPath, state.items, {}, memory);
  ASSERT_TRUE(IsOk(real));
  ASSERT_TRUE(IsOk(held));
  EXPECT_EQ(real->block_crc32c, held->block_crc32c);
  EXPECT_TRUE(*ReadWholeFile(PosixStorage(), folder / kPath, kAnySize) ==
              *ReadWholeFile(memory, kPath, kAnySize));
}

TEST(DcpWriter, WhatIsWrittenOutlivesAPowerCut) {
  const State state = TensorsOf({100'000});
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(WriteDcpFile(kPath, state.items, {}, storage)));
  const std::string file = *ReadWholeFile(storage, kPath, kAnySize);
  ASSERT_TRUE(IsOk(storage.SyncDirectory(".")));
  const auto after = storage.AfterPowerCut(PowerCut::kKeepSynced);
  EXPECT_TRUE(*ReadWholeFile(*after, kPath, kAnySize) == file);
}

TEST(DcpWriter, ProgressEndsWithTheWholeFile) {
  const State state = TensorsOf({20'000'000});
  MemoryStorage storage;
  std::atomic<std::uint64_t> most{0};
  std::atomic<std::uint64_t> total{0};
  SaveOptions options;
  options.progress = [&](std::uint64_t done, std::uint64_t of) {
    std::uint64_t before = most;
    while (before < done && !most.compare_exchange_weak(before, done)) {
    }
    total = of;
  };
  const auto written = WriteDcpFile(kPath, state.items, options, storage);
  ASSERT_TRUE(IsOk(written));
  EXPECT_EQ(most, written->size);
  EXPECT_EQ(total, written->size);
}

TEST(DcpWriter, AnItemThatCannotBeIsRefusedBeforeTheFileIsBegun) {
  const std::string memory(64, 'm');
  const std::uint64_t huge = std::uint64_t{1} << 40;
  const DcpItem nowhere = WholeDcpTensor("w", DType::kUInt8, {3}, HostMemory{});
  const DcpItem too_few_strides =
      WholeDcpTensor("w", DType::kUInt8, {3}, CudaMemory{memory.data(), 0, nullptr, {1, 1}});
  for (const DcpItem& item :
       {nowhere, too_few_strides, TensorItemOf(DType::kUInt8, {3}, memory, {1, 1}),
        TensorItemOf(DType::kUInt8, {huge, huge}, memory)}) {
    MemoryStorage storage;
    EXPECT_TRUE(FailsWith(WriteDcpFile(kPath, {item}, {}, storage), StatusCode::kInvalidArgument,
                          {"tensor \"w\""}));
    EXPECT_TRUE(FailsWith(storage.OpenForRead(kPath), StatusCode::kNotFound));
  }
  for (const std::uint64_t block_bytes : {0ULL, 1000ULL, 16ULL << 20}) {
    MemoryStorage storage;
    EXPECT_TRUE(FailsWith(WriteDcpFile(kPath, {}, {.block_bytes = block_bytes}, storage),
                          StatusCode::kInvalidArgument, {"block_bytes"}));
  }
}

TEST(DcpWriter, CopiesTensorsFromDevices) {
  const std::string content = "of a device";
  void* const memory = fake_cuda_alloc(1, content.size());
  fake_cuda_poke(memory, content.data(), content.size());
  const DcpItem item = WholeDcpTensor("w", DType::kUInt8, {content.size()}, CudaMemory{memory, 1});
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(WriteDcpFile(kPath, {item}, {}, storage)));
  EXPECT_NE(ReadWholeFile(storage, kPath, kAnySize)->find(content), std::string::npos);
  fake_cuda_free(memory);
}

TEST(DcpWriter, AnEmptyTensorNeedsNoMemory) {
  const DcpItem item = WholeDcpTensor("w", DType::kFloat64, {3, 0}, HostMemory{});
  MemoryStorage storage;
  const auto written = WriteDcpFile(kPath, {item}, {}, storage);
  ASSERT_TRUE(IsOk(written));
  const std::string file = *ReadWholeFile(storage, kPath, kAnySize);
  const auto read = ReadTensorItem(file.size(), Watched(file));
  ASSERT_TRUE(IsOk(read));
  EXPECT_EQ(read->tensor.sizes, (Dims{3, 0}));
}

TEST(DcpWriter, AFileThatExistsIsNotTouched) {
  MemoryStorage storage;
  ASSERT_TRUE(IsOk(WriteWholeFile(storage, kPath, "precious")));
  const State state = TensorsOf({10});
  EXPECT_TRUE(FailsWith(WriteDcpFile(kPath, state.items, {}, storage), StatusCode::kAlreadyExists));
  EXPECT_EQ(*ReadWholeFile(storage, kPath, kAnySize), "precious");
}

TEST(FingerprintDcpItems, ComparesElementsWhateverTheirStrides) {
  const std::string a = "abcdef";
  const std::string transposed = "adbecf";
  const DcpItem item = WholeDcpTensor("a", DType::kUInt8, {2, 3}, HostMemory{a.data()});
  const DcpItem other =
      WholeDcpTensor("a", DType::kUInt8, {2, 3}, HostMemory{transposed.data(), {1, 2}});
  const DcpItem different =
      WholeDcpTensor("a", DType::kUInt8, {2, 3}, HostMemory{transposed.data()});
  const auto prints = *FingerprintDcpItems({item, other, different, DcpItem{"b", "abcdef"}});
  EXPECT_NE(prints[0], 0U);
  EXPECT_EQ(prints[0], prints[1]);
  EXPECT_NE(prints[0], prints[2]);
  EXPECT_EQ(prints[3], 0U);
}

}  // namespace
}  // namespace varve::dcp_items_test
