// Checkpoints of each format version, kept as they were written. Every later version of Varve must
// read them; the version that wrote them must still write the same bytes.
//
//   native-v1/             a committed checkpoint of two ranks
//   native-v1-rank-local/  the same, saved uncoordinated: data files only, replicas on both ranks
//   native-v2/             native-v1 with aliases: second names of a sharded and of a whole tensor
//   native-v3/             native-v1 with variants: rank 1 held other values of a shard, of a whole
//                          tensor and of a plain value
//   native-v4/             native-v3 with a manifest of version 4; those before have version 1
//   native-v5/             native-v3 with a manifest of version 5
//
// They hold every element type, sharded, empty and 0-d tensors, names that need escaping, values of
// every kind and a structure. To write them anew, after a change of the format that bumps its
// version, add a folder for it and run this test once with VARVE_REGENERATE_GOLDEN=1.

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "base/checked.h"
#include "base/checksum.h"
#include "format/commit_record.h"
#include "format/data_file.h"
#include "format/manifest.h"
#include "support/boxes.h"
#include "support/status_matchers.h"
#include "support/test_data.h"
#include "support/values.h"
#include "tensor/box.h"
#include "varve/checkpoint.h"

namespace varve::native_golden_test {
namespace {

using test::Dict;
using test::IsOk;
using test::Make;

const Dims kWeightShape{64, 40};
constexpr std::string_view kOddName = "na\xC3\xAFve \"quoted\" \\ name\n";
constexpr std::string_view kWriter = "varve 0.1.0";

/// One of the kept checkpoints.
struct Golden {
  const char* folder;
  bool coordinated = true;
  bool aliases = false;
  bool variants = false;
  std::uint32_t manifest_version = 1;
};

constexpr Golden kVersion1{"native-v1"};
constexpr Golden kVersion1RankLocal{"native-v1-rank-local", false};
constexpr Golden kVersion2{"native-v2", true, true};
constexpr Golden kVersion3{"native-v3", true, false, true};
constexpr Golden kVersion4{"native-v4", true, false, true, 4};
constexpr Golden kVersion5{"native-v5", true, false, true, 5};

constexpr std::string_view kRowsOfRank1 = "__varve__.ranks.1@[0, 0].weight";
constexpr std::string_view kScalarOfRank1 = "__varve__.ranks.1.scalar";
constexpr std::string_view kValueOfRank1 = "__varve__.ranks.1.rank/0";

const std::vector<TensorAlias> kAliases{{"a second scalar", "scalar"}, {"tied", "weight"}};

/// Returns the name that a tensor is stored under.
std::string StoredName(const std::string& fqn) {
  for (const TensorAlias& alias : kAliases) {
    if (alias.fqn == fqn) {
      return alias.of;
    }
  }
  return fqn;
}

/// A data file before it is encoded.
struct GoldenFile {
  DataFileHeader header;
  std::string data;
};

/// Returns the bytes of an element, from its tensor and its place alone.
std::string Element(std::string_view fqn, DType dtype, std::uint64_t index) {
  std::string bytes;
  for (std::uint64_t i = 0; i < ItemSize(dtype); ++i) {
    const std::uint64_t mixed = index * 7 + i * 31 + fqn.size() * 13;
    bytes.push_back(static_cast<char>(dtype == DType::kBool ? mixed & 1 : mixed));
  }
  return bytes;
}

std::string Content(std::string_view fqn, DType dtype, const Dims& shape, const Box& box) {
  std::string bytes;
  for (const Dims& index : test::Elements(box)) {
    bytes += Element(fqn, dtype, test::Linear(WholeBox(shape), index));
  }
  return bytes;
}

/// Returns the values of the kinds that there were when the checkpoints were written.
std::vector<Value> KeptValues() {
  std::vector<Value> values = test::ValuesOfEveryKind();
  std::erase_if(values, [](const Value& value) { return value.kind >= ValueKind::kNamedDict; });
  return values;
}

std::string KindName(std::size_t index) { return "value." + std::to_string(index); }

std::string ObjectBytes(const std::string& fqn) {
  const auto values = KeptValues();
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (fqn == KindName(i)) {
      return EncodeValue(values[i]);
    }
  }
  return EncodeValue(Value::Str("the object " + fqn));
}

std::string Structure(std::uint32_t rank) {
  return EncodeValue(
      Dict({Value::Str("model"),
            Dict({Value::Str("weight"), Make(ValueKind::kTensorLeaf, std::string("torch"))}),
            Value::Str("rank " + std::to_string(rank)), Make(ValueKind::kObjectLeaf)}));
}

std::vector<StoredChunk> Chunks(std::uint32_t rank, bool coordinated) {
  const auto chunk = [](std::string_view fqn, DType dtype, Dims shape, Box box) {
    return StoredChunk{std::string(fqn), dtype, std::move(shape), std::move(box), {}, {}};
  };
  const Box rows = rank == 0 ? Box{{0, 0}, {24, 40}} : Box{{24, 0}, {40, 40}};
  const std::uint64_t side = rank == 0 ? 0 : 2;
  std::vector<StoredChunk> chunks{
      chunk("weight", DType::kFloat32, kWeightShape, rows),
      chunk("grid", DType::kInt16, {4, 4}, {{0, side}, {2, 2}}),
      chunk("grid", DType::kInt16, {4, 4}, {{2, 2 - side}, {2, 2}}),
  };
  // Held by all ranks: stored once, or by each rank where the save is uncoordinated.
  const auto replicated = [&](std::uint32_t owner, StoredChunk one) {
    if (rank == owner || !coordinated) {
      chunks.push_back(std::move(one));
    }
  };
  replicated(0, chunk("scalar", DType::kFloat64, {}, {}));
  replicated(1, chunk("empty", DType::kInt64, {0, 5}, {{0, 0}, {0, 5}}));
  replicated(1, chunk(kOddName, DType::kUInt8, {3}, {{0}, {3}}));
  for (std::uint8_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    replicated(i % 2,
               chunk("dtype." + std::string(DTypeName(dtype)), dtype, {2, 3}, {{0, 0}, {2, 3}}));
  }
  return chunks;
}

GoldenFile MakeFile(std::uint32_t rank, const Golden& golden) {
  const bool coordinated = golden.coordinated;
  GoldenFile file;
  DataFileHeader& header = file.header;
  for (std::uint8_t i = 0; i < header.identity.save_id.bytes.size(); ++i) {
    header.identity.save_id.bytes[i] = static_cast<std::uint8_t>(0xA0 + i);
  }
  header.identity.rank = rank;
  header.identity.world_size = 2;
  header.identity.coordinated = coordinated;
  header.identity.created_ns = 1'700'000'000'000'000'000 + rank;
  header.identity.block_bytes = 4096;
  header.chunks = Chunks(rank, coordinated);
  std::vector<std::string> objects{"rank/" + std::to_string(rank)};
  if (golden.variants && rank == 1) {
    const Box rows{{0, 0}, {24, 40}};
    header.chunks.push_back({std::string(kRowsOfRank1), DType::kFloat32, rows.sizes, rows, {}, {}});
    header.chunks.push_back({std::string(kScalarOfRank1), DType::kFloat64, {}, {}, {}, {}});
    objects.emplace_back(kValueOfRank1);
  }
  if (rank == 0 || !coordinated) {
    for (std::size_t i = 0; i < KeptValues().size(); ++i) {
      objects.push_back(KindName(i));
    }
  }
  for (const std::string& fqn : objects) {
    header.objects.push_back({fqn, {0, ObjectBytes(fqn).size()}});
  }
  header.structure = ByteRange{0, Structure(rank).size()};
  for (const TensorAlias& alias : kAliases) {
    const bool is_here = std::any_of(header.chunks.begin(), header.chunks.end(),
                                     [&](const auto& chunk) { return chunk.fqn() == alias.of; });
    if (golden.aliases && is_here) {
      header.aliases.push_back(alias);
    }
  }
  EXPECT_TRUE(IsOk(LayOut(&header)));

  for (StoredChunk& chunk : header.chunks) {
    const std::string bytes = Content(chunk.fqn(), chunk.dtype(), chunk.shape(), chunk.box);
    chunk.content = Xxh3(AsByteSpan(bytes));
    file.data += bytes;
  }
  for (const StoredObject& object : header.objects) {
    file.data += ObjectBytes(object.fqn);
  }
  file.data += Structure(rank);
  EXPECT_EQ(file.data.size(), header.data_bytes);
  for (std::size_t at = 0; at < file.data.size(); at += header.identity.block_bytes) {
    header.block_crc32c.push_back(
        Crc32c(AsByteSpan(std::string_view(file.data).substr(at, header.identity.block_bytes))));
  }
  return file;
}

std::string Read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path << "; see the top of this file";
  return {std::istreambuf_iterator<char>(in), {}};
}

