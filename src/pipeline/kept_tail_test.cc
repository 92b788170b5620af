#include "pipeline/kept_tail.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace varve::test::kept_tail_test {
namespace {

/// Memory of a read, in two parts.
struct Read {
  explicit Read(std::string content) : text(std::move(content)) {
    const auto all = std::as_writable_bytes(std::span(text));
    parts = {all.first(text.size() / 2), all.subspan(text.size() / 2)};
  }
  std::string text;
  std::vector<std::span<std::byte>> parts;
};

class KeptTailTest : public testing::Test {
 protected:
  KeptTailTest() { tail_.Begin(4); }

  /// Returns what is kept of five bytes from `offset` on.
  std::string TakenAt(std::uint64_t offset) {
    Read read("-----");
    const std::uint64_t taken = tail_.Take(offset, read.parts);
    EXPECT_EQ(read.text.substr(taken), std::string(5 - taken, '-'));
    return read.text.substr(0, taken);
  }

  KeptTail tail_;
};

TEST_F(KeptTailTest, TheEndOfAReadIsTheBeginningOfTheNext) {
  tail_.Keep(10, Read("abcdefg").parts);
  EXPECT_EQ(TakenAt(13), "defg");
  EXPECT_EQ(TakenAt(15), "fg");
  EXPECT_EQ(TakenAt(17), "");
  EXPECT_EQ(TakenAt(12), "");  // Its first byte is not kept.
}

TEST_F(KeptTailTest, AShortReadIsKeptWhole) {
  tail_.Keep(10, Read("ab").parts);
  EXPECT_EQ(TakenAt(10), "ab");
  EXPECT_TRUE(tail_.Has(10, 2));
  EXPECT_FALSE(tail_.Has(10, 3));
  EXPECT_FALSE(tail_.Has(9, 2));
}

TEST_F(KeptTailTest, TheLatestReadTakesThePlace) {
  tail_.Keep(10, Read("abcd").parts);
  tail_.Keep(0, Read("efgh").parts);
  EXPECT_EQ(TakenAt(10), "");
  EXPECT_EQ(TakenAt(0), "efgh");
}

TEST_F(KeptTailTest, WhatIsForgottenIsNotTaken) {
  tail_.Keep(10, Read("abcd").parts);
  EXPECT_FALSE(tail_.Forget(0, 10));
  EXPECT_FALSE(tail_.Forget(14, 5));
  EXPECT_EQ(TakenAt(10), "abcd");
  EXPECT_TRUE(tail_.Forget(13, 5));
  EXPECT_EQ(TakenAt(10), "");
}

TEST(KeptTail, NothingIsKeptUntilItBegins) {
  KeptTail tail;
  Read read("abcd");
  tail.Keep(0, read.parts);
  EXPECT_EQ(tail.Take(0, read.parts), 0U);
}

}  // namespace
}  // namespace varve::test::kept_tail_test
