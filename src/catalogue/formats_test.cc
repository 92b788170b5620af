// Recognition of other software's checkpoints, and the checks against storage before any byte of a
// tensor is read.

#include "catalogue/formats.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "catalogue/formats/dcp.h"
#include "catalogue/formats/hf.h"
#include "storages/memory.h"
#include "support/dcp_pickles.h"
#include "support/pickles.h"
#include "support/safetensors_files.h"
#include "support/small_state.h"
#include "support/status_matchers.h"

namespace varve::test::formats_test {
namespace {

constexpr const char* kPath = "/ck";
constexpr auto kNotFound = StatusCode::kNotFound;
constexpr auto kDataLoss = StatusCode::kDataLoss;

std::string InPath(std::string_view name) { return JoinPath(kPath, name); }

/// A storage with the directory kPath and these files in it.
class Folder {
 public:
  explicit Folder(const std::vector<std::pair<std::string, std::string>>& files = {}) {
    EXPECT_TRUE(IsOk(storage_.MakeDirectory(kPath)));
    for (const auto& [name, content] : files) {
      Put(name, content);
    }
  }
  void Put(const std::string& name, const std::string& content) {
    EXPECT_TRUE(IsOk(Rewrite(storage_, InPath(name), content)));
  }
  Result<OpenedIndex> Open() { return OpenKnown(storage_, kPath); }
  Result<OpenedIndex> OpenFile(const std::string& name) {
    return OpenKnown(storage_, InPath(name));
  }
  Storage& storage() { return storage_; }

