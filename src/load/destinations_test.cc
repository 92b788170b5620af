// Loads into memory that overlaps, through the public interface.

#include <cstddef>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "tensor/box.h"
#include "varve/checkpoint.h"

namespace varve::destinations_test {
namespace {

using test::FailsWith;
using test::IsOk;
using test::TempDir;

using Floats = std::vector<float>;

/// Returns a checkpoint of tensors "a" = 0..5, "same", equal to it, and "other", which is not.
std::unique_ptr<CheckpointReader> Saved(const TempDir& dir) {
  static const Floats a{0, 1, 2, 3, 4, 5};
  static const Floats other{0, 1, 2, 3, 4, 6};
  State state;
  for (const auto& [name, values] : {std::pair{"a", &a}, {"same", &a}, {"other", &other}}) {
    state.tensors.push_back(
        {name, DType::kFloat32, {2, 3}, WholeBox({2, 3}), HostMemory{values->data()}});
  }
  EXPECT_TRUE(IsOk(Save(state, dir / "c").status()));
  return CheckpointReader::Open(dir / "c").value();
}

TargetTensor Target(const char* name, float* data, Strides strides = {}) {
  return {name, DType::kFloat32, {2, 3}, WholeBox({2, 3}), data, std::move(strides)};
}

Status LoadAll(CheckpointReader& reader, std::vector<TargetTensor> targets,
               LoadOptions options = {}) {
  LoadRequest request;
  request.targets = std::move(targets);
  return Load(reader, request, options).status();
}

TEST(LoadDestinations, ThatOverlapThemselvesAreRefusedBeforeAnythingIsWritten) {
  const TempDir dir;
  const auto reader = Saved(dir);
  Floats memory(6, -1);
  const TargetTensor target = Target("a", memory.data(), {1, 1});
  EXPECT_TRUE(FailsWith(LoadAll(*reader, {target}), StatusCode::kInvalidArgument,
                        {"\"a\"", "share memory"}));
  EXPECT_TRUE(FailsWith(reader->ReadTensors({&target, 1}, {}).status(),
                        StatusCode::kInvalidArgument, {"\"a\"", "share memory"}));
  EXPECT_EQ(memory, Floats(6, -1));
  EXPECT_TRUE(FailsWith(LoadAll(*reader, {Target("a", nullptr)}), StatusCode::kInvalidArgument,
                        {"\"a\"", "no memory"}));
}

TEST(LoadDestinations, InReadOnlyMemoryAreRefusedBeforeAnythingIsWritten) {
  const TempDir dir;
  const auto reader = Saved(dir);
  Floats memory(6, -1);
  void* const mapped =
      ::mmap(nullptr, 6 * sizeof(float), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  EXPECT_TRUE(FailsWith(
      LoadAll(*reader, {Target("same", memory.data()), Target("a", static_cast<float*>(mapped))}),
      StatusCode::kInvalidArgument, {"\"a\"", "cannot be written to"}));
  EXPECT_EQ(memory, Floats(6, -1));
  ASSERT_EQ(::mprotect(mapped, 6 * sizeof(float), PROT_READ | PROT_WRITE), 0);
  EXPECT_TRUE(IsOk(LoadAll(*reader, {Target("a", static_cast<float*>(mapped))})));
  ::munmap(mapped, 6 * sizeof(float));
}

TEST(LoadDestinations, OfOneMemoryTakeEqualValuesOnly) {
  const TempDir dir;
  const auto reader = Saved(dir);
  Floats memory(6, -1);
  EXPECT_TRUE(
      FailsWith(LoadAll(*reader, {Target("a", memory.data()), Target("other", memory.data())}),
                StatusCode::kInvalidArgument, {"\"a\" and tensor \"other\"", "different values"}));
  EXPECT_EQ(memory, Floats(6, -1));
  EXPECT_TRUE(IsOk(LoadAll(*reader, {Target("a", memory.data()), Target("same", memory.data())})));
  EXPECT_EQ(memory, (Floats{0, 1, 2, 3, 4, 5}));
}

TEST(LoadDestinations, ThatShareSomeElementsAreCompared) {
  const TempDir dir;
  const auto reader = Saved(dir);
  Floats memory(12, -1);
  // The last row of one is the first of the other: 3 4 5 and 0 1 2.
  EXPECT_TRUE(
      FailsWith(LoadAll(*reader, {Target("a", memory.data()), Target("same", memory.data() + 3)}),
                StatusCode::kInvalidArgument, {"different values"}));
  EXPECT_EQ(memory, Floats(12, -1));
  // Rows that interleave share nothing.
  EXPECT_TRUE(IsOk(LoadAll(
      *reader, {Target("a", memory.data(), {6, 1}), Target("other", memory.data() + 3, {6, 1})})));
  EXPECT_EQ(memory, (Floats{0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 6}));
}

TEST(LoadOptions, StrictSaysWhatMayBeLeftOver) {
  const TempDir dir;
  const auto reader = Saved(dir);
  Floats memory(6, -1);
  LoadOptions exact;
  exact.strict = Strict::kExact;
  EXPECT_TRUE(FailsWith(LoadAll(*reader, {Target("a", memory.data())}, exact),
                        StatusCode::kInvalidArgument,
                        {"unexpected in the checkpoint: other, same"}));
  EXPECT_EQ(memory, Floats(6, -1));
  LoadRequest request;
  request.targets = {Target("a", memory.data())};
  const auto report = Load(*reader, request);
  ASSERT_TRUE(IsOk(report.status()));
  EXPECT_EQ(report->loaded, 1U);
  EXPECT_EQ(report->unexpected, (std::vector<std::string>{"other", "same"}));
  request.missing = {"gone"};
  EXPECT_TRUE(FailsWith(Load(*reader, request).status(), StatusCode::kInvalidArgument,
                        {"missing from the checkpoint: gone"}));
  LoadOptions lax;
  lax.strict = Strict::kOff;
  EXPECT_TRUE(IsOk(Load(*reader, request, lax).status()));
}

TEST(LoadOptions, CastConvertsFloatingPointTypesAndNoOthers) {
  const TempDir dir;
  const auto reader = Saved(dir);
  std::vector<double> memory(6, -1);
  TargetTensor target{"other", DType::kFloat64, {2, 3}, {{1, 0}, {1, 3}}, memory.data(), {}};
  EXPECT_TRUE(FailsWith(LoadAll(*reader, {target}), StatusCode::kInvalidArgument, {"cast"}));
  LoadOptions cast;
  cast.cast = true;
  EXPECT_TRUE(IsOk(LoadAll(*reader, {target}, cast)));
  EXPECT_EQ(memory, (std::vector<double>{3, 4, 6, -1, -1, -1}));
  target.dtype = DType::kInt64;
  EXPECT_TRUE(FailsWith(LoadAll(*reader, {target}, cast), StatusCode::kInvalidArgument,
                        {"mismatched: other"}));
}

}  // namespace
}  // namespace varve::destinations_test
