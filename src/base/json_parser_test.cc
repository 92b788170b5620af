#include "base/json_parser.h"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include <gtest/gtest.h>
#include <simdjson.h>

namespace varve {
namespace {

std::int64_t NumberIn(JsonParser* parser, std::string_view text) {
  std::int64_t number = -1;
  return parser->Parse(text)["a"].get(number) == simdjson::SUCCESS ? number : -1;
}

TEST(JsonParser, ParsesDocumentAfterDocument) {
  JsonParser parser;
  EXPECT_EQ(NumberIn(&parser, R"({"a": 1})"), 1);
  EXPECT_EQ(NumberIn(&parser, R"({"b": ")" + std::string(1 << 20, 'x') + R"(", "a": 2})"), 2);
  EXPECT_EQ(NumberIn(&parser, R"({"a": 3})"), 3);
}

TEST(JsonParser, OfOneThreadParseTwoDocumentsAtOnce) {
  JsonParser one;
  JsonParser other;
  const auto first = one.Parse(R"({"a": 1})");
  const auto second = other.Parse(R"({"a": 2})");
  EXPECT_EQ(std::int64_t(first["a"]), 1);
  EXPECT_EQ(std::int64_t(second["a"]), 2);
}

TEST(JsonParser, SaysThatNoTextIsNoDocument) {
  JsonParser parser;
  EXPECT_EQ(parser.Parse({}).error(), simdjson::EMPTY);
  EXPECT_EQ(parser.Parse("").error(), simdjson::EMPTY);
  EXPECT_NE(parser.Parse("{").error(), simdjson::SUCCESS);
}

bool parse_at_the_end = false;

/// Parses when simdjson's objects have been destroyed: with 32 parsers that were made before, a
/// large document too, and with one more, which cannot be made any more. Functions like this run
/// after all that were registered while the process ran.
[[gnu::destructor]] void ParseAtTheEnd() {
  if (!parse_at_the_end) {
    return;
  }
  const std::string large = R"({"b": ")" + std::string(1 << 20, 'x') + R"(", "a": 4})";
  bool right = true;
  for (int turn = 0; turn < 2; ++turn) {
    std::array<JsonParser, 32> kept;
    JsonParser refused;
    for (JsonParser& parser : kept) {
      right = right && NumberIn(&parser, large) == 4;
    }
    right = right && refused.Parse(R"({"a": 5})").error() == simdjson::UNINITIALIZED;
  }
  std::_Exit(right ? 0 : 1);
}

TEST(JsonParserDeathTest, AThreadThatReadsWhileTheProcessExitsDoesNoHarm) {
  const auto program = [] {
    parse_at_the_end = true;
    std::exit(2);
  };
  EXPECT_EXIT(program(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace varve
