#include "storage/s3/signature.h"

#include <gtest/gtest.h>

#include "storage/s3/object_name.h"

namespace varve::s3::signature_test {
namespace {

// The examples of the Amazon S3 API reference, "Authenticating Requests: Using the Authorization
// Header", with the keys that they name.
const Credentials kKeys{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""};
constexpr const char* kDate = "20130524T000000Z";
constexpr const char* kEmpty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

std::string SignatureOf(ToSign request) {
  request.headers.emplace_back("host", "examplebucket.s3.amazonaws.com");
  request.headers.emplace_back("x-amz-content-sha256", request.payload);
  request.headers.emplace_back("x-amz-date", kDate);
  const std::string all = Authorization(request, kKeys, "us-east-1", "s3", kDate);
  return all.substr(all.rfind('=') + 1);
}

TEST(Signature, IsThatOfThePublishedExampleOfAGet) {
  EXPECT_EQ(SignatureOf({"GET", "/test.txt", {}, {{"range", "bytes=0-9"}}, kEmpty}),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

TEST(Signature, IsThatOfThePublishedExampleOfAPut) {
  EXPECT_EQ(SignatureOf({"PUT",
                         "/" + UriEncode("test$file.text", true),
                         {},
                         {{"date", "Fri, 24 May 2013 00:00:00 GMT"},
                          {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
                         Sha256Hex("Welcome to Amazon S3.")}),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
}

TEST(Signature, IsThatOfThePublishedExampleOfAQueryWithoutValue) {
  EXPECT_EQ(SignatureOf({"GET", "/", {{"lifecycle", ""}}, {}, kEmpty}),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
}

TEST(Signature, IsThatOfThePublishedExampleOfAListing) {
  EXPECT_EQ(SignatureOf({"GET", "/", {{"prefix", "J"}, {"max-keys", "2"}}, {}, kEmpty}),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST(Signature, TakesBlanksOfAHeaderAsOne) {
  const ToSign spaced{"GET", "/", {}, {{"x-amz-meta-a", "  b   c "}}, kEmpty};
  const ToSign plain{"GET", "/", {}, {{"x-amz-meta-a", "b c"}}, kEmpty};
  EXPECT_EQ(SignatureOf(spaced), SignatureOf(plain));
}

TEST(Signature, WritesTheTimeAsItsHeaderWantsIt) {
  EXPECT_EQ(AmzDate(1369353600), "20130524T000000Z");
}

TEST(ObjectNames, AreABucketAndAKey) {
  const auto name = ParseObjectName("s3://bucket/run/step=1 +:%41/");
  ASSERT_TRUE(name.ok());
  EXPECT_EQ(name->bucket, "bucket");
  EXPECT_EQ(name->key, "run/step=1 +:%41");
  EXPECT_EQ(UriEncode(name->key, true), "run/step%3D1%20%2B%3A%2541");
}

TEST(ObjectNames, NeedABucket) {
  for (const char* name : {"s3://", "s3:///key", "s3://-x/k", "s3://a b/k", "s3://user@host/k"}) {
    EXPECT_EQ(ParseObjectName(name).status().code(), StatusCode::kInvalidArgument) << name;
  }
}

TEST(ObjectNames, HaveKeysOfAtMost1024Bytes) {
  EXPECT_TRUE(ParseObjectName("s3://b/" + std::string(1024, 'k')).ok());
  EXPECT_FALSE(ParseObjectName("s3://b/" + std::string(1025, 'k')).ok());
}

}  // namespace
}  // namespace varve::s3::signature_test