void Write(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

Bytes Encoded(const DataFileHeader& header) {
  std::uint32_t crc = 0;
  auto bytes = EncodeHeader(header, &crc);
  EXPECT_TRUE(IsOk(bytes));
  return bytes.ok() ? *bytes : Bytes();
}

Metadata Merged(const Golden& golden) {
  std::vector<CheckedHeader> headers;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const DataFileHeader header = MakeFile(rank, golden).header;
    const Bytes bytes = Encoded(header);
    headers.push_back({header, bytes.size(), *HeaderChecksum(bytes)});
  }
  auto metadata = MergeHeaders(std::move(headers));
  EXPECT_TRUE(IsOk(metadata));
  return metadata.ok() ? *metadata : Metadata();
}

/// Returns what the checksum in a record covers: the manifest up to the frame's own checksum, in
/// version 1 with it.
std::string_view FrameOf(const Golden& golden, std::string_view manifest) {
  return golden.manifest_version > 1
             ? manifest.substr(0, 28 + ByteReader(manifest.substr(12)).U64())
             : manifest;
}

/// Returns the record that goes with the stored manifest, whose zstd frame another library version
/// may compress differently.
CommitRecord RecordFor(const Golden& golden, std::string_view manifest) {
  CommitRecord record = MakeCommitRecord(
      Merged(golden), {Bytes(manifest), Crc32c(AsByteSpan(FrameOf(golden, manifest)))});
  if (golden.manifest_version > 1) {
    record.frame_bytes = FrameOf(golden, manifest).size() + 4;
  }
  record.format_version = golden.manifest_version;
  record.writer = kWriter;
  return record;
}

