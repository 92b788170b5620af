// Save and Load over our own backend in an object store, on a server in this process.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "storage/s3/s3_storage.h"
#include "support/ranks.h"
#include "support/s3_server.h"
#include "support/status_matchers.h"
#include "varve/catalogue.h"
#include "varve/protocol/checkpoint.h"
#include "varve/protocol/file_system.h"

namespace varve::protocol::object_store_test {
namespace {

using varve::test::FailsWith;
using varve::test::IsOk;
using varve::test::OnEveryRank;
using varve::test::S3Fault;
using varve::test::S3Request;

constexpr const char* kPath = "s3://bucket/run/step-1";
constexpr std::uint64_t kRows = 4;
constexpr std::uint64_t kColumns = 1024;

Box RowsOf(int rank) { return {{2 * static_cast<std::uint64_t>(rank), 0}, {2, kColumns}}; }

class ObjectStoreBackend : public testing::Test {
 protected:
  Storage& storage() { return storage_; }

  /// Saves by one rank of two; all elements are `value`.
  Status SaveRank(Coordinator& ranks, float value, const CallOptions& call = {},
                  bool overwrite = true) {
    const std::vector<float> rows(2 * kColumns, value);
    State state;
    state.tensors.push_back(
        {"w", DType::kFloat32, {kRows, kColumns}, RowsOf(ranks.rank()), HostMemory{rows.data()}});
    state.objects.push_back({"step", EncodeValue(Value::Int(static_cast<std::int64_t>(value)))});
    FileSystemWriterOptions options;
    options.overwrite = overwrite;
    options.block_bytes = 4096;
    FileSystemWriter writer(kPath, options, storage_);
    DefaultSavePlanner planner;
    return Save(state, writer, planner, ranks, call).status();
  }

  std::vector<Status> SaveBoth(float value, const CallOptions& call = {}, bool overwrite = true) {
    const auto world = MakeInProcessCoordinators(2);
    const auto results = OnEveryRank(
        world, [&](Coordinator& ranks) { return SaveRank(ranks, value, call, overwrite); });
    return {*results[0], *results[1]};
  }

  /// Returns the value of all elements, which must be one.
  Result<float> Load() {
    std::vector<float> memory(kRows * kColumns);
    TargetState state;
    state.tensors.push_back(
        {"w", DType::kFloat32, {kRows, kColumns}, WholeBox({kRows, kColumns}), memory.data(), {}});
    FileSystemReader reader(kPath, {}, storage_);
    DefaultLoadPlanner planner;
    const auto alone = MakeSingleProcessCoordinator();
    VARVE_RETURN_IF_ERROR(protocol::Load(state, reader, planner, *alone));
    EXPECT_TRUE(std::all_of(memory.begin(), memory.end(), [&](float x) { return x == memory[0]; }));
    return memory[0];
  }

  varve::test::S3Server server_;
  s3::S3Storage storage_{[this] {
                           s3::Settings settings;
                           settings.endpoint = server_.endpoint();
                           settings.part_bytes = 4096;
                           settings.retry = {.first = std::chrono::milliseconds(1),
                                             .longest = std::chrono::milliseconds(2),
                                             .time_limit = std::chrono::milliseconds(5'000)};
                           return settings;
                         }(),
                         [] { return s3::Credentials{"key", "secret", ""}; }};
};

TEST_F(ObjectStoreBackend, SavesOverACheckpointAndLoads) {
  for (const float value : {1.0F, 2.0F}) {
    for (const Status& saved : SaveBoth(value)) {
      EXPECT_TRUE(IsOk(saved));
    }
    const auto loaded = Load();
    ASSERT_TRUE(IsOk(loaded));
    EXPECT_EQ(*loaded, value);
    EXPECT_EQ(server_.objects().size(), 3U);
    EXPECT_TRUE(server_.objects().contains("bucket/run/step-1/.metadata"));
  }
  EXPECT_TRUE(Verify(kPath, storage())->clean());
  const auto objects = server_.objects();
  EXPECT_TRUE(FailsWith(SaveBoth(3, {}, false)[1], StatusCode::kAlreadyExists));
  EXPECT_EQ(server_.objects(), objects);
}

TEST_F(ObjectStoreBackend, RanksThatSaveApartHaveAnIndexEach) {
  for (const float value : {1.0F, 2.0F}) {
    for (const Status& saved : SaveBoth(value, {.use_collectives = false})) {
      EXPECT_TRUE(IsOk(saved));
    }
    const auto loaded = Load();
    ASSERT_TRUE(IsOk(loaded));
    EXPECT_EQ(*loaded, value);
    EXPECT_EQ(server_.objects().size(), 4U);
    EXPECT_TRUE(server_.objects().contains("bucket/run/step-1/__1.metadata"));
  }
}

TEST_F(ObjectStoreBackend, ASaveThatFailsLeavesTheOldOneAlone) {
  ASSERT_TRUE(IsOk(SaveBoth(1)[0]));
  const auto objects = server_.objects();
  server_.SetScript([](const S3Request& request, int) {
    return request.method == "PUT" && request.path.ends_with("__1_0.distcp") ? S3Fault::kRefused
                                                                             : S3Fault::kNone;
  });
  const auto saved = SaveBoth(2);
  server_.SetScript({});
  EXPECT_TRUE(FailsWith(saved[0], StatusCode::kFailedPrecondition, {"rank 1", "__1_0.distcp"}));
  EXPECT_EQ(server_.objects(), objects);
  EXPECT_EQ(server_.open_uploads(), 0U);
  EXPECT_EQ(*Load(), 1.0F);
}

TEST(ObjectStoreIds, AreTakenByTheBackend) {
  EXPECT_TRUE(FileSystemWriter::ValidateCheckpointId("s3://bucket/key"));
  EXPECT_FALSE(FileSystemWriter::ValidateCheckpointId("gs://bucket/key"));
}

}  // namespace
}  // namespace varve::protocol::object_store_test
