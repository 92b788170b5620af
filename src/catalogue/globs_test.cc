#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "varve/catalogue.h"

namespace varve::test::globs_test {
namespace {

bool Matches(const char* glob, std::string_view name) { return Globs({glob}).Match(name); }

TEST(Globs, MatchAllOfANameAndTellCaseApart) {
  EXPECT_TRUE(Matches("model.w", "model.w"));
  EXPECT_FALSE(Matches("model.w", "model.w.x"));
  EXPECT_FALSE(Matches("model.w", "model"));
  EXPECT_FALSE(Matches("model.*", "Model.w"));
}

TEST(Globs, StarIsAnyRunOfCharactersDotsAndSlashesToo) {
  EXPECT_TRUE(Matches("model.*", "model.layers.0/w"));
  EXPECT_TRUE(Matches("model.*", "model."));
  EXPECT_TRUE(Matches("*", ""));
  EXPECT_TRUE(Matches("*.layers.*.w", "a.layers.b.layers.0.w"));
  EXPECT_TRUE(Matches("**a*", "xxab"));
  EXPECT_FALSE(Matches("*.layers.*.w", "layers.0.w"));
}

TEST(Globs, QuestionMarkIsOneCharacterHoweverManyBytesItHas) {
  EXPECT_TRUE(Matches("na?ve", "na\xC3\xAFve"));
  EXPECT_TRUE(Matches("?", "\xF0\x9F\x8C\xB1"));
  EXPECT_FALSE(Matches("na??ve", "na\xC3\xAFve"));
  EXPECT_TRUE(Matches("a?b",
                      "a\xFF"
                      "b"))
      << "a byte that is no UTF-8 is a character of its own";
}

TEST(Globs, BracketsAreASetThatAnExclamationMarkNegates) {
  EXPECT_TRUE(Matches("layers.[0-36]", "layers.2"));
  EXPECT_TRUE(Matches("layers.[0-36]", "layers.6"));
  EXPECT_FALSE(Matches("layers.[0-36]", "layers.5"));
  EXPECT_TRUE(Matches("layers.[!0-36]", "layers.5"));
  EXPECT_TRUE(Matches("[^a]", "^")) << "only '!' negates";
  EXPECT_TRUE(Matches("[]a]", "]"));
  EXPECT_TRUE(Matches("[a-]", "-"));
  EXPECT_FALSE(Matches("[z-a]", "m"));
  EXPECT_TRUE(Matches("[\xC3\xA0-\xC3\xBF]", "\xC3\xAF"));
}

TEST(Globs, BracketThatNothingClosesIsItself) {
  EXPECT_TRUE(Matches("a[0", "a[0"));
  EXPECT_TRUE(Matches("a[]", "a[]"));
  EXPECT_FALSE(Matches("a[0", "a0"));
}

TEST(Globs, SpecialCharacterIsItselfInBracketsAndBackslashEverywhere) {
  EXPECT_TRUE(Matches("w[*]", "w*"));
  EXPECT_FALSE(Matches("w[*]", "wx"));
  EXPECT_TRUE(Matches("a\\b", "a\\b"));
}

TEST(Globs, SeveralMatchWhatAnyOfThemMatches) {
  const Globs globs({"optim.*", "model.w", "model.layers.1.*", "*.bias"});
  for (const char* name : {"optim.m", "model.w", "model.layers.1.w", "model.layers.2.bias"}) {
    EXPECT_TRUE(globs.Match(name)) << name;
  }
  for (const char* name : {"", "model", "model.layers.2.w", "optim"}) {
    EXPECT_FALSE(globs.Match(name)) << name;
  }
}

TEST(Globs, NoneMatchNothing) {
  EXPECT_TRUE(Globs().empty());
  EXPECT_FALSE(Globs().Match(""));
  EXPECT_FALSE(Globs({""}).empty());
  EXPECT_TRUE(Globs({""}).Match(""));
}

TEST(Globs, ManyStarsTakeNoExponentialTime) {
  std::string glob;
  for (int i = 0; i < 50; ++i) {
    glob += "*a";
  }
  EXPECT_FALSE(Globs({glob + "b"}).Match(std::string(2000, 'a')));
}

}  // namespace
}  // namespace varve::test::globs_test