class NativeGolden : public testing::TestWithParam<Golden> {
 protected:
  static std::filesystem::path Folder(const Golden& golden) {
    return test::TestData() / "golden" / golden.folder;
  }
  std::filesystem::path folder() const { return Folder(GetParam()); }

  static void SetUpTestSuite() {
    const char* regenerate = std::getenv("VARVE_REGENERATE_GOLDEN");
    if (regenerate == nullptr || std::string_view(regenerate) != "1") {
      return;
    }
    for (const Golden& golden : {kVersion5}) {  // No manifest of before is written any more.
      std::filesystem::create_directories(Folder(golden));
      for (std::uint32_t rank = 0; rank < 2; ++rank) {
        const GoldenFile file = MakeFile(rank, golden);
        Write(Folder(golden) / DataFileName(file.header), Encoded(file.header) + file.data);
      }
      if (golden.coordinated) {
        const auto manifest = EncodeManifest(Merged(golden));
        ASSERT_TRUE(IsOk(manifest));
        Write(Folder(golden) / kManifestName, manifest->bytes);
        Write(Folder(golden) / kCommitRecordName,
              EncodeCommitRecord(RecordFor(golden, manifest->bytes)));
      }
    }
  }
};

TEST_P(NativeGolden, DataFilesDecodeToWhatWasSaved) {
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const GoldenFile want = MakeFile(rank, GetParam());
    const std::string bytes = Read(folder() / DataFileName(want.header));
    const auto header_bytes = HeaderBytesFromPrefix(std::string_view(bytes).substr(0, 8));
    ASSERT_TRUE(IsOk(header_bytes));
    std::uint32_t crc = 0;
    const auto header = DecodeHeader(std::string_view(bytes).substr(0, *header_bytes), &crc);
    ASSERT_TRUE(IsOk(header));
    EXPECT_EQ(*header, want.header);
    EXPECT_TRUE(bytes.substr(*header_bytes) == want.data);
  }
}

TEST_P(NativeGolden, HeadersEncodedTodayHaveTheSameBytes) {
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const GoldenFile file = MakeFile(rank, GetParam());
    const Bytes header = Encoded(file.header);
    const std::string stored = Read(folder() / DataFileName(file.header));
    EXPECT_TRUE(stored.substr(0, header.size()) == header) << "rank " << rank;
  }
}