 private:
  MemoryStorage storage_;
};

/// Returns an index of a float32 tensor of 250 elements in "__0_0.distcp" [0, 1000).
std::string IndexOf(std::string_view fqn) { return dcp::Index().Add(fqn, {250}).Pickle(); }

/// Returns a file with the tensor `name` of four bytes.
std::string FileWith(const std::string& name) {
  return SafetensorsOf("{" + Entry(name, "U8", "[4]", "[0,4]") + "}", 4);
}

std::vector<std::string> Tensors(const Result<OpenedIndex>& opened) {
  EXPECT_TRUE(IsOk(opened));
  std::vector<std::string> names;
  for (std::size_t i = 0; opened.ok() && i < opened->metadata.tensors.size(); ++i) {
    names.push_back(opened->metadata.tensors[i].fqn);
  }
  return names;
}

using Names = std::vector<std::string>;

// ---- DCP ----

TEST(OpenKnown, TakesSizesOfDcpFilesFromStorage) {
  Folder folder({{".metadata", IndexOf("w")}, {"__0_0.distcp", std::string(1234, 'x')}});
  const auto opened = folder.Open();
  EXPECT_EQ(Tensors(opened), Names{"w"});
  EXPECT_EQ(opened->metadata.format, Format::kDcp);
  EXPECT_EQ(opened->metadata.files.at(0).size, 1234U);
}

TEST(OpenKnown, NamesDcpFileThatIsMissingOrEndsBeforeAnItem) {
  Folder folder({{".metadata", IndexOf("w")}});
  EXPECT_TRUE(FailsWith(folder.Open(), kDataLoss, {"/ck/__0_0.distcp is missing"}));
  folder.Put("__0_0.distcp", std::string(999, 'x'));
  EXPECT_TRUE(FailsWith(folder.Open(), kDataLoss,
                        {"/ck/__0_0.distcp has 999 bytes", "\"w\" is stored at [0, 1000)"}));
}

TEST(OpenKnown, RefusesTensorThatNoEncodingOfItsItemCanGive) {
  constexpr std::int64_t kElements = std::int64_t{1} << 50;
  Folder folder({{".metadata", dcp::Index().Add("w", {kElements}).Pickle()},
                 {"__0_0.distcp", std::string(1000, 'x')}});
  EXPECT_TRUE(FailsWith(folder.Open(), kDataLoss,
                        {"tensor \"w\": the 4503599627370496 bytes", "cannot come from the 1000"}))
      << "nobody allocates four pebibytes for a kilobyte";
}

TEST(OpenKnown, HoldsDcpFilesToTheSizesThatVarveWroteInTheIndex) {
  MemoryStorage storage;
  ASSERT_TRUE(
      IsOk(SmallState().Floats("w", {1, 2}).Save(storage, kPath, {.format = Format::kDcp})));
  const auto opened = OpenKnown(storage, kPath);
  ASSERT_TRUE(IsOk(opened));
  const std::string file = InPath(opened->metadata.files.at(0).name);
  const auto content = ReadWholeFile(storage, file, 1U << 20U);
  ASSERT_TRUE(IsOk(content));
  ASSERT_TRUE(IsOk(Rewrite(storage, file, *content + "x")));
  EXPECT_TRUE(FailsWith(OpenKnown(storage, kPath), kDataLoss,
                        {file, std::to_string(content->size() + 1) + " bytes instead of"}))
      << "stock PyTorch would not notice";
  ASSERT_TRUE(IsOk(Damage(storage, InPath(".metadata"), 40)));
  EXPECT_TRUE(FailsWith(OpenKnown(storage, kPath), kDataLoss, {"/ck/.metadata"}));
}

TEST(OpenKnown, OpensOwnRanksOnlyOfLayoutsThatStoreEachRanksMemory) {
  Folder folder({{"model.safetensors", FileWith("w")}});
  EXPECT_TRUE(FailsWith(OpenKnownOfOwnRanks(folder.storage(), kPath, 2),
                        StatusCode::kInvalidArgument, {kPath, "own files only"}));
  EXPECT_TRUE(FailsWith(OpenKnownOfOwnRanks(Folder().storage(), kPath, 2), StatusCode::kNotFound));
}

TEST(OpenKnown, NamesTheRankThatARankLocalDcpSaveLacks) {
  Folder folder({{"__0.metadata", IndexOf("w")}, {"__2.metadata", IndexOf("v")}});
  EXPECT_TRUE(FailsWith(folder.Open(), StatusCode::kFailedPrecondition,
                        {"/ck is incomplete: __1.metadata is missing"}));
}

TEST(OpenKnown, PrefersTheIndexOfAllRanksToThoseOfSingleOnes) {
  Folder folder({{".metadata", IndexOf("all")},
                 {"__0.metadata", IndexOf("one")},
                 {"__0_0.distcp", std::string(1000, 'x')}});
  EXPECT_EQ(Tensors(folder.Open()), Names{"all"});
}

TEST(OpenKnown, PrefersAnIndexToFilesThatAnExportHasLeftBesideIt) {
  Folder folder({{".metadata", IndexOf("all")},
                 {"__0_0.distcp", std::string(1000, 'x')},
                 {"model.pt", "x"},
                 {"rank0.pt", "x"},
                 {"config.yaml", "a: 1"}});
  EXPECT_EQ(Tensors(folder.Open()), Names{"all"});
}

TEST(DcpIndexName, IsThatOfAllRanksOrOfOne) {
  for (const char* name : {".metadata", "__0.metadata", "__12.metadata"}) {
    EXPECT_TRUE(IsDcpIndexName(name)) << name;
  }
  for (const char* name : {"metadata", "__.metadata", "__-1.metadata", "__1x.metadata",
                           "__0.metadata.tmp", "0.metadata", "__99999999999.metadata"}) {
    EXPECT_FALSE(IsDcpIndexName(name)) << name;
  }
}

// ---- safetensors ----

TEST(OpenKnown, ReadsOnlyFilesThatTheIndexOfAHuggingFaceFolderNames) {
  Folder folder({{"a.safetensors", FileWith("w")},
                 {"other.safetensors", FileWith("v")},
                 {std::string(kHfIndexName), R"({"weight_map":{"w":"a.safetensors"}})"}});
  EXPECT_EQ(Tensors(folder.Open()), Names{"w"});
  ASSERT_TRUE(IsOk(folder.storage().Remove(InPath("a.safetensors"))));
  EXPECT_TRUE(FailsWith(folder.Open(), kDataLoss, {"/ck/a.safetensors is missing"}));
}

TEST(OpenKnown, NamesTheModelBesideAnIndexWhoseFilesALaterSaveHasRemoved) {
  Folder folder({{"model.safetensors", FileWith("w")},
                 {std::string(kHfIndexName), R"({"weight_map":{"w":"a.safetensors"}})"}});
  EXPECT_TRUE(FailsWith(folder.Open(), kDataLoss,
                        {"/ck/a.safetensors is missing", "a model.safetensors is beside the index",
                         "or remove model.safetensors.index.json"}));
}

TEST(OpenKnown, ReadsAllVisibleSafetensorsFilesWhereThereIsNoIndex) {
  Folder folder({{"a.safetensors", FileWith("w")},
                 {"b.safetensors", FileWith("v")},
                 {".c.safetensors", "being downloaded"}});
  EXPECT_EQ(Tensors(folder.Open()), (Names{"v", "w"}));
}

TEST(OpenKnown, ReadsAModelAloneWhereVariantsOfItLieBesideIt) {
  Folder folder({{"model.fp16.safetensors", FileWith("w")},
                 {"model.safetensors", FileWith("w")},
                 {"model_.safetensors", FileWith("w")},
                 {"model_1x.safetensors", FileWith("w")},
                 {"adapter_model.safetensors", FileWith("v")}});
  const auto opened = folder.Open();
  EXPECT_EQ(Tensors(opened), Names{"w"});
  EXPECT_EQ(opened->metadata.files.at(0).name, "model.safetensors");
}

TEST(OpenKnown, ReadsAllModelsThatAccelerateHasSaved) {
  Folder folder({{"model.safetensors", FileWith("w")},
                 {"model_1.safetensors", FileWith("v")},
                 {"consolidated.safetensors", FileWith("w")}});
  EXPECT_EQ(Tensors(folder.Open()), (Names{"v", "w"}));
}

// ---- single files ----

TEST(OpenKnown, RecognisesFileByItsContentWhateverItsName) {
  Folder folder({{"model.bin", FileWith("w")}, {"model.pth", pickled::Archive("K\x01")}});
  EXPECT_EQ(Tensors(folder.OpenFile("model.bin")), Names{"w"});
  const auto torch = folder.OpenFile("model.pth");
  ASSERT_TRUE(IsOk(torch));
  EXPECT_EQ(torch->directory, kPath);
}

TEST(OpenKnown, SaysWhatAFileLooksLikeThatIsNoCheckpoint) {
  Folder folder({{"x.pt", ZipOf({{.name = "notes.txt", .content = "a"}})},
                 {"x.npz", ZipOf({{.name = "w.npy", .content = "a"}})},
                 {"x.txt", "loss went down"},
                 {"x.dat", std::string(40, '\x01')},
                 {"empty", ""}});
  const auto fails = [&](const char* name, const char* phrase) {
    return FailsWith(folder.OpenFile(name), kNotFound, {"is not a checkpoint", phrase});
  };
  EXPECT_TRUE(fails("x.pt", "a zip archive (.zip)"));
  EXPECT_TRUE(fails("x.npz", "NumPy arrays (.npz)"));
  EXPECT_TRUE(fails("x.txt", "text"));
  EXPECT_TRUE(fails("x.dat", "no kind that Varve knows"));
  EXPECT_TRUE(fails("empty", "an empty file"));
}

TEST(OpenKnown, TakesFileThatCallsItselfSafetensorsForADamagedOne) {
  Folder folder({{"model.safetensors", std::string(40, '\x01')}});
  EXPECT_TRUE(FailsWith(folder.OpenFile("model.safetensors"), kDataLoss, {"model.safetensors"}));
}

TEST(OpenKnown, FindsNothingInADirectoryOfOtherFiles) {
  Folder folder;
  folder.Put("notes.txt", "-");
  EXPECT_TRUE(FailsWith(folder.Open(), kNotFound, {"holds no checkpoint that Varve knows"}));
}

// ---- names for those who clean up ----

TEST(IndexedNames, AreThoseOfTheIndexWhetherTheFilesAreThereOrNot) {
  Folder dcp({{".metadata", dcp::Index().Add("w", {5, 5}).Pickle()},
              {std::string(kHfIndexName), R"({"weight_map":{"w":"mine.safetensors"}})"}});
  const auto names = IndexedNames(dcp.storage(), kPath);
  ASSERT_TRUE(IsOk(names));
  EXPECT_EQ(*names, (Names{"__0_0.distcp", "__1_0.distcp"})) << "the other index is the user's";

  Folder hf({{std::string(kHfIndexName), R"({"weight_map":{"w":"a.safetensors"}})"}});
  const auto of_hf = IndexedNames(hf.storage(), kPath);
  ASSERT_TRUE(IsOk(of_hf));
  EXPECT_EQ(*of_hf, Names{"a.safetensors"});

  Folder plain({{"a.safetensors", FileWith("w")}});
  const auto none = IndexedNames(plain.storage(), kPath);
  ASSERT_TRUE(IsOk(none));
  EXPECT_TRUE(none->empty()) << "no index names the file";
}

}  // namespace
}  // namespace varve::test::formats_test
