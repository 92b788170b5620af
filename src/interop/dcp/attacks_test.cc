// Hostile and broken indexes: each gets an error that says what is wrong.

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "interop/dcp/metadata.h"
#include "support/dcp_pickles.h"
#include "support/status_matchers.h"

namespace varve::attacks_test {
namespace {

using namespace std::string_literals;  // NOLINT(google-build-using-namespace): paths with NULs
namespace p = test::pickled;
namespace dcp = test::dcp;

using test::FailsWith;
using test::IsOk;

Result<Decoded> Decode(const dcp::Index& index) { return DecodeDcpMetadata(index.Pickle()); }

/// Returns one tensor "w" of 8 elements in two chunks.
dcp::Index Sample() {
  dcp::Index index;
  index.Add("w", {4, 4});
  return index;
}

TEST(DcpAttacks, APickleThatWouldRunCodeRunsNothing) {
  const std::string call = p::Call(p::Global("os", "system"), {p::Str("touch it-ran")});
  EXPECT_TRUE(FailsWith(DecodeDcpMetadata(p::Pickle(call)), StatusCode::kDataLoss,
                        {"not the index of a DCP checkpoint", "\"os.system\""}));
  dcp::Index index = Sample();
  index.state[1] = call;
  EXPECT_TRUE(FailsWith(Decode(index), StatusCode::kDataLoss, {"\"w\" is neither"}));
  index = Sample();
  index.storage[1] = call;
  EXPECT_TRUE(FailsWith(Decode(index), StatusCode::kDataLoss, {"_StorageInfo of \"w\""}));
  index = Sample();
  index.more = {p::Str("storage_meta"), call};
  EXPECT_TRUE(IsOk(Decode(index))) << "what is not needed is not looked at";
}

TEST(DcpAttacks, OtherPicklesAreNoIndex) {
  for (const std::string& object :
       {p::kNone, p::Dict({}), p::Int(1), p::Global("os", "system"), p::Str("id") + "Q",
        p::Global(dcp::kMetadata, "Metadata") + ")\x81",
        p::Build(p::Global(dcp::kMetadata, "Metadata") + ")\x81", p::List({})),
        dcp::New(dcp::kMetadata, "Metadata", {}),
        dcp::New(dcp::kMetadata, "Metadata", {p::Str("state_dict_metadata"), p::Dict({})})}) {
    EXPECT_TRUE(FailsWith(DecodeDcpMetadata(p::Pickle(object)), StatusCode::kDataLoss)) << object;
  }
  EXPECT_TRUE(FailsWith(DecodeDcpMetadata(""), StatusCode::kDataLoss, {"byte 0"}));
}

TEST(DcpAttacks, PathsThatLeaveTheCheckpointAreRefused) {
  for (const std::string& path :
       {""s, "/etc/passwd"s, ".."s, "../a"s, "a/../../b"s, "a/.."s, "a\0b"s, "a/../b"s}) {
    dcp::Index index = Sample();
    index.storage[3] = dcp::Stored(path, 0, 1);
    EXPECT_TRUE(FailsWith(Decode(index), StatusCode::kInvalidArgument,
                          {"relative_path", "does not lie in the checkpoint"}))
        << path;
  }
  for (const std::string& path : {"a/b"s, "..a"s, "a..b/c.."s, "a\\..\\b"s, ".a"s}) {
    dcp::Index index = Sample();
    index.storage[3] = dcp::Stored(path, 0, 1);
    EXPECT_TRUE(IsOk(Decode(index))) << path;
  }
}

TEST(DcpAttacks, ChunksThatOverlapOrLeaveTheirTensorAreRefused) {
  const auto with = [](std::vector<std::int64_t> shape, std::vector<std::string> chunks) {
    dcp::Index index = Sample();
    index.state[1] = dcp::Tensor(shape, chunks);
    return Decode(index);
  };
  EXPECT_TRUE(FailsWith(with({8}, {dcp::Chunk({0}, {5}), dcp::Chunk({4}, {4})}),
                        StatusCode::kDataLoss, {"tensor \"w\"", "overlap", "[0:5]", "[4:8]"}));
  EXPECT_TRUE(FailsWith(with({8}, {dcp::Chunk({4}, {4}), dcp::Chunk({4}, {4})}),
                        StatusCode::kDataLoss, {"overlap"}));
  EXPECT_TRUE(FailsWith(with({8}, {dcp::Chunk({4}, {5})}), StatusCode::kDataLoss,
                        {"tensor \"w\"", "outside shape"}));
  EXPECT_TRUE(
      FailsWith(with({8}, {dcp::Chunk({4, 0}, {4, 1})}), StatusCode::kDataLoss, {"dimensions"}));
  constexpr std::int64_t kMax = 0x7FFFFFFFFFFFFFFF;
  EXPECT_TRUE(FailsWith(with({kMax, kMax}, {dcp::Chunk({4, 0}, {kMax, 1})}), StatusCode::kDataLoss,
                        {"outside shape"}));
  EXPECT_TRUE(FailsWith(with({kMax, kMax}, {dcp::Chunk({0, 0}, {kMax, 1})}), StatusCode::kDataLoss,
                        {"2^62"}));
  EXPECT_TRUE(FailsWith(with({8}, {dcp::Chunk({-4}, {4})}), StatusCode::kDataLoss,
                        {"ChunkStorageMetadata"}));
  EXPECT_TRUE(FailsWith(with({-8}, {}), StatusCode::kDataLoss, {"size"}));
  const std::string huge = "\x8a\x09\0\0\0\0\0\0\0\x80\0"s;  // 2^63
  EXPECT_TRUE(FailsWith(with({8}, {dcp::New(dcp::kMetadata, "ChunkStorageMetadata",
                                            {p::Str("offsets"), p::Tuple({p::Int(0)}),
                                             p::Str("sizes"), p::Tuple({huge})})}),
                        StatusCode::kDataLoss, {"ChunkStorageMetadata"}));
  EXPECT_TRUE(FailsWith(with(std::vector<std::int64_t>(65, 1), {}), StatusCode::kDataLoss));
}

TEST(DcpAttacks, StoredRangesAreChecked) {
  constexpr std::int64_t kMax = 0x7FFFFFFFFFFFFFFF;
  for (const std::string& stored :
       {dcp::Stored("a", -1, 1), dcp::Stored("a", 1, -1), dcp::Stored("a", kMax, 1),
        dcp::Stored("a", 1, kMax), dcp::New(dcp::kFilesystem, "_StorageInfo", {}),
        dcp::New(dcp::kFilesystem, "_StorageInfo",
                 {p::Str("relative_path"), p::Int(1), p::Str("offset"), p::Int(1), p::Str("length"),
                  p::Int(1)}),
        dcp::Stored("a", 0, 1, {p::Str("transform_descriptors"), p::Int(1)})}) {
    dcp::Index index = Sample();
    index.storage[1] = stored;
    EXPECT_TRUE(FailsWith(Decode(index), StatusCode::kDataLoss, {"_StorageInfo"})) << stored;
  }
  dcp::Index index = Sample();
  index.storage[1] = dcp::Stored("a", kMax - 1, 1);
  EXPECT_TRUE(IsOk(Decode(index)));
}

TEST(DcpAttacks, WhatHasNoStoredBytesIsNamed) {
  dcp::Index index = Sample();
  index.storage.resize(2);
  EXPECT_TRUE(FailsWith(Decode(index), StatusCode::kDataLoss,
                        {"tensor \"w\"", "no entry for the chunk at [4]"}));
  index = Sample();
  index.storage[2] = dcp::Key("w", {4, 0});
  EXPECT_TRUE(FailsWith(Decode(index), StatusCode::kDataLoss, {"chunk at [4]"}));
  index = Sample();
  index.storage[2] = dcp::Key("w");
  EXPECT_TRUE(FailsWith(Decode(index), StatusCode::kDataLoss, {"chunk at [4]"}));
  index = Sample();
  index.AddValue("step");
  index.storage[4] = dcp::Key("step", {});
  EXPECT_TRUE(FailsWith(Decode(index), StatusCode::kDataLoss, {"value \"step\"", "no entry"}));
}

TEST(DcpAttacks, NamesThatComeTwiceAreRefused) {
  dcp::Index index = Sample();
  index.Add("w", {8});
  EXPECT_TRUE(FailsWith(Decode(index), StatusCode::kDataLoss, {"\"w\" is there twice"}));
  index = Sample();
  index.storage[2] = index.storage[0];
  EXPECT_TRUE(FailsWith(Decode(index), StatusCode::kDataLoss, {"two entries for one chunk"}));
  index = Sample();
  index.AddValue("step");
  index.storage.push_back(dcp::Key("step"));
  index.storage.push_back(dcp::Stored("__0_0.distcp", 0, 1));
  EXPECT_TRUE(FailsWith(Decode(index), StatusCode::kDataLoss, {"value \"step\"", "two entries"}));
  index = Sample();
  index.planner_data = dcp::Paths({{"w", {p::Str("w")}}, {"w", {p::Str("w")}}});
  EXPECT_TRUE(FailsWith(Decode(index), StatusCode::kDataLoss, {"contradicts"}));
}

TEST(DcpAttacks, NamesThatAreNoTextAreRefused) {
  dcp::Index index;
  index.Add("w\xED\xA0\x80", {1});
  EXPECT_TRUE(FailsWith(Decode(index), StatusCode::kUnimplemented, {"\"w\\xed\\xa0\\x80\""}));
  index = {};
  index.Add("w\xED\x9F\xBF", {1});
  EXPECT_TRUE(IsOk(Decode(index))) << "U+D7FF is text";
  index = Sample();
  index.state[0] = p::Int(1);
  EXPECT_TRUE(FailsWith(Decode(index), StatusCode::kDataLoss, {"name is not a str"}));
}

TEST(DcpAttacks, LittleInputMakesNoEndlessIndex) {
  // One list of many chunks, named by many tensors.
  std::string state = p::Str("t") + dcp::New(dcp::kMetadata, "TensorStorageMetadata", {});
  const std::vector<std::string> chunks(1000, dcp::Chunk({0}, {0}));
  dcp::Index index;
  index.state = {p::Str("t0"),
                 dcp::New(dcp::kMetadata, "TensorStorageMetadata",
                          {p::Str("properties"), dcp::Properties() + "q\0"s, p::Str("size"),
                           dcp::Size({0}) + "q\1"s, p::Str("chunks"), p::List(chunks) + "q\2"s})};
  for (int i = 1; i < 1000; ++i) {
    index.state.push_back(p::Str("t" + std::to_string(i)));
    index.state.push_back(
        dcp::New(dcp::kMetadata, "TensorStorageMetadata",
                 {p::Str("properties"), "h\0"s, p::Str("size"), "h\1"s, p::Str("chunks"), "h\2"s}));
  }
  EXPECT_TRUE(FailsWith(Decode(index), StatusCode::kDataLoss, {"more chunks than the pickle"}));
}

TEST(DcpAttacks, DeepNestingIsRefused) {
  EXPECT_TRUE(FailsWith(DecodeDcpMetadata("\x80\x02" + std::string(100000, '(') + "."),
                        StatusCode::kInvalidArgument, {"MARKs"}));
  EXPECT_TRUE(FailsWith(DecodeDcpMetadata("\x80\x02N" + std::string(1000000, '\x85') + "."),
                        StatusCode::kDataLoss));
  std::vector<std::string> parts;
  std::string fqn;
  for (int i = 0; i < 201; ++i) {
    parts.push_back(p::Str("a"));
    fqn += i == 0 ? "a" : ".a";
  }
  dcp::Index index;
  index.AddValue(fqn);
  index.planner_data = dcp::Paths({{fqn, parts}});
  EXPECT_TRUE(FailsWith(Decode(index), StatusCode::kInvalidArgument, {"deeper than 200"}));
}

TEST(DcpAttacks, EveryTruncationOfAnIndexIsRefused) {
  dcp::Index index = Sample();
  index.AddValue("step");
  const std::string pickle = index.Pickle();
  for (std::size_t size = 0; size < pickle.size(); ++size) {
    EXPECT_TRUE(FailsWith(DecodeDcpMetadata(std::string(pickle, 0, size)), StatusCode::kDataLoss));
  }
}

TEST(DcpAttacks, EveryChangedByteGivesAnIndexOrAnError) {
  dcp::Index index = Sample();
  index.AddValue("step");
  index.planner_data = dcp::Paths({{"w", {p::Str("w")}}, {"step", {p::Str("step")}}});
  const std::string pickle = index.Pickle();
  for (std::size_t i = 0; i < pickle.size(); ++i) {
    for (const int flip : {0x01, 0x04, 0x20, 0x80, 0xFF}) {
      std::string changed = pickle;
      changed[i] = static_cast<char>(changed[i] ^ flip);
      const auto decoded = DecodeDcpMetadata(changed);
      EXPECT_TRUE(decoded.ok() || decoded.status().code() != StatusCode::kInternal);
    }
  }
}

}  // namespace
}  // namespace varve::attacks_test
