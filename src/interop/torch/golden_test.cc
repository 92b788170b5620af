// Archives of torch 2.6 and 2.14, compared with torch's own account of their content.

#include <map>
#include <set>

#include <gtest/gtest.h>
#include <simdjson.h>

#include "interop/torch/archive.h"
#include "interop/torch/state_reader.h"
#include "interop/torch/values.h"
#include "support/archives.h"
#include "support/sha256.h"
#include "support/status_matchers.h"
#include "support/typed_json.h"
#include "tensor/box.h"

namespace varve::golden_test {
namespace {

using simdjson::dom::element;
using test::Asked;
using test::DifferenceFrom;
using test::Golden;
using test::IsOk;
using test::Sha256;
using test::StringAt;
using test::Watched;

template <class List>
List NumbersAt(element object, std::string_view key) {
  List numbers;
  for (const element number : object[key].get_array()) {
    numbers.push_back(static_cast<typename List::value_type>(number.get_int64().value()));
  }
  return numbers;
}

bool FlagAt(element object, std::string_view key) {
  bool flag = false;
  return object[key].get(flag) == simdjson::SUCCESS && flag;
}

/// A golden checkpoint with its description.
class GoldenCase {
 public:
  explicit GoldenCase(const std::string& folder) : folder_("dcp/" + folder + "/") {
    EXPECT_FALSE(parser_.parse(Golden(folder_ + "expected.json")).get(root_));
  }

  [[nodiscard]] element root() const { return root_; }
  [[nodiscard]] std::string File(const std::string& name) const { return Golden(folder_ + name); }

  /// Returns the bytes that a description with file, at and length is of.
  std::string Item(element place) {
    const std::string name = StringAt(place, "file");
    if (!files_.contains(name)) {
      files_[name] = File(name);
    }
    return files_[name].substr(place["at"].get_uint64(), place["length"].get_uint64());
  }

