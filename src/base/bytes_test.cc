#include "base/bytes.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "base/checked.h"
#include "support/status_matchers.h"

namespace varve::bytes_test {
namespace {

using test::FailsWith;
using test::IsOk;

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

struct Sample {
  std::uint8_t u8 = 0;
  std::uint32_t u32 = 0;
  std::uint64_t u64 = 0;
  double f64 = 0;
  std::uint64_t varint = 0;
  std::string string;
  std::vector<std::uint64_t> list;
  friend bool operator==(const Sample&, const Sample&) = default;
};

Sample Read(ByteReader* in) {
  Sample sample;
  sample.u8 = in->U8();
  sample.u32 = in->U32();
  sample.u64 = in->U64();
  sample.f64 = in->F64();
  sample.varint = in->Varint();
  sample.string = std::string(in->String());
  in->VarintList(&sample.list);
  return sample;
}

Bytes Write(const Sample& sample) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.U8(sample.u8);
  out.U32(sample.u32);
  out.U64(sample.u64);
  out.F64(sample.f64);
  out.Varint(sample.varint);
  out.String(sample.string);
  out.VarintList(sample.list);
  return bytes;
}

const Sample kSample{0xAB, 0x01020304, 0x0102030405060708, -1.5, 300, "text", {0, 127, 128, kMax}};

TEST(ByteReader, ReadsBackWhatByteWriterWrote) {
  const Bytes bytes = Write(kSample);
  ByteReader in(bytes);
  EXPECT_EQ(Read(&in), kSample);
  EXPECT_TRUE(IsOk(in.Finish()));
}

TEST(ByteWriter, WritesLittleEndian) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.U32(0x01020304);
  out.Varint(300);
  EXPECT_EQ(bytes, "\x04\x03\x02\x01\xAC\x02");
}

TEST(ByteReader, RejectsEveryTruncation) {
  const Bytes bytes = Write(kSample);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    ByteReader in(std::string_view(bytes).substr(0, size));
    (void)Read(&in);
    EXPECT_TRUE(FailsWith(in.Finish(), StatusCode::kDataLoss)) << size;
  }
}

TEST(ByteReader, RejectsTrailingBytes) {
  const Bytes bytes = Write(kSample) + '\0';
  ByteReader in(bytes);
  (void)Read(&in);
  EXPECT_TRUE(FailsWith(in.Finish(), StatusCode::kDataLoss, {"trailing bytes"}));
}

TEST(ByteReader, ReturnsZeroesAndTheFirstReasonAfterAFailure) {
  ByteReader in("\x01");
  EXPECT_EQ(in.U32(), 0U);
  EXPECT_EQ(in.U8(), 0U);
  EXPECT_EQ(in.Raw(1), "");
  in.Fail("another reason");
  EXPECT_TRUE(FailsWith(in.status(), StatusCode::kDataLoss, {"input ends early at byte 0"}));
}

TEST(ByteReader, ReadsEveryVarintWidthExactly) {
  for (unsigned shift = 0; shift < 64; ++shift) {
    for (const std::uint64_t value :
         {std::uint64_t{1} << shift, (std::uint64_t{1} << shift) - 1, kMax >> shift}) {
      Bytes bytes;
      ByteWriter(&bytes).Varint(value);
      ByteReader in(bytes);
      EXPECT_EQ(in.Varint(), value);
      EXPECT_TRUE(IsOk(in.Finish()));
    }
  }
}

TEST(ByteReader, RejectsVarintsBeyond64Bits) {
  const std::string nine(9, '\xFF');
  for (const std::string& bytes : {nine + '\x02', nine + '\xFF' + '\x01', nine + '\x81' + '\0'}) {
    ByteReader in(bytes);
    EXPECT_EQ(in.Varint(), 0U);
    EXPECT_TRUE(FailsWith(in.status(), StatusCode::kDataLoss, {"64 bits"}));
  }
}

TEST(ByteReader, RejectsCountsThatTheInputCannotHold) {
  const Bytes bytes = Bytes("\x05") + Bytes(9, 'x');
  EXPECT_EQ(ByteReader(bytes).Count(1), 5U);
  ByteReader in(bytes);
  EXPECT_EQ(in.Count(2), 0U);
  EXPECT_TRUE(FailsWith(in.status(), StatusCode::kDataLoss, {"count exceeds the input"}));
}

TEST(ByteReader, RejectsAStringLengthNearTheTopOfTheRange) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.Varint(kMax);
  out.Raw("abc");
  ByteReader in(bytes);
  EXPECT_EQ(in.String(), "");
  EXPECT_TRUE(in.failed());
}

TEST(ByteReader, KeepsTheBitsOfANan) {
  const std::uint64_t bits = 0x7FF4000000000123;
  Bytes bytes;
  ByteWriter(&bytes).F64(std::bit_cast<double>(bits));
  EXPECT_EQ(std::bit_cast<std::uint64_t>(ByteReader(bytes).F64()), bits);
}

TEST(CheckedArithmetic, FailsExactlyWhereTheResultWouldWrap) {
  EXPECT_EQ(CheckedAdd(kMax - 1, 1), kMax);
  EXPECT_EQ(CheckedAdd(kMax, 1), std::nullopt);
  EXPECT_EQ(CheckedMul(kMax / 3, 3), kMax / 3 * 3);
  EXPECT_EQ(CheckedMul(std::uint64_t{1} << 32, std::uint64_t{1} << 32), std::nullopt);
  EXPECT_EQ(CheckedMul(kMax, 0), 0U);
}

TEST(CheckedArithmetic, ProductOfNothingIsOneAndZeroBeatsOverflow) {
  using List = std::vector<std::uint64_t>;
  EXPECT_EQ(CheckedProduct(List{}), 1U);
  EXPECT_EQ(CheckedProduct(List{2, 3, 7}), 42U);
  EXPECT_EQ(CheckedProduct(List{kMax, kMax}), std::nullopt);
  EXPECT_EQ(CheckedProduct(List{kMax, kMax, 0}), 0U);
}

TEST(CheckedArithmetic, RoundsUpToAnyUnit) {
  for (const std::uint64_t unit : {1, 3, 4096}) {
    for (std::uint64_t value = 0; value < 3 * unit; ++value) {
      const std::uint64_t rounded = RoundUp(value, unit);
      EXPECT_TRUE(rounded >= value && rounded < value + unit && rounded % unit == 0);
      EXPECT_EQ(DivideUp(value, unit), rounded / unit);
    }
  }
  EXPECT_EQ(DivideUp(kMax, 2), (kMax >> 1) + 1);
}

}  // namespace
}  // namespace varve::bytes_test
