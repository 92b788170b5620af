// The crash matrix: every way to write a checkpoint (ways.h), on every storage (places.h), as a
// first save, an overwrite, over a damaged one and beside other files; each operation fails, the
// process is killed at it, the power is cut there. One judge says what must be left (cells.h).

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "crash/cells.h"

namespace varve::test::crash_matrix_test {
namespace {

class CrashMatrix : public CrashCell {
 protected:
  CrashMatrix() { place_->Coarsen(kSanitized ? 5 : 1); }  // Many cells share the same code.
};

TEST_P(CrashMatrix, ADeathAnywhereLeavesTheOldOrTheNew) {
  const std::uint64_t points = place_->Kill(SaveNew(), [this](Left& left) { JudgeSave(left); });
  EXPECT_GE(points, 5U);
  RecordProperty("points", std::to_string(points));
}

TEST_P(CrashMatrix, AnErrorAnywhereIsToldAndLeavesTheOldOrTheNew) {
  const std::uint64_t points = place_->Fail(SaveNew(), [this](Left& left) { JudgeSave(left); });
  EXPECT_GE(points, 5U);
  RecordProperty("points", std::to_string(points));
}

const std::vector<Before> kAll{Before::kNothing, Before::kCheckpoint, Before::kDamaged,
                               Before::kBesideUsersFiles};
const std::vector<Before> kPlain{Before::kNothing, Before::kCheckpoint, Before::kDamaged};
const std::vector<Before> kOver{Before::kCheckpoint};

const auto kName = [](const auto& test) { return NameOf(test.param); };

INSTANTIATE_TEST_SUITE_P(
    Varve, CrashMatrix,
    Join(CellsOf({"Varve"}, {"Disk", "DiskWithoutExchange"}, kAll),
         CellsOf({"Varve"}, {"DiskWithoutLinks"}, {Before::kUsersFiles, Before::kBesideUsersFiles}),
         CellsOf({"Varve"}, {"Disk", "DiskWithoutExchange"}, {Before::kUsersFiles}),
         CellsOf({"Varve"}, {"CachedDisk", "DiskWithoutLocks", "BareDisk"},
                 {Before::kNothing, Before::kCheckpoint}),
         CellsOf({"VarveWithSideFiles"}, {"Disk"}, kAll)),
    kName);
INSTANTIATE_TEST_SUITE_P(VarveOfRanks, CrashMatrix,
                         Join(CellsOf({"VarveOfRanks"}, {"Disk", "DiskWithoutExchange"}, kPlain)),
                         kName);
INSTANTIATE_TEST_SUITE_P(
    Apart, CrashMatrix,
    Join(CellsOf({"Apart012", "Apart201", "Apart120", "ApartThenNever", "ApartThenTogether"},
                 {"Disk"}, {Before::kNothing, Before::kCheckpoint}),
         CellsOf({"Apart201"}, {"Disk"}, {Before::kDamaged, Before::kBesideUsersFiles}),
         CellsOf({"TogetherOverApart"}, {"DiskWithoutExchange"}, kOver)),
    kName);
INSTANTIATE_TEST_SUITE_P(Dcp, CrashMatrix,
                         Join(CellsOf({"Dcp"}, {"Disk"}, kAll),
                              CellsOf({"DcpOfRanks"}, {"Disk"}, kPlain),
                              CellsOf({"DcpWithSideFiles"}, {"Disk"}, {Before::kBesideUsersFiles})),
                         kName);
INSTANTIATE_TEST_SUITE_P(
    DcpInPlace, CrashMatrix,
    Join(CellsOf({"DcpInPlace", "DcpInPlaceOfOneRank"}, {"Disk", "DiskWithoutLocks"},
                 {Before::kUsersFiles, Before::kBesideUsersFiles}),
         CellsOf({"DcpInPlace", "DcpInPlaceOfOneRank"}, {"Disk"}, {Before::kDamaged})),
    kName);
INSTANTIATE_TEST_SUITE_P(Hf, CrashMatrix,
                         Join(CellsOf({"Hf"}, {"Disk"}, kAll),
                              CellsOf({"HfOfRanks"}, {"Disk"}, kPlain),
                              CellsOf({"HfOfRanks"}, {"CachedDisk"}, kOver),
                              CellsOf({"HfWithSideFiles"}, {"Disk"}, {Before::kBesideUsersFiles})),
                         kName);
INSTANTIATE_TEST_SUITE_P(Hfai, CrashMatrix, Join(CellsOf({"Hfai"}, {"Disk"}, kAll)), kName);
INSTANTIATE_TEST_SUITE_P(Olmo, CrashMatrix,
                         Join(CellsOf({"OlmoOfASmallerWorld", "OlmoLegacyOverLocal",
                                       "OlmoLocalOverTorch", "OlmoTorchOverLegacy"},
                                      {"Disk"}, {Before::kBesideUsersFiles})),
                         kName);
INSTANTIATE_TEST_SUITE_P(Copies, CrashMatrix,
                         Join(CellsOf({"ConvertToHf", "Unshard"}, {"Disk"}, kAll),
                              CellsOf({"UploadOfVarve", "UploadOfDcp", "UploadOfHf",
                                       "UploadOfHfai"},
                                      {"Disk"}, {Before::kNothing, Before::kBesideUsersFiles})),
                         kName);
INSTANTIATE_TEST_SUITE_P(Store, CrashMatrix,
                         Join(CellsOf({"VarveOfRanks", "DcpOfRanks", "Hf", "HfOfRanks"}, {"Store"},
                                      kAll),
                              CellsOf({"Apart01", "Hfai", "ConvertToHf", "Unshard", "UploadOfVarve",
                                       "UploadOfDcp", "UploadOfHf", "UploadOfHfai"},
                                      {"Store"}, kPlain)),
                         kName);
INSTANTIATE_TEST_SUITE_P(S3, CrashMatrix,
                         Join(CellsOf({"VarveOfRanks", "DcpOfRanks", "UploadOfVarve"},
                                      {"S3AtEachRequest"}, {Before::kNothing, Before::kCheckpoint}),
                              CellsOf({"Hf", "HfOfRanks", "Apart01", "Hfai", "ConvertToHf",
                                       "UploadOfDcp", "UploadOfHfai"},
                                      {"S3"}, {Before::kNothing, Before::kCheckpoint})),
                         kName);

}  // namespace
}  // namespace varve::test::crash_matrix_test
