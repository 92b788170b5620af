#include "base/fields.h"

#include <limits>

#include <gtest/gtest.h>

#include "support/status_matchers.h"

namespace varve::test::fields_test {

enum class Colour : std::uint8_t { kRed = 1, kBlue = 2 };

struct Point {
  std::uint64_t x = 0;
  std::string name;
  friend bool operator==(const Point&, const Point&) = default;
};

/// A field of every kind.
struct Everything {
  bool flag = false;
  std::uint8_t octet = 0;
  std::uint32_t small = 0;
  std::uint64_t large = 0;
  double number = 0;
  std::array<std::uint8_t, 4> id{};
  std::optional<std::uint32_t> index;
  std::vector<Point> points;
  std::map<std::string, std::vector<std::string>> map;
  Colour colour = Colour::kRed;
  std::vector<std::uint32_t> sums;
  std::uint64_t time = 0;
  friend bool operator==(const Everything&, const Everything&) = default;
};

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, Point>& point) {
  archive(point.x, point.name);
  archive.Check([&] { return point.x <= 1000; }, "a point outside of the map");
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, Everything>& all) {
  archive(all.flag, all.octet, all.small, all.large, all.number, all.id, all.index, all.points,
          all.map);
  archive.Enum(all.colour, Colour::kRed, Colour::kBlue, "an unknown colour");
  archive.Fixed(all.sums);
  archive.Fixed(all.time);
}

namespace {

constexpr auto kDataLoss = StatusCode::kDataLoss;

Everything Sample() {
  return {.flag = true,
          .octet = 0xFF,
          .small = 300,
          .large = std::numeric_limits<std::uint64_t>::max(),
          .number = -0.5,
          .id = {1, 2, 3, 4},
          .index = 0,
          .points = {{7, "a"}, {0, ""}},
          .map = {{"x", {"1", ""}}, {"y", {}}},
          .colour = Colour::kBlue,
          .sums = {0xDEADBEEF, 1},
          .time = 1};
}

TEST(Fields, RoundTrip) {
  for (const Everything& value : {Sample(), Everything{}}) {
    const auto decoded = DecodeFields<Everything>(EncodeFields(value));
    ASSERT_TRUE(IsOk(decoded));
    EXPECT_EQ(*decoded, value);
  }
}

TEST(Fields, StandInTheOrderOfTheVisitor) {
  EXPECT_EQ(EncodeFields(Point{300, "ab"}),
            "\xAC\x02\x02"
            "ab");
}

TEST(Fields, EveryTruncationAndAnyTrailingByteIsRefused) {
  const Bytes bytes = EncodeFields(Sample());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_TRUE(FailsWith(DecodeFields<Everything>(bytes.substr(0, size)), kDataLoss)) << size;
  }
  EXPECT_TRUE(FailsWith(DecodeFields<Everything>(bytes + '\0'), kDataLoss, {"trailing bytes"}));
}

TEST(Fields, ChangedBytesDecodeToSomethingElseOrAreRefused) {
  const Bytes good = EncodeFields(Sample());
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (int byte = 0; byte < 256; ++byte) {
      Bytes bytes = good;
      bytes[at] = static_cast<char>(byte);
      const auto decoded = DecodeFields<Everything>(bytes);
      EXPECT_TRUE(bytes == good || !decoded.ok() || *decoded != Sample()) << at << " " << byte;
    }
  }
}

TEST(Fields, OutsideOfTheirRangeAreRefusedWithTheReason) {
  EXPECT_TRUE(FailsWith(DecodeFields<Point>(EncodeFields(Point{1001, ""})), kDataLoss,
                        {"a point outside of the map"}));
  Everything bad;
  bad.colour = static_cast<Colour>(3);
  EXPECT_TRUE(
      FailsWith(DecodeFields<Everything>(EncodeFields(bad)), kDataLoss, {"an unknown colour"}));
  EXPECT_TRUE(FailsWith(DecodeFields<bool>("\x02"), kDataLoss, {"neither 0 nor 1"}));
  EXPECT_TRUE(FailsWith(DecodeFields<std::uint32_t>(EncodeFields(std::uint64_t{1} << 32)),
                        kDataLoss, {"exceeds 32 bits"}));
}

TEST(Fields, NameThatAppearsTwiceIsRefused) {
  using Map = std::map<std::string, std::uint64_t>;
  EXPECT_TRUE(FailsWith(DecodeFields<Map>(Bytes("\x02\x01"
                                                "a\x05\x01"
                                                "a\x06",
                                                7)),
                        kDataLoss, {"appears twice"}));
}

TEST(Fields, CountsBeyondTheInputReserveNothing) {
  const Bytes huge = "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F";
  EXPECT_TRUE(FailsWith(DecodeFields<std::vector<Point>>(huge), kDataLoss, {"count exceeds"}));
  EXPECT_TRUE(FailsWith(DecodeFields<std::vector<std::uint64_t>>(huge), kDataLoss, {"count"}));
}

}  // namespace
}  // namespace varve::test::fields_test
