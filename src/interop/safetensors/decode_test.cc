#include "interop/safetensors/decode.h"

#include <algorithm>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "support/random.h"
#include "support/safetensors_files.h"
#include "support/status_matchers.h"

namespace varve::decode_test {
namespace {

using test::Entry;
using test::FailsWith;
using test::IsOk;
using test::Le;
using test::Named;
using test::SafetensorsOf;
using test::ShardMetadata;
using test::With;

// Written by the safetensors package 0.8.0: save({...}, metadata={"format": "pt", "note": "x\ny"}).
constexpr std::string_view kWrittenHeader =
    R"({"__metadata__":{"note":"x\ny","format":"pt"},)"
    R"("c":{"dtype":"C64","shape":[1],"data_offsets":[0,8]},)"
    R"("scalar":{"dtype":"F32","shape":[],"data_offsets":[8,12]},)"
    R"("w":{"dtype":"BF16","shape":[2,2],"data_offsets":[12,20]},)"
    R"("empty":{"dtype":"I16","shape":[0,3],"data_offsets":[20,20]},)"
    "\"na\xC3\xAFve \\\"q\\\"\":"
    R"({"dtype":"U8","shape":[1],"data_offsets":[20,21]},)"
    R"("f4":{"dtype":"F4","shape":[2,4],"data_offsets":[21,25]},)"
    R"("mask":{"dtype":"BOOL","shape":[2],"data_offsets":[25,27]}}       )";

std::string WrittenFile() { return SafetensorsOf(kWrittenHeader, 27); }

Result<SafetensorsHeader> ReadFile(std::string_view file) {
  return ReadSafetensorsHeader(Named("m.safetensors", file));
}

Result<SafetensorsHeader> ReadJson(const std::string& json, std::uint64_t data_bytes = 100) {
  return ReadFile(SafetensorsOf(json, data_bytes));
}

TEST(SafetensorsHeader, OfTheSafetensorsPackageIsRead) {
  const auto header = ReadFile(WrittenFile());
  ASSERT_TRUE(IsOk(header));
  std::string text;
  for (const auto& tensor : header->tensors) {
    text += tensor.fqn + " " + std::string(DTypeName(tensor.dtype)) + ToString(tensor.shape) + " " +
            std::to_string(tensor.begin - 472) + "-" + std::to_string(tensor.end - 472) + "\n";
    EXPECT_TRUE(tensor.offsets.empty());
  }
  EXPECT_EQ(text,
            "c complex64[1] 0-8\n"
            "empty int16[0, 3] 20-20\n"
            "f4 float4_e2m1fn_x2[2, 2] 21-25\n"
            "mask bool[2] 25-27\n"
            "na\xC3\xAFve \"q\" uint8[1] 20-21\n"
            "scalar float32[] 8-12\n"
            "w bfloat16[2, 2] 12-20\n");
  const std::vector<std::pair<std::string, std::string>> metadata{{"format", "pt"},
                                                                  {"note", "x\ny"}};
  EXPECT_EQ(header->metadata, metadata);
}

TEST(SafetensorsHeader, EveryTypeOfTheFormatIsKnownByItsSize) {
  const std::vector<std::pair<std::string_view, std::uint64_t>> types{
      {"BOOL", 1},        {"U8", 1},      {"I8", 1},          {"F8_E5M2", 1}, {"F8_E4M3", 1},
      {"F8_E4M3FNUZ", 1}, {"F8_E8M0", 1}, {"F8_E5M2FNUZ", 1}, {"I16", 2},     {"U16", 2},
      {"F16", 2},         {"BF16", 2},    {"I32", 4},         {"U32", 4},     {"F32", 4},
      {"C64", 8},         {"F64", 8},     {"I64", 8},         {"U64", 8}};
  for (const auto& [name, size] : types) {
    const std::string end = std::to_string(3 * size);
    EXPECT_TRUE(IsOk(ReadJson("{" + Entry("t", name, "[3]", "[0," + end + "]") + "}"))) << name;
    EXPECT_FALSE(ReadJson("{" + Entry("t", name, "[4]", "[0," + end + "]") + "}").ok()) << name;
  }
  for (const std::string_view name : {"F6_E2M3", "F6_E3M2", "Q4", ""}) {
    EXPECT_TRUE(FailsWith(ReadJson("{" + Entry("the.name", name, "[4]", "[0,3]") + "}"),
                          StatusCode::kUnimplemented, {"m.safetensors", "the.name", name}));
  }
}

TEST(SafetensorsHeader, FourBitElementsThatLeaveHalfABytePerRowAreRefused) {
  for (const std::string_view shape : {"[2,3]", "[1]", "[]"}) {
    EXPECT_TRUE(FailsWith(ReadJson("{" + Entry("t", "F4", shape, "[0,3]") + "}"),
                          StatusCode::kUnimplemented, {"4-bit"}));
  }
}

TEST(SafetensorsHeader, NeitherPaddingNorOrderNorOtherMembersMatter) {
  const auto header = ReadJson(
      "\n{ \"t\": {\"data_offsets\":[90,91],\"x\":[{}],\"shape\":[1], \"dtype\":\"U8\"},"
      "\"__metadata__\":null}\n\n  ");
  ASSERT_TRUE(IsOk(header));
  EXPECT_EQ(header->tensors.at(0).end - header->tensors.at(0).begin, 1U);
  EXPECT_TRUE(header->metadata.empty());
  EXPECT_TRUE(IsOk(ReadJson("{}", 0)));
}

TEST(SafetensorsHeader, TensorsWithoutElementsMayLieAnywhereInTheFile) {
  EXPECT_TRUE(IsOk(ReadJson("{" + Entry("a", "U8", "[100]", "[0,100]") + "," +
                            Entry("b", "F32", "[0,9]", "[50,50]") + "," +
                            Entry("c", "F64", "[18446744073709551615,0]", "[100,100]") + "}")));
  EXPECT_TRUE(FailsWith(ReadJson("{" + Entry("a", "U8", "[0]", "[101,101]") + "}"),
                        StatusCode::kDataLoss, {"[101, 101]", "100 bytes"}));
}

TEST(SafetensorsHeader, SavedOffsetsAreReadWhereTheyAreGiven) {
  const std::string entries = Entry("a", "I16", "[2,3]", "[0,12]") + "," +
                              Entry("b", "U8", "[4]", "[12,16]") + "," +
                              Entry("c", "U8", "[4]", "[16,20]");
  const auto header = ReadJson(
      "{" + ShardMetadata(R"({"a":{"saved_offsets":[4,0]},"b":{},"z":{"saved_offsets":[1]}})") +
      "," + entries + "}");
  ASSERT_TRUE(IsOk(header));
  EXPECT_EQ(header->tensors.at(0).offsets, (Dims{4, 0}));
  EXPECT_TRUE(header->tensors.at(1).offsets.empty());
  EXPECT_TRUE(header->tensors.at(2).offsets.empty());
  for (const std::string_view info :
       {R"({"a":{"saved_offsets":[4]}})", R"({"a":{"saved_offsets":[-4,0]}})", R"({"a":1})",
        R"({"a":{"saved_offsets":{}}})", R"({"a":{},"a":{}})", R"([])", R"({)"}) {
    EXPECT_TRUE(
        FailsWith(ReadJson("{" + ShardMetadata(info) + "," + entries + "}"), StatusCode::kDataLoss))
        << info;
  }
}

// PyTorch 2.13's HuggingFaceStorageWriter gave exactly this for the second half of a [4, 4] tensor:
// the shape counts single 4-bit elements, the offsets count PyTorch's pairs.
TEST(SafetensorsHeader, OffsetsOfFourBitElementsArePairsUnlessVarveWroteThem) {
  const std::string entry = Entry("t", "F4", "[4,4]", "[0,8]");
  const auto torch =
      ReadJson("{" + ShardMetadata(R"({"t":{"saved_offsets":[0,2]}})") + "," + entry + "}");
  ASSERT_TRUE(IsOk(torch));
  EXPECT_EQ(torch->tensors.at(0).offsets, (Dims{0, 2}));
  std::string ours = ShardMetadata(R"({"t":{"saved_offsets":[0,4]}})");
  ours.insert(ours.size() - 1, R"(,"varve":"{}")");
  const auto varve = ReadJson("{" + ours + "," + entry + "}");
  ASSERT_TRUE(IsOk(varve));
  EXPECT_EQ(varve->tensors.at(0).offsets, (Dims{0, 2}));
}

struct Attack {
  std::string_view what;
  std::string json;
  std::string_view message;
};

TEST(SafetensorsHeader, LiesAreRefusedAndNamed) {
  const std::string good = Entry("g", "U8", "[4]", "[0,4]");
  const std::string deep = std::string(5000, '[') + std::string(5000, ']');
  for (const Attack& attack : {
           Attack{"no JSON", "{", ""},
           Attack{"no object", "[]", "not an object"},
           Attack{"two documents", "{}{}", ""},
           Attack{"deep nesting", R"({"a":)" + deep + "}", "deep"},
           Attack{"deep nesting of objects",
                  [] {
                    std::string json;
                    for (int i = 0; i < 5000; ++i) {
                      json += R"({"a":)";
                    }
                    return json + "1" + std::string(5000, '}');
                  }(),
                  "deep"},
           Attack{"a name that is not UTF-8", "{" + Entry("\xC3\x28", "U8", "[4]", "[0,4]") + "}",
                  "UTF-8"},
           Attack{"half a surrogate pair", R"({"\ud800":{}})", ""},
           Attack{"a name twice", "{" + good + "," + good + "}", "duplicate name \"g\""},
           Attack{"metadata twice", R"({"__metadata__":{},"__metadata__":{}})", "duplicate"},
           Attack{"a key of metadata twice", R"({"__metadata__":{"k":"1","k":"2"}})", "\"k\""},
           Attack{"metadata that is no string", R"({"__metadata__":{"k":1}})", "\"k\""},
           Attack{"metadata that is no object", R"({"__metadata__":"k"})", "__metadata__"},
           Attack{"dtype twice",
                  R"({"g":{"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]}})",
                  "\"dtype\""},
           Attack{"no dtype", R"({"g":{"shape":[4],"data_offsets":[0,4]}})", "missing"},
           Attack{"no shape", R"({"g":{"dtype":"U8","data_offsets":[0,4]}})", "missing"},
           Attack{"no offsets", R"({"g":{"dtype":"U8","shape":[4]}})", "missing"},
           Attack{"a number as dtype", R"({"g":{"dtype":1,"shape":[4],"data_offsets":[0,4]}})",
                  "wrong type"},
           Attack{"an entry that is no object", R"({"g":[]})", "not an object"},
           Attack{"a shape that is no list", "{" + Entry("g", "U8", "4", "[0,4]") + "}", "shape"},
           Attack{"a negative size", "{" + Entry("g", "U8", "[-4]", "[0,4]") + "}", "shape"},
           Attack{"a fraction", "{" + Entry("g", "U8", "[4.0]", "[0,4]") + "}", "shape"},
           Attack{"2^64", "{" + Entry("g", "U8", "[18446744073709551616]", "[0,4]") + "}", ""},
           Attack{"2^63 elements", "{" + Entry("g", "U8", "[9223372036854775808]", "[0,4]") + "}",
                  "do not fit"},
           Attack{"sizes whose product is 2^64 + 4",
                  "{" + Entry("g", "U8", "[4294967296,4294967296]", "[0,0]") + "}", "do not fit"},
           Attack{"bytes that wrap around",
                  "{" + Entry("g", "F32", "[4611686018427387905]", "[0,4]") + "}", "do not fit"},
           Attack{"negative offsets", "{" + Entry("g", "U8", "[4]", "[-4,0]") + "}", "offsets"},
           Attack{"offsets backwards", "{" + Entry("g", "U8", "[4]", "[4,0]") + "}", "offsets"},
           Attack{"one offset", "{" + Entry("g", "U8", "[4]", "[4]") + "}", "offsets"},
           Attack{"three offsets", "{" + Entry("g", "U8", "[4]", "[0,4,8]") + "}", "offsets"},
           Attack{"an end outside the file", "{" + Entry("g", "U8", "[4]", "[97,101]") + "}",
                  "[97, 101]"},
           Attack{"offsets of 2^63",
                  "{" + Entry("g", "U8", "[4]", "[9223372036854775808,9223372036854775812]") + "}",
                  "no range"},
           Attack{"too few bytes", "{" + Entry("g", "U8", "[4]", "[0,3]") + "}", "do not fit"},
           Attack{"too many bytes", "{" + Entry("g", "U8", "[4]", "[0,5]") + "}", "do not fit"},
           Attack{"overlapping bytes", "{" + good + "," + Entry("h", "U8", "[2]", "[3,5]") + "}",
                  "\"g\" and \"h\" overlap"},
           Attack{"the same bytes", "{" + good + "," + Entry("h", "U8", "[4]", "[0,4]") + "}",
                  "overlap"},
       }) {
    EXPECT_TRUE(FailsWith(ReadJson(attack.json), StatusCode::kDataLoss,
                          {"m.safetensors: ", attack.message}))
        << attack.what;
  }
}

