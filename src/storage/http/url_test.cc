#include "storage/http/url.h"

#include <gtest/gtest.h>

#include "storage/http/netrc.h"
#include "support/status_matchers.h"

namespace varve::http::url_test {
namespace {

using test::FailsWith;

TEST(Urls, WhatNoUrlHoldsIsEncodedAndEscapesStay) {
  EXPECT_EQ(RequestUrl("http://h:80/a b/%41%zz?#\xc3\xa9"),
            "http://h:80/a%20b/%41%25zz%3F%23%C3%A9");
  EXPECT_EQ(RequestUrl("https://h"), "https://h/");
}

TEST(Urls, SecretsAreRefusedAndNotShown) {
  for (const char* const url :
       {"https://me:hunter2@h/x", "https://hunter2@h", "http://h/x?hunter2", "http://h#hunter2"}) {
    const auto checked = CheckUrl(url);
    ASSERT_EQ(checked.status().code(), StatusCode::kInvalidArgument) << url;
    EXPECT_EQ(checked.status().message().find("hunter2"), std::string::npos) << url;
  }
  for (const char* const url :
       {"https://me:hunter/2@h/x", "https://me:hunter?2@h/x", "https://me:hunter#2@h/x"}) {
    const auto checked = CheckUrl(url);
    ASSERT_EQ(checked.status().code(), StatusCode::kInvalidArgument) << url;
    EXPECT_EQ(checked.status().message().find("hunter"), std::string::npos) << url;
  }
  EXPECT_EQ(CheckUrl("https://h/x//").value(), "https://h/x");
  EXPECT_TRUE(FailsWith(CheckUrl("https:///x"), StatusCode::kInvalidArgument, {"host/path"}));
}

TEST(Urls, OriginsDifferBySchemeHostAndPort) {
  EXPECT_EQ(OriginOf("https://H/x").value(), OriginOf("https://h:443/y?z").value());
  EXPECT_NE(OriginOf("https://h/x").value(), OriginOf("http://h/x").value());
  EXPECT_NE(OriginOf("https://h/x").value(), OriginOf("https://h:444/x").value());
  EXPECT_FALSE(OriginOf("ftp://h/x").ok());
}

TEST(Urls, RedirectsAreResolvedAndNeverLeaveTls) {
  EXPECT_EQ(Redirected("https://h/a/b", "/c").value(), "https://h/c");
  EXPECT_EQ(Redirected("https://h/a/b", "c?k=v#f").value(), "https://h/a/c?k=v");
  EXPECT_EQ(Redirected("http://h/a", "https://other/x").value(), "https://other/x");
  EXPECT_TRUE(FailsWith(Redirected("https://h/a", "http://h/a"), StatusCode::kUnimplemented,
                        {"https to http"}));
  for (const char* const location :
       {"file:///etc/passwd", "ftp://h/x", "https://u:p@h/x", "http://"}) {
    EXPECT_EQ(Redirected("http://h/a", location).status().code(), StatusCode::kUnimplemented)
        << location;
  }
}

TEST(Netrc, TheFirstEntryOfAHostCounts) {
  const std::string text =
      "# a comment\nmachine other login x password y\nmacdef init\nmachine h login no\n\n"
      "machine h\n\tlogin me\n\tpassword secret\nmachine h login later password later\n"
      "default login any password any\n";
  EXPECT_EQ(BasicAuthorization(text, "h"), "Basic bWU6c2VjcmV0");
  EXPECT_EQ(BasicAuthorization(text, "H"), std::nullopt);
  EXPECT_EQ(BasicAuthorization(text, "unknown"), std::nullopt);
  EXPECT_EQ(BasicAuthorization("machine h login", "h"), std::nullopt);
  EXPECT_EQ(BasicAuthorization("", "h"), std::nullopt);
}

}  // namespace
}  // namespace varve::http::url_test
