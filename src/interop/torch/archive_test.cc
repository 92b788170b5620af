#include "interop/torch/archive.h"

#include <gtest/gtest.h>

#include "support/archives.h"
#include "support/pickles.h"
#include "support/sanitized.h"
#include "support/status_matchers.h"

namespace varve::archive_test {
namespace {

using test::FailsWith;
using test::Golden;
using test::IsOk;
using test::Watched;
using test::With;
using test::ZipOf;
using test::pickled::Archive;
using test::pickled::Call;
using test::pickled::Dict;
using test::pickled::Global;
using test::pickled::Int;
using test::pickled::Ints;
using test::pickled::kFalse;
using test::pickled::kNone;
using test::pickled::kTrue;
using test::pickled::OrderedDict;
using test::pickled::Pickle;
using test::pickled::Storage;
using test::pickled::Str;
using test::pickled::Tensor;
using test::pickled::Tuple;

Result<TensorItem> ItemOf(const std::string& archive) {
  return ReadTensorItem(archive.size(), Watched(archive));
}

/// Returns the tensor of an archive with one storage of 24 bytes.
Result<TensorItem> ItemWith(const std::string& object) {
  return ItemOf(Archive(object, {std::string(24, 'x')}));
}

/// Six float32 as two rows of three.
std::string Plain() { return Tensor(Storage("FloatStorage", "0", 6), 0, {2, 3}, {3, 1}); }

TEST(TorchTensor, SaysWhereItsElementsLie) {
  const auto item = ItemWith(Tensor(Storage("FloatStorage", "0", 6), 1, {2, 2}, {2, 1}));
  ASSERT_TRUE(IsOk(item));
  EXPECT_EQ(item->tensor.dtype, DType::kFloat32);
  EXPECT_EQ(item->tensor.sizes, (Dims{2, 2}));
  EXPECT_EQ(item->tensor.strides, (Strides{2, 1}));
  EXPECT_EQ(item->tensor.offset, 1);
  EXPECT_FALSE(item->tensor.requires_grad);
  EXPECT_EQ(item->storage.key, "0");
  EXPECT_EQ(item->storage.bytes, 24);
  EXPECT_EQ(item->storage.crc32, std::nullopt);
}

TEST(TorchTensor, MayLieOnAnyDeviceButMeta) {
  EXPECT_TRUE(IsOk(ItemWith(Tensor(Storage("FloatStorage", "0", 6, "cuda:3"), 0, {6}, {1}))));
  EXPECT_TRUE(FailsWith(ItemWith(Tensor(Storage("FloatStorage", "0", 6, "meta"), 0, {6}, {1})),
                        StatusCode::kDataLoss, {"does not hold a tensor"}));
}

TEST(TorchTensor, OfAnUntypedStorageHasItsOwnType) {
  const std::string v3 =
      Call(Global("torch._utils", "_rebuild_tensor_v3"),
           {Tuple({Str("storage"), Global("torch.storage", "UntypedStorage"), Str("0"), Str("cpu"),
                   Int(24)}) +
                "Q",
            Int(3), Ints({4}), Ints({2}), kTrue, OrderedDict(), Global("torch", "uint16")});
  const auto item = ItemWith(v3);
  ASSERT_TRUE(IsOk(item));
  EXPECT_EQ(item->tensor.dtype, DType::kUInt16);
  EXPECT_EQ(item->tensor.offset, 3);
  EXPECT_TRUE(item->tensor.requires_grad);
}

TEST(TorchTensor, MayBeLazilyConjugatedOrNegated) {
  const std::string storage = Storage("ComplexFloatStorage", "0", 3);
  const auto conj = ItemWith(Tensor(storage, 0, {3}, {1}, {Dict({Str("conj"), kTrue})}));
  ASSERT_TRUE(IsOk(conj));
  EXPECT_TRUE(conj->tensor.conj);
  EXPECT_FALSE(conj->tensor.neg);
  const auto both = ItemWith(
      Tensor(storage, 0, {3}, {1}, {Dict({Str("neg"), kTrue, Str("conj"), kFalse}), kNone}));
  ASSERT_TRUE(IsOk(both));
  EXPECT_FALSE(both->tensor.conj);
  EXPECT_TRUE(both->tensor.neg);
}

TEST(TorchTensor, MayBeAParameterOrHaveAttributes) {
  const std::string parameter =
      Call(Global("torch._utils", "_rebuild_parameter"), {Plain(), kTrue, OrderedDict()});
  auto item = ItemWith(parameter);
  ASSERT_TRUE(IsOk(item));
  EXPECT_TRUE(item->tensor.requires_grad);

  item = ItemWith(Call(Global("torch._utils", "_rebuild_parameter_with_state"),
                       {Plain(), kFalse, OrderedDict(), Dict({Str("foo"), Int(5)})}));
  ASSERT_TRUE(IsOk(item));
  EXPECT_FALSE(item->tensor.requires_grad);

  const std::string arguments =
      Tuple({Storage("FloatStorage", "0", 6), Int(0), Ints({6}), Ints({1}), kFalse, OrderedDict()});
  const auto of_type = [&](const std::string& type) {
    return Call(Global("torch._tensor", "_rebuild_from_type_v2"),
                {Global("torch._utils", "_rebuild_tensor_v2"), type, arguments,
                 Dict({Str("foo"), Int(5)})});
  };
  EXPECT_TRUE(IsOk(ItemWith(of_type(Global("torch", "Tensor")))));
  EXPECT_TRUE(FailsWith(ItemWith(of_type(Global("my.module", "MyTensor"))),
                        StatusCode::kUnimplemented, {"only torch can read", "my.module.MyTensor"}));
}

TEST(TorchTensor, OfAnotherKindIsNone) {
  const std::string nested = Call(
      Global("torch._utils", "_rebuild_parameter"),
      {Call(Global("torch._utils", "_rebuild_parameter"), {Plain(), kTrue, kNone}), kTrue, kNone});
  for (const std::string& object :
       {Int(1), Str("x"), Tuple({Plain()}), nested, Storage("FloatStorage", "0", 6),
        Tensor(Storage("QInt8Storage", "0", 24), 0, {24}, {1}),
        Tensor(Storage("WhatStorage", "0", 24), 0, {24}, {1}),
        Call(Global("torch._utils", "_rebuild_tensor_v2"), {Storage("FloatStorage", "0", 6)}),
        Call(Global("os", "system"), {Str("true")}), Plain() + Dict({}) + "b"}) {
    EXPECT_TRUE(FailsWith(ItemWith(object), StatusCode::kDataLoss, {"does not hold a tensor"}));
  }
  const std::string quantized =
      Call(Global("torch._utils", "_rebuild_qtensor"),
           {Storage("QInt8Storage", "0", 24), Int(0), Ints({24}), Ints({1})});
  EXPECT_TRUE(FailsWith(ItemWith(quantized), StatusCode::kUnimplemented,
                        {"only torch can read", "_rebuild_qtensor"}));
}

TEST(TorchTensor, OutsideOfItsStorageIsRefused) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  const auto refused = [](std::int64_t count, std::int64_t offset,
                          const std::vector<std::int64_t>& sizes,
                          const std::vector<std::int64_t>& strides, std::string_view phrase) {
    return FailsWith(ItemWith(Tensor(Storage("FloatStorage", "0", count), offset, sizes, strides)),
                     StatusCode::kDataLoss, {phrase});
  };
  EXPECT_TRUE(refused(6, 1, {2, 3}, {3, 1}, "does not lie in its storage of 24 bytes"));
  EXPECT_TRUE(refused(6, 0, {2, 3}, {4, 1}, "does not lie in its storage"));
  EXPECT_TRUE(refused(5, 0, {2, 3}, {3, 1}, "storage of 20 bytes"));
  EXPECT_TRUE(refused(6, 0, {7}, {1}, "does not lie in its storage"));
  EXPECT_TRUE(refused(7, 0, {6}, {1}, "has 24 bytes, fewer than its 7 elements"));
  EXPECT_TRUE(refused(kHuge, 0, {6}, {1}, "fewer than its"));
  EXPECT_TRUE(refused(6, kHuge, {1}, {1}, "does not lie in its storage"));
  EXPECT_TRUE(refused(6, 0, {2, 2, 2, 2, 2}, {kHuge, kHuge, kHuge, kHuge, 1}, "does not lie"));
  EXPECT_TRUE(refused(6, 0, {kHuge, kHuge}, {0, 0}, "too many elements"));
  EXPECT_TRUE(refused(6, 0, {kHuge / 2}, {0}, "too many elements"));
  EXPECT_TRUE(refused(6, 0, {-1}, {1}, "no valid offset, shape or strides"));
  EXPECT_TRUE(refused(6, -1, {1}, {1}, "no valid offset, shape or strides"));
  EXPECT_TRUE(refused(6, 5, {2}, {-1}, "no valid offset, shape or strides"));
  EXPECT_TRUE(refused(6, 0, {2, 3}, {3}, "2 dimensions with 1 strides"));
  EXPECT_TRUE(refused(6, 0, std::vector<std::int64_t>(65, 1), std::vector<std::int64_t>(65, 1),
                      "65 dimensions"));
  EXPECT_TRUE(FailsWith(ItemWith(Tensor(Storage("FloatStorage", "1", 6), 0, {6}, {1})),
                        StatusCode::kDataLoss, {"\"1\", which is not there"}));
}

TEST(TorchTensor, MayRepeatItsStorageButNotWithoutBound) {
  const auto expanded = [](std::int64_t count) {
    return ItemWith(Tensor(Storage("FloatStorage", "0", 6), 0, {count, 6}, {0, 1}));
  };
  EXPECT_TRUE(IsOk(expanded(1'000'000)));
  EXPECT_TRUE(FailsWith(expanded(100'000'000), StatusCode::kInvalidArgument,
                        {"repeats its storage of 24 bytes more than 256 times"}));
}

TEST(TorchTensor, MayOverlapItselfAndBeEmpty) {
  EXPECT_TRUE(IsOk(ItemWith(Tensor(Storage("FloatStorage", "0", 6), 5, {1000, 1000}, {0, 0}))));
  EXPECT_TRUE(IsOk(ItemWith(Tensor(Storage("FloatStorage", "0", 6), 0, {4, 3}, {1, 1}))));
  EXPECT_TRUE(IsOk(ItemWith(Tensor(Storage("FloatStorage", "0", 6), 5, {}, {}))));
  const auto empty = ItemWith(Tensor(Storage("FloatStorage", "0", 6), 99, {0, 3}, {3, 1}));
  ASSERT_TRUE(IsOk(empty));
  EXPECT_EQ(empty->tensor.offset, 6);
}

TEST(TorchContainer, OfAnotherByteOrderIsRefused) {
  const auto with_order = [&](const std::string& order) {
    return ZipOf({{.name = "a/data.pkl", .content = Pickle(Int(1))},
                  {.name = "a/byteorder", .content = order}});
  };
  EXPECT_TRUE(
      FailsWith(ReadValueItem(with_order("big")), StatusCode::kUnimplemented, {"big-endian"}));
  EXPECT_TRUE(
      FailsWith(ReadValueItem(with_order("middle")), StatusCode::kDataLoss, {"byte order"}));
  EXPECT_TRUE(IsOk(ReadValueItem(with_order("little"))));
  EXPECT_TRUE(IsOk(ReadValueItem(ZipOf({{.name = "a/data.pkl", .content = Pickle(Int(1))}}))));
}

TEST(TorchContainer, WithoutAPickleOrWithAProgramIsRefused) {
  EXPECT_TRUE(FailsWith(ReadValueItem(ZipOf({{.name = "a/data.txt"}})), StatusCode::kDataLoss,
                        {"\"a/data.pkl\""}));
  EXPECT_TRUE(FailsWith(ReadValueItem(ZipOf({{.name = "data.pkl"}})), StatusCode::kDataLoss,
                        {"without data.pkl in a folder"}));
  EXPECT_TRUE(FailsWith(ReadValueItem(ZipOf({})), StatusCode::kDataLoss));
  EXPECT_TRUE(FailsWith(ReadValueItem(ZipOf({{.name = "a/data.pkl", .content = Pickle(Int(1))},
                                             {.name = "a/constants.pkl"}})),
                        StatusCode::kUnimplemented, {"TorchScript"}));
  EXPECT_TRUE(FailsWith(ReadValueItem(""), StatusCode::kDataLoss, {"neither as a zip file"}));
  EXPECT_TRUE(
      FailsWith(ReadValueItem(Pickle(Int(1))), StatusCode::kDataLoss, {"neither as a zip file"}));
}

TEST(TorchContainer, WithADamagedPickleIsRefused) {
  std::string file = Golden("dcp/2.14.1/torch_save/list.pt");
  const std::size_t name = file.find("BFloat16Storage");
  file = With(file, name, "C");
  EXPECT_TRUE(FailsWith(ReadValueItem(file), StatusCode::kDataLoss, {"checksum of its pickle"}));
}

TEST(TorchContainer, TellsTheChecksumOfEachStorage) {
  const std::string file = Golden("dcp/2.14.1/torch_save/bare_tensor.pt");
  const auto item = ItemOf(file);
  ASSERT_TRUE(IsOk(item));
  EXPECT_EQ(item->storage.crc32, 0x4eb90b8e);
  EXPECT_EQ(item->storage.begin, 0x2c0);
  // Zero for an empty storage is a checksum, for any other there is none.
  const auto empty =
      ItemOf(Archive(Tensor(Storage("FloatStorage", "0", 0), 0, {0}, {1}), {std::string()}));
  ASSERT_TRUE(IsOk(empty));
  EXPECT_EQ(empty->storage.crc32, 0);
}

TEST(TorchItem, NeverCrashesWhateverIsCutOrFlipped) {
  std::vector<std::string> files{Golden("dcp/2.14.1/torch_save/bare_parameter.pt"),
                                 Golden("dcp/2.6.0/torch_save/list.pt"),
                                 Archive(Plain(), {std::string(24, 'x')})};
  for (const std::string& file : files) {
    for (std::size_t size = 0; size < file.size(); size += test::kEveryByte) {
      EXPECT_FALSE(ItemOf(file.substr(0, size)).ok()) << size;
      EXPECT_FALSE(ReadValueItem(file.substr(0, size)).ok()) << size;
    }
    for (std::size_t at = 0; at < file.size(); at += test::kEveryByte) {
      for (const int flip : {0x01, 0x08, 0x80, 0xFF}) {
        const std::string damaged =
            With(file, at, std::string(1, static_cast<char>(file[at] ^ flip)));
        if (const auto item = ItemOf(damaged); item.ok()) {
          EXPECT_LE(item->storage.begin + item->storage.bytes, damaged.size());
        }
        (void)ReadValueItem(damaged);
      }
    }
  }
}

}  // namespace
}  // namespace varve::archive_test
