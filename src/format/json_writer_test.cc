#include "format/json_writer.h"

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include <gtest/gtest.h>
#include <simdjson.h>

namespace varve {
namespace {

/// Fails where simdjson finds something else.
void ExpectAsSimdjson(std::string_view text) {
  const bool well_formed = simdjson::validate_utf8(text.data(), text.size());
  if (IsUtf8(text) != well_formed) {
    ADD_FAILURE() << testing::PrintToString(std::string(text)) << " is"
                  << (well_formed ? "" : " not") << " well-formed";
  }
}

/// The bytes at which a rule of UTF-8 begins or ends, and a neighbour of each.
constexpr std::array<int, 27> kEdges{0x00, 0x41, 0x7F, 0x80, 0x81, 0x8F, 0x90, 0x91, 0x9F,
                                     0xA0, 0xA1, 0xBE, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0,
                                     0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF3, 0xF4, 0xF5};

TEST(IsUtf8, FindsWhatSimdjsonFindsInEveryTextOfTwoBytes) {
  for (int first = 0; first < 256; ++first) {
    const auto a = static_cast<char>(first);
    ExpectAsSimdjson(std::string{a});
    for (int second = 0; second < 256; ++second) {
      ExpectAsSimdjson(std::string{a, static_cast<char>(second)});
    }
  }
}

TEST(IsUtf8, FindsWhatSimdjsonFindsInTextsOfThreeToFiveBytesAtTheEdges) {
  for (const int a : kEdges) {
    for (const int b : kEdges) {
      for (const int c : kEdges) {
        std::string text{static_cast<char>(a), static_cast<char>(b), static_cast<char>(c)};
        ExpectAsSimdjson(text);
        for (const int d : kEdges) {
          text.resize(3);
          text.push_back(static_cast<char>(d));
          ExpectAsSimdjson(text);
          ExpectAsSimdjson(text + '\x80');
        }
      }
    }
  }
}

TEST(IsUtf8, FindsACutOffCharacterAfterALongName) {
  const std::string name = "layers.0.attention.größe.weight\xF0\x9F\x98\x80";
  EXPECT_TRUE(IsUtf8(name));
  for (std::size_t cut = 1; cut <= 3; ++cut) {
    EXPECT_FALSE(IsUtf8(std::string_view(name).substr(0, name.size() - cut))) << cut;
  }
}

}  // namespace
}  // namespace varve