 private:
  std::string folder_;
  simdjson::dom::parser parser_;
  element root_;
  std::map<std::string, std::string> files_;
};

/// Returns the sum of a tensor's elements, row-major, as the description has it.
std::string ContentSum(const ArchiveTensor& tensor, std::uint64_t storage, std::string_view file) {
  const TensorSpan span = SpanOf(tensor);
  const auto packed = PackTensor(tensor, file.substr(storage + span.begin, span.end - span.begin));
  return packed ? Sha256(*packed) : "(no conjugate)";
}

void ExpectTensorItem(element chunk, const std::string& dtype, const std::string& item) {
  Asked asked;
  const auto read = ReadTensorItem(item.size(), Watched(item, &asked));
  ASSERT_TRUE(IsOk(read));
  EXPECT_EQ(asked.reads, item.size() <= 4096 ? 1 : 2);
  EXPECT_EQ(DTypeName(read->tensor.dtype), dtype);
  EXPECT_EQ(read->tensor.sizes, NumbersAt<Dims>(chunk, "sizes"));
  EXPECT_EQ(read->tensor.strides, NumbersAt<Strides>(chunk, "stride"));
  EXPECT_EQ(read->tensor.conj, FlagAt(chunk, "conj"));
  EXPECT_EQ(read->tensor.neg, FlagAt(chunk, "neg"));
  EXPECT_EQ(ContentSum(read->tensor, read->storage.begin, item), StringAt(chunk, "sha256"));
}

class DcpItems : public testing::TestWithParam<std::string> {};

TEST_P(DcpItems, DecodeToWhatTorchSaysOfThem) {
  GoldenCase golden(GetParam());
  int tensors = 0;
  int values = 0;
  for (const auto [key, entry] : golden.root()["entries"].get_object()) {
    SCOPED_TRACE(key);
    if (StringAt(entry, "kind") == "tensor") {
      for (const element chunk : entry["chunks"].get_array()) {
        ExpectTensorItem(chunk, StringAt(entry, "dtype"), golden.Item(chunk));
        ++tensors;
      }
      continue;
    }
    const std::string item = golden.Item(entry["stored"]);
    const auto value = ReadValueItem(item);
    ASSERT_TRUE(IsOk(value));
    if (value->kind == ValueKind::kTorchSave) {
      EXPECT_TRUE(GetParam().ends_with("opaque"));
      EXPECT_EQ(value->text, item);
      EXPECT_FALSE(value->items.empty());
    } else {
      EXPECT_EQ(DifferenceFrom(entry["python"], *value), "");
    }
    ++values;
  }
  EXPECT_GT(tensors, 0);
  EXPECT_GT(values + tensors, 1);
}

INSTANTIATE_TEST_SUITE_P(Golden, DcpItems,
                         testing::Values("2.6.0/single", "2.6.0/opaque", "2.6.0/holes",
                                         "2.6.0/dtensor_ws2", "2.6.0/sharded_tensor_ws2",
                                         "2.6.0/train_fsdp_ws2", "2.6.0/train_fsdp1_ws2",
                                         "2.6.0/train_ddp_ws2", "2.14.1/single", "2.14.1/opaque",
                                         "2.14.1/holes", "2.14.1/newdtypes", "2.14.1/dtensor_ws2",
                                         "2.14.1/sharded_tensor_ws2", "2.14.1/train_fsdp_ws2",
                                         "2.14.1/train_fsdp1_ws2", "2.14.1/train_ddp_ws2"));

TEST(DcpItems, ThatStayOpaqueSayWhatTheyNeed) {
  GoldenCase golden("2.14.1/opaque");
  std::map<std::string, std::string> needs;
  for (const auto [key, entry] : golden.root()["entries"].get_object()) {
    if (StringAt(entry, "kind") == "value") {
      const auto value = ReadValueItem(golden.Item(entry["stored"]));
      ASSERT_TRUE(IsOk(value));
      for (const Value& need :
           value->kind == ValueKind::kTorchSave ? value->items : std::vector<Value>()) {
        needs[std::string(key)] += need.text + " ";
      }
    }
  }
  EXPECT_EQ(needs, (std::map<std::string, std::string>{
                       {"builtin", "builtins.len "},
                       {"decimal", "decimal.Decimal "},
                       {"deque", "collections.deque "},
                       {"namespace", "argparse.Namespace "},
                       {"object_array", "numpy._core.multiarray._reconstruct "},
                       {"partial", "functools.partial "},
                       {"structured", "numpy._core.multiarray._reconstruct "},
                       {"type", "collections.OrderedDict "}}));
}

/// Collects the paths of a structure's leaves, joined, in order.
void CollectLeaves(const Value& structure, const std::string& name, std::set<std::string>* leaves) {
  const bool list = structure.kind == ValueKind::kList;
  if (structure.kind == ValueKind::kTensorLeaf || structure.kind == ValueKind::kObjectLeaf) {
    EXPECT_TRUE(leaves->insert(name).second);
    return;
  }
  for (std::size_t i = 0; i < structure.items.size(); i += list ? 1 : 2) {
    const Value& key = structure.items[i];
    const std::string part = list                          ? std::to_string(i)
                             : key.kind == ValueKind::kStr ? key.text
                                                           : ToString(key);
    std::string below = name;
    below.append(".").append(part);
    CollectLeaves(structure.items[list ? i : i + 1], below, leaves);
  }
}

class TorchSaveFiles : public testing::TestWithParam<std::string> {};

void ExpectTensorEntry(element entry, const TensorMetadata& tensor, std::string_view file) {
  EXPECT_EQ(DTypeName(tensor.dtype), StringAt(entry, "dtype"));
  EXPECT_EQ(tensor.shape, NumbersAt<Dims>(entry, "shape"));
  ASSERT_EQ(tensor.chunks.size(), 1);
  const Chunk& chunk = tensor.chunks[0];
  EXPECT_EQ(chunk.box, WholeBox(tensor.shape));
  EXPECT_EQ(chunk.extent.encoding, Encoding::kPlain);
  const Strides stride = NumbersAt<Strides>(entry, "stride");
  if (!chunk.strides.empty()) {
    EXPECT_EQ(chunk.strides, stride);
  }
  ArchiveTensor packed{
      .dtype = tensor.dtype,
      .sizes = tensor.shape,
      .strides = chunk.strides.empty() ? RowMajorStrides(tensor.shape) : chunk.strides,
      .conj = chunk.conj,
      .neg = chunk.neg};
  EXPECT_EQ(SpanOf(packed).end, chunk.extent.end - chunk.extent.begin);
  EXPECT_EQ(ContentSum(packed, chunk.extent.begin, file), StringAt(entry, "sha256"));
}

TEST_P(TorchSaveFiles, DecodeToWhatTorchSaysOfThem) {
  GoldenCase golden(GetParam() + "/torch_save");
  for (const auto [name, description] : golden.root()["files"].get_object()) {
    SCOPED_TRACE(name);
    const std::string file = golden.File(std::string(name));
    const auto decoded = DecodeTorchFile(file.size(), Watched(file), std::string(name));
    ASSERT_TRUE(IsOk(decoded));
    const Metadata& metadata = decoded->metadata;
    EXPECT_EQ(metadata.format, Format::kTorchSave);
    ASSERT_EQ(metadata.files.size(), 1);
    EXPECT_EQ(metadata.files[0].name, name);
    EXPECT_EQ(metadata.files[0].size, file.size());
    EXPECT_EQ(decoded->records.empty(), name == "no_crc.pt");

    std::set<std::string> names;
    for (const auto [key, entry] : description["entries"].get_object()) {
      SCOPED_TRACE(key);
      names.insert("." + std::string(key));
      if (StringAt(entry, "kind") == "tensor") {
        const TensorMetadata* tensor = metadata.FindTensor(key);
        ASSERT_NE(tensor, nullptr);
        ExpectTensorEntry(entry, *tensor, file);
        continue;
      }
      const ObjectMetadata* object = metadata.FindObject(key);
      ASSERT_NE(object, nullptr);
      ASSERT_EQ(object->extent.encoding, Encoding::kInline);
      const auto value = DecodeValue(decoded->inline_values.at(object->extent.begin));
      ASSERT_TRUE(IsOk(value));
      if (name == "exotic.pt") {
        EXPECT_EQ(value->kind, ValueKind::kTorchSave);
        EXPECT_EQ(value->text, "");
      } else {
        EXPECT_EQ(DifferenceFrom(entry["python"], *value), "");
      }
    }
    EXPECT_EQ(metadata.tensors.size() + metadata.objects.size(), names.size());
    std::set<std::string> leaves;
    if (decoded->structure) {
      CollectLeaves(*decoded->structure, "", &leaves);
      EXPECT_EQ(leaves, names);
    } else {
      EXPECT_EQ(names, (std::set<std::string>{"."}));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, TorchSaveFiles, testing::Values("2.6.0", "2.14.1"));

}  // namespace
}  // namespace varve::golden_test