TEST_P(NativeGolden, OpensAndLoads) {
  const auto reader = CheckpointReader::Open(folder().string());
  ASSERT_TRUE(IsOk(reader));
  EXPECT_EQ(WithoutHashes((*reader)->metadata()), WithoutHashes(Merged(GetParam())));
  for (const TensorMetadata& want : Merged(GetParam()).tensors) {
    const TensorMetadata* const tensor = (*reader)->metadata().FindTensor(want.fqn);
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ((*reader)->WithHashes(*tensor).value(), want);
  }
  std::vector<TargetTensor> targets;
  std::vector<std::string> memory;
  for (const TensorMetadata& tensor : (*reader)->metadata().tensors) {
    memory.emplace_back(Volume(tensor.shape) * ItemSize(tensor.dtype), '\0');
    targets.push_back(
        {tensor.fqn, tensor.dtype, tensor.shape, WholeBox(tensor.shape), nullptr, {}});
  }
  for (std::size_t i = 0; i < targets.size(); ++i) {
    targets[i].data = memory[i].data();
  }
  EXPECT_EQ(targets.size(), kDTypeCount + 5U + (GetParam().aliases ? kAliases.size() : 0));
  ASSERT_TRUE(IsOk((*reader)->ReadTensors(targets, {})));
  for (std::size_t i = 0; i < targets.size(); ++i) {
    EXPECT_TRUE(memory[i] == Content(StoredName(targets[i].fqn), targets[i].dtype, targets[i].shape,
                                     targets[i].box))
        << targets[i].fqn;
  }
  const auto want = KeptValues();
  std::vector<std::string> names;
  for (std::size_t i = 0; i < want.size(); ++i) {
    names.push_back(KindName(i));
  }
  const auto values = (*reader)->ReadObjects(names);
  ASSERT_TRUE(IsOk(values));
  EXPECT_EQ(*values, want);
  const auto structure = (*reader)->ReadStructure();
  ASSERT_TRUE(IsOk(structure));
  EXPECT_EQ(structure->items.size(), 6U) << "model, rank 0, rank 1";
}

std::string NameOf(const testing::TestParamInfo<Golden>& one) {
  return one.param.manifest_version > 4   ? "Version5"
         : one.param.manifest_version > 1 ? "Version4"
         : one.param.variants             ? "Version3"
         : one.param.aliases              ? "Version2"
         : one.param.coordinated          ? "Version1"
                                          : "Version1RankLocal";
}

INSTANTIATE_TEST_SUITE_P(Kept, NativeGolden,
                         testing::Values(kVersion1, kVersion1RankLocal, kVersion2, kVersion3,
                                         kVersion4, kVersion5),
                         NameOf);

class NativeGoldenVariants : public NativeGolden {};

TEST_P(NativeGoldenVariants, AreTheValuesOfTheRankThatHeldThem) {
  const auto reader = CheckpointReader::Open(folder().string());
  ASSERT_TRUE(IsOk(reader));
  (*reader)->TakeValuesOf(1);
  const Box rows{{0, 0}, {24, 40}};
  const Box others{{24, 0}, {40, 40}};
  for (const auto& [box, want] :
       {std::pair(rows, Content(kRowsOfRank1, DType::kFloat32, rows.sizes, rows)),
        std::pair(others, Content("weight", DType::kFloat32, kWeightShape, others))}) {
    std::string memory(want.size(), '\0');
    const std::vector<TargetTensor> targets{
        {"weight", DType::kFloat32, kWeightShape, box, memory.data(), {}}};
    ASSERT_TRUE(IsOk((*reader)->ReadTensors(targets, {})));
    EXPECT_TRUE(memory == want) << ToString(box);
  }
  const std::vector<std::string> names{"rank/0"};
  const auto values = (*reader)->ReadObjects(names);
  ASSERT_TRUE(IsOk(values));
  EXPECT_EQ(EncodeValue(values->front()), ObjectBytes(std::string(kValueOfRank1)));
}

INSTANTIATE_TEST_SUITE_P(Kept, NativeGoldenVariants,
                         testing::Values(kVersion3, kVersion4, kVersion5), NameOf);

class NativeGoldenIndex : public NativeGolden {};

TEST_P(NativeGoldenIndex, ManifestDecodesToWhatWasSaved) {
  const std::string manifest = Read(folder() / kManifestName);
  const auto record = DecodeCommitRecord(Read(folder() / kCommitRecordName));
  ASSERT_TRUE(IsOk(record));
  const auto metadata = DecodeManifest(std::string_view(manifest).substr(0, record->frame_bytes));
  ASSERT_TRUE(IsOk(metadata));
  EXPECT_EQ(*metadata, WithoutHashes(Merged(GetParam())));
}

TEST_P(NativeGoldenIndex, CommitRecordEncodedTodayHasTheSameBytes) {
  const CommitRecord want = RecordFor(GetParam(), Read(folder() / kManifestName));
  const std::string stored = Read(folder() / kCommitRecordName);
  const auto record = DecodeCommitRecord(stored);
  ASSERT_TRUE(IsOk(record));
  EXPECT_EQ(*record, want);
  EXPECT_EQ(EncodeCommitRecord(want), stored);
}

INSTANTIATE_TEST_SUITE_P(Kept, NativeGoldenIndex,
                         testing::Values(kVersion1, kVersion2, kVersion3, kVersion4, kVersion5),
                         NameOf);

}  // namespace
}  // namespace varve::native_golden_test