TEST(SafetensorsHeader, ALengthBeyondTheFileIsRefusedBeforeAnythingIsRead) {
  const std::string file = WrittenFile();
  for (const std::uint64_t length : {file.size() - 7, std::uint64_t{1} << 62, ~std::uint64_t{0}}) {
    test::Asked asked;
    const std::string lie = With(file, 0, Le(length, 8));
    const NamedFile named{"m.safetensors", lie.size(), test::Watched(lie, &asked)};
    EXPECT_TRUE(
        FailsWith(ReadSafetensorsHeader(named), StatusCode::kDataLoss, {"beyond the file"}));
    EXPECT_EQ(asked.largest, 8U);
  }
}

TEST(SafetensorsHeader, AHeaderOfMoreThan256MiBIsNotRead) {
  const NamedFile file{"m.safetensors", std::uint64_t{1} << 40,
                       [](std::uint64_t, std::uint64_t size) -> Result<std::string> {
                         EXPECT_EQ(size, 8U);
                         return Le((std::uint64_t{256} << 20) + 1, 8);
                       }};
  EXPECT_TRUE(FailsWith(ReadSafetensorsHeader(file), StatusCode::kUnimplemented, {"256 MiB"}));
}

TEST(SafetensorsHeader, EveryTruncationIsNoticed) {
  const std::string file = WrittenFile();
  for (std::size_t size = 0; size < file.size(); ++size) {
    EXPECT_TRUE(FailsWith(ReadFile(std::string_view(file).substr(0, size)), StatusCode::kDataLoss))
        << size;
  }
}

