#include <gtest/gtest.h>

#include "interop/torch/state_reader.h"
#include "support/pickles.h"
#include "support/status_matchers.h"
#include "support/values.h"

namespace varve::file_test {
namespace {

using test::Dict;
using test::FailsWith;
using test::FromHex;
using test::Golden;
using test::IsOk;
using test::Le;
using test::List;
using test::Make;
using test::Watched;
using test::With;
namespace pickled = test::pickled;
using pickled::Archive;
using pickled::Call;
using pickled::Global;
using pickled::Int;
using pickled::Str;
using pickled::Tuple;

Result<Decoded> Decode(const std::string& file) {
  return DecodeTorchFile(file.size(), Watched(file), "x.pt");
}

/// Six float32.
std::string Tensor(const std::vector<std::int64_t>& sizes = {2, 3},
                   const std::vector<std::int64_t>& strides = {3, 1}, std::int64_t offset = 0) {
  return pickled::Tensor(pickled::Storage("FloatStorage", "0", 6), offset, sizes, strides);
}

Result<Decoded> DecodeObject(const std::string& object) {
  return Decode(Archive(object, {std::string(24, 'x')}));
}

std::vector<std::string> NamesOf(const Metadata& metadata) {
  std::vector<std::string> names;
  names.reserve(metadata.tensors.size() + metadata.objects.size());
  for (const TensorMetadata& tensor : metadata.tensors) {
    names.push_back("tensor " + tensor.fqn);
  }
  for (const ObjectMetadata& object : metadata.objects) {
    names.push_back("value " + object.fqn);
  }
  return names;
}

Value TensorLeaf() { return Make(ValueKind::kTensorLeaf, "torch"); }
Value ObjectLeaf() { return Make(ValueKind::kObjectLeaf); }

TEST(TorchFile, IsFlattenedAsDcpFlattens) {
  const auto decoded = DecodeObject(pickled::Dict(
      {Str("plain"), pickled::List({pickled::List({Int(1)}), Int(2)}),   // A leaf.
       Str("open"), pickled::List({pickled::List({Tensor()}), Int(2)}),  // A tensor deep inside.
       Str("dicts"), pickled::List({Int(1), pickled::Dict({})}),         // Even an empty dict.
       Str("pair"), Tuple({Tensor(), pickled::Dict({})}),                // Never opened.
       Str("none"), pickled::Dict({}),                                   //
       Str("deep"), pickled::Dict({Int(7), pickled::Dict({Str("a.b"), Tensor()})})}));
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_EQ(NamesOf(decoded->metadata),
            (std::vector<std::string>{"tensor deep.7.a.b", "tensor open.0.0", "value dicts.0",
                                      "value open.1", "value pair", "value plain"}));
  EXPECT_EQ(*decoded->structure,
            Dict({Value::Str("plain"), ObjectLeaf(), Value::Str("open"),
                  List({List({TensorLeaf()}), ObjectLeaf()}), Value::Str("dicts"),
                  List({ObjectLeaf(), Dict({})}), Value::Str("pair"), ObjectLeaf(),
                  Value::Str("none"), Dict({}), Value::Str("deep"),
                  Dict({Value::Int(7), Dict({Value::Str("a.b"), TensorLeaf()})})}));
  const ObjectMetadata* plain = decoded->metadata.FindObject("plain");
  ASSERT_NE(plain, nullptr);
  EXPECT_EQ(plain->extent.encoding, Encoding::kInline);
  EXPECT_EQ(*DecodeValue(decoded->inline_values.at(plain->extent.begin)),
            List({List({Value::Int(1)}), Value::Int(2)}));
}

TEST(TorchFile, KeysAreNamedAsPythonPrintsThem) {
  const auto decoded = DecodeObject(
      pickled::Dict({Int(-1), Int(0), "\x88", Int(0), "N", Int(0), Tuple({Int(1), Str("x")}),
                     Int(0), pickled::Float(0.5), Int(0), Str(""), Int(0)}));
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_EQ(NamesOf(decoded->metadata),
            (std::vector<std::string>{"value ", "value (1, 'x')", "value -1", "value 0.5",
                                      "value None", "value True"}));
}

TEST(TorchFile, OfSomethingElseThanADictIsOneNamelessEntry) {
  auto decoded = DecodeObject(Tensor());
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_EQ(NamesOf(decoded->metadata), (std::vector<std::string>{"tensor "}));
  EXPECT_FALSE(decoded->structure);
  decoded = DecodeObject(pickled::List({Tensor()}));
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_EQ(NamesOf(decoded->metadata), (std::vector<std::string>{"value "}));
}

TEST(TorchFile, TellsWhereTheBytesOfATensorLie) {
  const std::string file =
      Archive(pickled::Dict({Str("a"), Tensor(), Str("b"), Tensor({2, 2}, {1, 3}, 1), Str("c"),
                             Tensor({0, 4}, {4, 1}, 2), Str("d"), Tensor({3, 1}, {1, 77}, 3)}),
              {std::string(24, 'x')});
  const std::uint64_t storage = file.find(std::string(24, 'x'));
  const auto decoded = Decode(file);
  ASSERT_TRUE(IsOk(decoded));
  const auto chunk = [&](std::string_view name) {
    return decoded->metadata.FindTensor(name)->chunks[0];
  };
  EXPECT_EQ(chunk("a").extent, (Extent{0, storage, storage + 24, Encoding::kPlain}));
  EXPECT_EQ(chunk("a").strides, Strides());
  EXPECT_EQ(chunk("b").extent, (Extent{0, storage + 4, storage + 24, Encoding::kPlain}));
  EXPECT_EQ(chunk("b").strides, (Strides{1, 3}));
  EXPECT_EQ(chunk("c").extent, (Extent{0, storage + 8, storage + 8, Encoding::kPlain}));
  EXPECT_EQ(chunk("c").strides, Strides());
  // The stride of a dimension of size 1 means nothing.
  EXPECT_EQ(chunk("d").extent, (Extent{0, storage + 12, storage + 24, Encoding::kPlain}));
  EXPECT_EQ(chunk("d").strides, Strides());
  EXPECT_EQ(decoded->metadata.world_size, 1);
  EXPECT_TRUE(decoded->records.empty());
}

TEST(TorchFile, HasTheChecksumsOfItsStorages) {
  const std::string file = Golden("dcp/2.14.1/torch_save/bare_tensor.pt");
  const auto decoded = Decode(file);
  ASSERT_TRUE(IsOk(decoded));
  ASSERT_EQ(decoded->records.size(), 1);
  EXPECT_EQ(decoded->records[0].begin, 0x2c0);
  EXPECT_EQ(decoded->records[0].end, 0x2c0 + 30);
  EXPECT_EQ(decoded->records[0].crc, 0x4eb90b8e);
}

TEST(TorchFile, TwoEntriesOfOneNameAreRefused) {
  EXPECT_TRUE(FailsWith(DecodeObject(pickled::Dict({Int(1), Int(0), Str("1"), Tensor()})),
                        StatusCode::kInvalidArgument, {"x.pt", "called \"1\""}));
  EXPECT_TRUE(FailsWith(DecodeObject(pickled::Dict(
                            {Str("a"), pickled::Dict({Str("b"), Int(0)}), Str("a.b"), Int(0)})),
                        StatusCode::kInvalidArgument, {"called \"a.b\""}));
}

TEST(TorchFile, AKeyThatIsNoUnicodeIsRefused) {
  EXPECT_TRUE(FailsWith(
      DecodeObject(pickled::Dict({Str("a"), pickled::Dict({Str("\xED\xA0\x80"), Tensor()})})),
      StatusCode::kInvalidArgument, {"x.pt", "the name b'a.\\xed\\xa0\\x80'", "another key"}));
}

TEST(TorchFile, WhatIsNoValueIsNamedButNotKept) {
  const auto decoded = DecodeObject(pickled::Dict(
      {Str("a"), Tensor(), Str("b"), pickled::List({Call(Global("my", "Own"), {}), Tensor()})}));
  ASSERT_TRUE(IsOk(decoded));
  const ObjectMetadata* object = decoded->metadata.FindObject("b.0");
  ASSERT_NE(object, nullptr);
  EXPECT_EQ(*DecodeValue(decoded->inline_values.at(object->extent.begin)),
            Make(ValueKind::kTorchSave, "", {Value::Str("my.Own")}));
  // So is a mapping whose keys are no values.
  const auto keyed = DecodeObject(
      pickled::Dict({Str("a"), pickled::Dict({Call(Global("my", "Key"), {}), Tensor()})}));
  ASSERT_TRUE(IsOk(keyed));
  EXPECT_EQ(NamesOf(keyed->metadata), (std::vector<std::string>{"value a"}));
}

TEST(TorchFile, ALongNameThatManyValuesNeedIsNotKeptForEach) {
  // One class with a name of a megabyte, ten thousand instances of it.
  std::string object = "}(" + Str("first") + Call(Global("my", std::string(1 << 20, 'n')), {}) +
                       std::string("q\0", 2);
  for (int i = 0; i < 10'000; ++i) {
    object += Str(std::to_string(i)) + std::string("h\0", 2);
  }
  const auto decoded = DecodeObject(object + "u");
  ASSERT_TRUE(IsOk(decoded));
  ASSERT_EQ(decoded->inline_values.size(), 10'001);
  for (const std::string& value : decoded->inline_values) {
    EXPECT_LT(value.size(), 300);
  }
}

TEST(TorchFile, ADamagedTensorIsNamed) {
  EXPECT_TRUE(FailsWith(DecodeObject(pickled::Dict({Str("w"), Tensor({7}, {1})})),
                        StatusCode::kDataLoss, {"x.pt", "\"w\"", "does not lie in its storage"}));
}

TEST(TorchFile, DictsThatShareAndHoldThemselvesAreBounded) {
  // d["a"] = d
  EXPECT_TRUE(FailsWith(DecodeObject(std::string("}q\0", 3) + Str("a") + std::string("h\0s", 3)),
                        StatusCode::kInvalidArgument, {"deeper than 200 levels"}));
  std::string object = "}";
  for (char level = 0; level < 12; ++level) {
    const std::string get = std::string("h") + level;
    std::string next = std::string("q") + level + "0}(";
    for (int i = 0; i < 10; ++i) {
      next += Int(i) + get;
    }
    object += next + "u";
  }
  EXPECT_TRUE(FailsWith(DecodeObject(object), StatusCode::kInvalidArgument, {"many times larger"}));
}

TEST(TorchFile, ListsThatShareAreBounded) {
  std::string object = pickled::List({Tensor()});
  for (char level = 0; level < 12; ++level) {
    const std::string get = std::string("h") + level;
    object += std::string("q") + level + "0](";  // Kept in the memo only.
    for (int i = 0; i < 10; ++i) {
      object += get;
    }
    object += "e";
  }
  EXPECT_TRUE(FailsWith(DecodeObject(pickled::Dict({Str("a"), object})),
                        StatusCode::kInvalidArgument, {"many times larger"}));
}

// torch.save({"a": t, "b": t[1], "c": u}, ..., _use_new_zipfile_serialization=False) of a float32
// tensor of shape [2, 3] and an int8 one of shape [2]
std::string LegacyFile() {
  return FromHex(
      "80028a0a6cfc9c46f9206aa850192e80024de9032e80027d710028581000000070726f746f636f6c5f76"
      "657273696f6e71014de903580d0000006c6974746c655f656e6469616e710288580a000000747970655f"
      "73697a657371037d710428580500000073686f727471054b025803000000696e7471064b045804000000"
      "6c6f6e6771074b0475752e80027d710028580100000061710163746f7263682e5f7574696c730a5f7265"
      "6275696c645f74656e736f725f76320a71022828580700000073746f72616765710363746f7263680a46"
      "6c6f617453746f726167650a7104580a000000313131313436343039367105580300000063707571064b"
      "064e747107514b004b024b038671084b034b018671098963636f6c6c656374696f6e730a4f7264657265"
      "64446963740a710a2952710b74710c52710d580100000062710e6802282868036804580a000000313131"
      "31343634303936710f68064b064e747110514b034b038571114b0185711289680a295271137471145271"
      "15580100000063711668022828680363746f7263680a4368617253746f726167650a7117580a00000031"
      "303235313236383332711868064b024e747119514b004b0285711a4b0185711b89680a2952711c74711d"
      "52711e752e80025d710028580a000000313032353132363833327101580a000000313131313436343039"
      "367102652e020000000000000007f90600000000000000000000000000803f0000004000004040000080"
      "400000a040");
}

TEST(LegacyTorchFile, IsReadAsTheZipOneIs) {
  const std::string file = LegacyFile();
  const auto decoded = Decode(file);
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_EQ(NamesOf(decoded->metadata),
            (std::vector<std::string>{"tensor a", "tensor b", "tensor c"}));
  const auto content = [&](std::string_view name) {
    const Extent& extent = decoded->metadata.FindTensor(name)->chunks[0].extent;
    return file.substr(extent.begin, extent.end - extent.begin);
  };
  const std::string second = Le(0x40400000, 4) + Le(0x40800000, 4) + Le(0x40a00000, 4);
  EXPECT_EQ(content("a"), Le(0, 4) + Le(0x3f800000, 4) + Le(0x40000000, 4) + second);
  EXPECT_EQ(content("b"), second);
  EXPECT_EQ(content("c"), "\x07\xf9");
  EXPECT_EQ(decoded->metadata.FindTensor("c")->dtype, DType::kInt8);
  EXPECT_TRUE(decoded->records.empty());
}

TEST(LegacyTorchFile, StoragesMayBePartsOfOthers) {
  // Torch before 0.4: b's storage is elements [3, 6) of a's.
  std::string file = LegacyFile();
  const std::string whole = "K\6Nt";  // The count, no view.
  const std::size_t second = file.find(whole, file.find(whole) + 1);
  ASSERT_NE(second, std::string::npos);
  const std::size_t offset = file.find("QK\3", second);
  ASSERT_NE(offset, std::string::npos);
  file.replace(offset + 2, 1, std::string(1, '\0'));
  file.replace(second, whole.size(), "K\6" + Tuple({Str("view"), Int(3), Int(3)}) + "t");
  const auto decoded = Decode(file);
  ASSERT_TRUE(IsOk(decoded));
  const Extent a = decoded->metadata.FindTensor("a")->chunks[0].extent;
  const Extent b = decoded->metadata.FindTensor("b")->chunks[0].extent;
  EXPECT_EQ(b, (Extent{0, a.begin + 12, a.end, Encoding::kPlain}));
  const std::size_t count = file.find(Int(3) + Int(3)) + Int(3).size();
  EXPECT_TRUE(FailsWith(Decode(With(file, count, Int(2))), StatusCode::kDataLoss,
                        {"\"b\"", "does not lie in its storage"}));
}

TEST(LegacyTorchFile, PicklesMayBeOfAnyLength) {
  std::string file = LegacyFile();
  const std::size_t object = file.find('}', file.find("type_sizes")) + 1;
  const std::size_t begin = file.find("\x80\2}", object);
  ASSERT_NE(begin, std::string::npos);
  const std::size_t entries = file.find('(', begin) + 1;
  file.insert(entries, Str("long") + Str(std::string(300'000, 'x')));
  const auto decoded = Decode(file);
  ASSERT_TRUE(IsOk(decoded));
  EXPECT_NE(decoded->metadata.FindObject("long"), nullptr);
  EXPECT_NE(decoded->metadata.FindTensor("a"), nullptr);
}

TEST(LegacyTorchFile, OfABigEndianMachineIsRefused) {
  std::string file = LegacyFile();
  const std::size_t flag = file.find("little_endian");
  ASSERT_NE(flag, std::string::npos);
  EXPECT_TRUE(FailsWith(Decode(With(file, file.find('\x88', flag), "\x89")),
                        StatusCode::kUnimplemented, {"big-endian"}));
  EXPECT_TRUE(FailsWith(Decode(With(file, file.find("M\xe9\3"), "M\xea")),
                        StatusCode::kUnimplemented, {"protocol", "1001"}));
}

TEST(LegacyTorchFile, NeverCrashesWhateverIsCutOrFlipped) {
  const std::string file = LegacyFile();
  for (std::size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(Decode(file.substr(0, size)).ok()) << size;
  }
  for (std::size_t at = 0; at < file.size(); ++at) {
    for (const int flip : {0x01, 0x08, 0x80, 0xFF}) {
      (void)Decode(With(file, at, std::string(1, static_cast<char>(file[at] ^ flip))));
    }
  }
}

TEST(LegacyTorchFile, StoragesBeyondTheEndAreRefused) {
  const std::string file = LegacyFile();
  const std::size_t count = file.rfind(Le(6, 8));
  EXPECT_TRUE(FailsWith(Decode(With(file, count, Le(7, 8))), StatusCode::kDataLoss,
                        {"ends within the storage"}));
  EXPECT_TRUE(FailsWith(Decode(With(file, count, Le(~std::uint64_t{0} / 2, 8))),
                        StatusCode::kDataLoss, {"ends within the storage"}));
  EXPECT_TRUE(FailsWith(Decode(With(file, count, Le(5, 8))), StatusCode::kDataLoss,
                        {"fewer than its 6 elements"}));
}

}  // namespace
}  // namespace varve::file_test
