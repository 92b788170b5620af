#include "storage/s3/xml.h"

#include <gtest/gtest.h>

namespace varve::s3::xml_test {
namespace {

constexpr const char* kPage = R"(<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><Prefix>run/</Prefix>
<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated><NextContinuationToken>t/1==</NextContinuationToken>
<Contents><Key>run/a%20%2B%C3%A9+b</Key><LastModified>2026-11-24T01:02:03.045Z</LastModified>
<ETag>&quot;e-1&quot;</ETag><Size>18446744073709551615</Size></Contents>
<CommonPrefixes><Prefix>run/step-1/</Prefix></CommonPrefixes></ListBucketResult>)";

TEST(S3Xml, AListingHasObjectsPrefixesAndATokenForTheRest) {
  const auto page = ParseListPage(kPage);
  ASSERT_TRUE(page.ok()) << page.status().ToString();
  ASSERT_EQ(page->objects.size(), 1U);
  EXPECT_EQ(page->objects[0].key, "run/a +\xc3\xa9 b");
  EXPECT_EQ(page->objects[0].size, 18446744073709551615U);
  EXPECT_EQ(page->objects[0].modified_ns, 1795482123045000000);
  EXPECT_EQ(page->objects[0].etag, "\"e-1\"");
  EXPECT_EQ(page->prefixes, std::vector<std::string>{"run/step-1/"});
  EXPECT_EQ(page->next, "t/1==");
}

TEST(S3Xml, AnUploadIdMayComeWithoutTheWordResult) {
  for (const char* root : {"InitiateMultipartUploadResult", "InitiateMultipartUpload"}) {
    const auto id =
        ParseUploadId("<" + std::string(root) + "><UploadId>u</UploadId></" + root + ">");
    ASSERT_TRUE(id.ok()) << id.status().ToString();
    EXPECT_EQ(*id, "u");
  }
  EXPECT_FALSE(ParseUploadId("<Other><UploadId>u</UploadId></Other>").ok());
}

TEST(S3Xml, WhatIsNoListingIsNoAnswer) {
  for (const char* body :
       {"", "<", "<html>proxy</html>", "<ListBucketResult>",
        "<ListBucketResult><Contents><Key>k</Key></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Key>k</Key><Size>-1</Size></Contents></ListBucketResult>",
        "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"}) {
    EXPECT_EQ(ParseListPage(body).status().code(), StatusCode::kUnavailable) << body;
  }
}

TEST(S3Xml, EntitiesOfADocumentsOwnAreNotExpanded) {
  const std::string bomb =
      "<!DOCTYPE x [<!ENTITY a \"aaaaaaaa\"><!ENTITY b \"&a;&a;&a;\">]>"
      "<Error><Code>&b;</Code></Error>";
  EXPECT_EQ(ParseError(bomb).code, "&b;");
}

TEST(S3Xml, DeepNestingIsNoCrash) {
  std::string deep;
  for (int i = 0; i < 100'000; ++i) {
    deep += "<a>";
  }
  EXPECT_EQ(ParseError(deep).code, "");
  EXPECT_FALSE(ParseListPage(deep).ok());
}

TEST(S3Xml, AnErrorHasACodeAndMayNameARegion) {
  const ErrorBody error = ParseError(
      "<Error><Code>AuthorizationHeaderMalformed</Code><Message>m</Message>"
      "<Region>eu-west-1</Region></Error>");
  EXPECT_EQ(error.code, "AuthorizationHeaderMalformed");
  EXPECT_EQ(error.region, "eu-west-1");
  EXPECT_EQ(ParseError("<CompleteMultipartUploadResult/>").code, "");
}

TEST(S3Xml, KeysAreEscapedInBodies) {
  EXPECT_EQ(DeleteBody({"a<&>\"\n"}),
            "<Delete><Quiet>true</Quiet><Object><Key>a&lt;&amp;&gt;&quot;&#10;</Key></Object>"
            "</Delete>");
  EXPECT_EQ(CompleteBody({UploadedPart("\"x\"", "AAAAAA==")}),
            "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>&quot;x&quot;</ETag>"
            "<ChecksumCRC32C>AAAAAA==</ChecksumCRC32C></Part></CompleteMultipartUpload>");
}

}  // namespace
}  // namespace varve::s3::xml_test