TEST(SafetensorsHeader, NoChangedByteMakesItLieAboutTheFile) {
  const std::string good = WrittenFile();
  test::Random random(4);
  for (std::size_t i = 0; i < good.size() * 40; ++i) {
    std::string file = good;
    for (std::uint64_t flips = random.Between(1, 3); flips > 0; --flips) {
      file[random.Below(472)] = static_cast<char>(random.Below(256));
    }
    if (const auto header = ReadFile(file); header.ok()) {
      for (const auto& tensor : header->tensors) {
        ASSERT_LE(tensor.begin, tensor.end);
        ASSERT_LE(tensor.end, file.size());
      }
    }
  }
}

TEST(SafetensorsHeader, AFileThatBecameShorterIsNoticed) {
  const std::string file = WrittenFile();
  for (const std::size_t left : {0, 7, 8, 471}) {
    const NamedFile shorter{"m.safetensors", file.size(),
                            [&](std::uint64_t begin, std::uint64_t size) -> Result<std::string> {
                              return file.substr(0, left).substr(std::min(begin, left), size);
                            }};
    EXPECT_TRUE(FailsWith(ReadSafetensorsHeader(shorter), StatusCode::kDataLoss, {"ends early"}));
  }
}

TEST(SafetensorsHeader, AReadErrorIsPassedOn) {
  const NamedFile file{"m.safetensors", 100,
                       [](std::uint64_t, std::uint64_t) -> Result<std::string> {
                         return Unavailable("the disk is on fire");
                       }};
  EXPECT_TRUE(FailsWith(ReadSafetensorsHeader(file), StatusCode::kUnavailable,
                        {"m.safetensors", "the disk is on fire"}));
}

}  // namespace
}  // namespace varve::decode_test
