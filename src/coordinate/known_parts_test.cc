#include "coordinate/known_parts.h"

#include <string>

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "base/checksum.h"

namespace varve::known_parts_test {
namespace {

Hash128 Digest(char of) { return Xxh3(AsByteSpan(std::string(1, of))); }

TEST(KnownParts, DropsThePartThatWasNotAskedForTheLongest) {
  KnownParts parts(2 * 256 + 10);
  parts.Keep(Digest('a'), "aaaa");
  parts.Keep(Digest('b'), "bbbb");
  EXPECT_EQ(parts.Find(Digest('a')), "aaaa");
  parts.Keep(Digest('c'), "cccc");
  EXPECT_EQ(parts.Find(Digest('a')), "aaaa");
  EXPECT_EQ(parts.Find(Digest('b')), std::nullopt);
  EXPECT_EQ(parts.Find(Digest('c')), "cccc");
}

TEST(KnownParts, DoesNotKeepAPartAboveTheLimit) {
  KnownParts parts(2 * 256 + 10);
  parts.Keep(Digest('a'), "aaaa");
  parts.Keep(Digest('b'), std::string(256 + 11, 'b'));
  EXPECT_EQ(parts.Find(Digest('b')), std::nullopt);
  EXPECT_EQ(parts.Find(Digest('a')), "aaaa");
}

TEST(KnownParts, CountsAPartThatIsKeptTwiceOnce) {
  KnownParts parts(2 * 256 + 10);
  for (int i = 0; i < 3; ++i) {
    parts.Keep(Digest('a'), "aaaa");
  }
  parts.Keep(Digest('b'), "bbbb");
  EXPECT_EQ(parts.Find(Digest('a')), "aaaa");
}

}  // namespace
}  // namespace varve::known_parts_test
