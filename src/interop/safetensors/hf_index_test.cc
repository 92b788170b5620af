#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "interop/safetensors/decode.h"
#include "support/archives.h"
#include "support/random.h"
#include "support/status_matchers.h"

namespace varve::hf_index_test {
namespace {

using test::FailsWith;
using test::IsOk;

TEST(HfIndex, OfPyTorchIsRead) {
  const auto index =
      DecodeHfIndex(test::Golden("dcp/2.14.1/hf_consolidated/model.safetensors.index.json"));
  ASSERT_TRUE(IsOk(index));
  ASSERT_EQ(index->weight_map.size(), 11U);
  EXPECT_EQ(index->weight_map.front(),
            std::pair(std::string("inv_freq"), std::string("model-00002-of-00002.safetensors")));
  EXPECT_EQ(index->weight_map.back().first, "only_first_rank");
  EXPECT_EQ(index->FileNames(), (std::vector<std::string>{"model-00001-of-00002.safetensors",
                                                          "model-00002-of-00002.safetensors"}));
}

TEST(HfIndex, IsWrittenAsHuggingFaceWritesIt) {
  EXPECT_EQ(EncodeHfIndex({{{"a", "x.safetensors"}, {"b\"", "y.safetensors"}}}, 12),
            "{\n"
            "  \"metadata\": {\n"
            "    \"total_size\": 12\n"
            "  },\n"
            "  \"weight_map\": {\n"
            "    \"a\": \"x.safetensors\",\n"
            "    \"b\\\"\": \"y.safetensors\"\n"
            "  }\n"
            "}\n");
}

TEST(HfIndex, WhatIsWrittenIsReadBack) {
  for (const HfIndex& index : {HfIndex{}, HfIndex{{{"", "f"}}},
                               HfIndex{{{"na\xC3\xAFve \"q\"\n", "sub folder/..f..safetensors"},
                                        {
                                            "z",
                                            "...",
                                        }}}}) {
    const auto back = DecodeHfIndex(EncodeHfIndex(index, 7));
    ASSERT_TRUE(IsOk(back));
    EXPECT_EQ(back->weight_map, index.weight_map);
  }
}

TEST(HfIndex, MembersOfOthersAreIgnored) {
  const auto index = DecodeHfIndex(
      R"({"weight_map":{"b":"2","a":"1"},"metadata":[],"metadata":{"total_size":-1},"x":{"y":1}})");
  ASSERT_TRUE(IsOk(index));
  EXPECT_EQ(index->weight_map.front().first, "a");
}

TEST(HfIndex, AFileNameThatLeavesTheFolderIsRefused) {
  for (const std::string_view name : {"../x", "/x", "a/../../b", "a/..", "..", ".", "./x", "a/./b",
                                      "a//b", "a/", "", "x\\u0000", "\\u0000/../x", "a/..\\/b"}) {
    const std::string json = R"({"weight_map":{"the.name":")" + std::string(name) + "\"}}";
    EXPECT_TRUE(FailsWith(DecodeHfIndex(json), StatusCode::kInvalidArgument,
                          {"the.name", "inside the folder"}))
        << name;
  }
}

TEST(HfIndex, LiesAreRefused) {
  EXPECT_TRUE(FailsWith(DecodeHfIndex({}), StatusCode::kDataLoss));
  const std::string deep = std::string(5000, '[') + std::string(5000, ']');
  for (const std::string& json :
       {std::string(), std::string("{"), std::string("[]"), std::string("{}"),
        std::string(R"({"weight_map":[]})"), std::string(R"({"weight_map":{"a":1}})"),
        std::string(R"({"weight_map":{"a":null}})"),
        std::string(R"({"weight_map":{"a":"x","a":"y"}})"),
        std::string(R"({"weight_map":{"a":"x"},"weight_map":{"a":"x"}})"),
        std::string("{\"weight_map\":{\"\xC3\x28\":\"x\"}}"),
        std::string("{\"weight_map\":{\"a\":\"\xFF\"}}"), R"({"metadata":)" + deep + "}"}) {
    EXPECT_TRUE(FailsWith(DecodeHfIndex(json), StatusCode::kDataLoss, {"index"})) << json;
  }
}

TEST(HfIndex, NeitherTruncationsNorChangedBytesHarm) {
  const std::string good = test::Golden("dcp/2.14.1/hf_consolidated/model.safetensors.index.json");
  const std::size_t end = good.rfind('}');
  for (std::size_t size = 0; size < end; ++size) {
    EXPECT_TRUE(
        FailsWith(DecodeHfIndex(std::string_view(good).substr(0, size)), StatusCode::kDataLoss))
        << size;
  }
  test::Random random(5);
  for (int i = 0; i < 20'000; ++i) {
    std::string json = good;
    for (std::uint64_t flips = random.Between(1, 3); flips > 0; --flips) {
      json[random.Below(json.size())] = static_cast<char>(random.Below(256));
    }
    if (const auto index = DecodeHfIndex(json); index.ok()) {
      for (const std::string& name : index->FileNames()) {
        ASSERT_TRUE(!name.empty() && name[0] != '/' && name.find("../") == std::string::npos);
      }
    }
  }
}

}  // namespace
}  // namespace varve::hf_index_test
