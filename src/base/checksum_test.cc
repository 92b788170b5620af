#include "base/checksum.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "support/random.h"

namespace varve::checksum_test {
namespace {

using test::Random;

std::uint32_t Crc(std::string_view text) { return Crc32c(AsByteSpan(text)); }
std::string XxhHex(std::string_view text) { return Hex(Xxh3(AsByteSpan(text)).bytes); }

// RFC 3720 appendix B.4; the RFC prints the four bytes in wire order.
TEST(Crc32c, EqualsTheVectorsOfRfc3720) {
  std::string rising(32, '\0');
  std::string falling(32, '\0');
  for (std::size_t i = 0; i < 32; ++i) {
    rising[i] = static_cast<char>(i);
    falling[i] = static_cast<char>(31 - i);
  }
  EXPECT_EQ(Crc(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(Crc(std::string(32, '\xFF')), 0x62A8AB43U);
  EXPECT_EQ(Crc(rising), 0x46DD794EU);
  EXPECT_EQ(Crc(falling), 0x113FDB5CU);
  const std::array<std::uint8_t, 48> read_command{
      0x01, 0xC0, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
      0x00, 0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x00,
      0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x18, 0x28, 0x00, 0x00, 0x00,
      0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00};
  EXPECT_EQ(Crc32c(std::as_bytes(std::span(read_command))), 0xD9963A56U);
}

TEST(Crc32c, EqualsTheCheckValueOfTheCatalogue) {
  EXPECT_EQ(Crc("123456789"), 0xE3069283U);
  EXPECT_EQ(Crc(""), 0U);
}

TEST(Crc32c, OfTwoPartsEqualsThatOfTheWhole) {
  const std::string data = Random(1).Bytes(300);
  for (std::size_t cut = 0; cut <= data.size(); ++cut) {
    const std::string_view text = data;
    EXPECT_EQ(Crc32cExtend(Crc(text.substr(0, cut)), AsByteSpan(text.substr(cut))), Crc(data));
  }
}

TEST(Crc32c, NoticesEverySingleBitFlip) {
  std::string data = Random(2).Bytes(200);
  const std::uint32_t whole = Crc(data);
  for (std::size_t bit = 0; bit < data.size() * 8; ++bit) {
    data[bit / 8] = static_cast<char>(data[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_NE(Crc(data), whole) << "bit " << bit;
    data[bit / 8] = static_cast<char>(data[bit / 8] ^ (1 << (bit % 8)));
  }
}

/// Calls `copy` with bytes of each length around a cache line and around the steps of 2 KiB, to
/// targets at each place in a line, and looks at what it copied and at the bytes around that.
void ExpectCopiesOfAllLengthsAndPlaces(
    const std::function<void(std::span<const std::byte>, std::byte*)>& copy) {
  constexpr std::size_t kAround = 66;
  const std::string pool = Random(4).Bytes(std::size_t{3} * 2048 + 2 * kAround);
  std::vector<std::byte> memory(pool.size() + 3 * kAround);
  for (const std::size_t middle : {kAround, std::size_t{2048}, std::size_t{4096}}) {
    for (std::size_t size = middle - kAround; size <= middle + 2 * kAround; ++size) {
      for (std::size_t place = 1; place <= 64; ++place) {
        const auto source = AsByteSpan(pool).subspan(size % 7, size);
        std::byte* const target = memory.data() + place;
        target[-1] = target[size] = std::byte{0x5A};
        std::fill_n(target, size, ~AsByteSpan(pool)[size % 7]);
        copy(source, target);
        ASSERT_TRUE(std::equal(source.begin(), source.end(), target)) << size << " to " << place;
        ASSERT_EQ(target[-1], std::byte{0x5A}) << size << " to " << place;
        ASSERT_EQ(target[size], std::byte{0x5A}) << size << " to " << place;
      }
    }
  }
}

TEST(StreamCopy, CopiesEveryLengthToEveryPlace) { ExpectCopiesOfAllLengthsAndPlaces(StreamCopy); }

TEST(StreamAndCrc32c, CopiesAndEqualsTheCrcOfTheSource) {
  const std::uint32_t before = Crc("before");
  ExpectCopiesOfAllLengthsAndPlaces([&](std::span<const std::byte> bytes, std::byte* target) {
    EXPECT_EQ(StreamAndCrc32c(before, bytes, target), Crc32cExtend(before, bytes)) << bytes.size();
  });
}

TEST(StreamAndCrc32c, CopiesManySteps) {
  const std::string source = Random(5).Bytes(100001);
  std::vector<std::byte> target(source.size());
  EXPECT_EQ(StreamAndCrc32c(0, AsByteSpan(source), target.data()), Crc(source));
  EXPECT_TRUE(std::equal(target.begin(), target.end(), AsByteSpan(source).begin()));
}

// Sizes around the copy's inner step, and odd starts.
TEST(CopyAndCrc32c, CopiesAndEqualsTheCrcOfTheSource) {
  Random random(3);
  for (const std::size_t size : {0, 1, 7, 4095, 16383, 16384, 16385, 32768, 100001}) {
    const std::string source = random.Bytes(size + 3);
    const auto bytes = AsByteSpan(source).subspan(3);
    std::vector<std::byte> target(size + 1, std::byte{0x5A});
    const std::uint32_t before = Crc("before");
    const std::uint32_t crc = CopyAndCrc32c(before, bytes, target.data());
    EXPECT_EQ(crc, Crc32cExtend(before, bytes)) << size;
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), target.begin())) << size;
    EXPECT_EQ(target.back(), std::byte{0x5A}) << "wrote past the end";
  }
}

// The values of xxHash's own specification and of `xxhsum -H2`.
TEST(Xxh3, EqualsKnownValues) {
  EXPECT_EQ(XxhHex(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(XxhHex("a"), "a96faf705af16834e6c632b61e964e1f");
  EXPECT_EQ(XxhHex("abc"), "06b05ab6733a618578af5f94892f3950");
}

// The algorithm changes at 16, 128, 240 and 256 bytes, and works in stripes of 64 and blocks of
// 1024.
TEST(Xxh3Stream, EqualsOneShotHoweverTheDataArrives) {
  Random random(4);
  Xxh3Stream stream;
  for (const std::size_t size : {0, 1, 16, 17, 128, 129, 240, 241, 256, 257, 1024, 1025, 70000}) {
    const std::string data = random.Bytes(size);
    stream.Reset();
    for (std::size_t at = 0; at < size;) {
      const std::size_t step = std::min<std::size_t>(random.Between(1, 5000), size - at);
      stream.Update(AsByteSpan(std::string_view(data).substr(at, step)));
      at += step;
    }
    EXPECT_EQ(stream.Digest(), Xxh3(AsByteSpan(data))) << size;
  }
}

TEST(Hex, RoundTripsAndIsLowerCase) {
  const std::array<std::uint8_t, 4> bytes{0x00, 0x9A, 0xBC, 0xFF};
  EXPECT_EQ(Hex(bytes), "009abcff");
  std::array<std::uint8_t, 4> parsed{};
  ASSERT_TRUE(ParseHex("009abcff", parsed));
  EXPECT_EQ(parsed, bytes);
  EXPECT_EQ(HexU32(0x009ABCFF), "009abcff");
  std::uint32_t number = 0;
  ASSERT_TRUE(ParseHexU32("009abcff", &number));
  EXPECT_EQ(number, 0x009ABCFFU);
}

TEST(Hex, RejectsOtherWidthsAndOtherCharacters) {
  std::array<std::uint8_t, 2> out{};
  for (const char* text : {"", "abc", "abcde", "ABCD", "ab g",
                           "ab\xFF"
                           "f",
                           "0x12"}) {
    EXPECT_FALSE(ParseHex(text, out)) << text;
  }
}

TEST(Crc32Zip, IsTheChecksumOfZipFiles) {
  EXPECT_EQ(Crc32ZipExtend(0, AsByteSpan("123456789")), 0xcbf43926U);
}

TEST(Crc32Zip, PiecesJoinToTheWhole) {
  const std::string text = "a varve is a layer of sediment";
  const std::string_view whole = text;
  const std::uint32_t want = Crc32ZipExtend(0, AsByteSpan(whole));
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    const std::uint32_t a = Crc32ZipExtend(0, AsByteSpan(whole.substr(0, cut)));
    const std::uint32_t b = Crc32ZipExtend(0, AsByteSpan(whole.substr(cut)));
    EXPECT_EQ(Crc32ZipJoin(a, b, text.size() - cut), want);
    EXPECT_EQ(Crc32ZipExtend(a, AsByteSpan(whole.substr(cut))), want);
  }
}

TEST(Checksums, ThatOfTwoPartsFollowsFromTheirs) {
  std::vector<std::byte> bytes(10'000);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i * 131 + (i >> 5));
  }
  const std::span<const std::byte> all(bytes);
  for (const std::size_t cut : {0UL, 1UL, 7UL, 4096UL, 9999UL, 10'000UL}) {
    EXPECT_EQ(Crc32cJoin(Crc32c(all.first(cut)), Crc32c(all.subspan(cut)), bytes.size() - cut),
              Crc32c(all));
  }
}

}  // namespace
}  // namespace varve::checksum_test
