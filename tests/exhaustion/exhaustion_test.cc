// A system that refuses memory or a thread, at every allocation and at every thread start of a
// small save, asynchronous save and load, once and for ever, in one process and in two ranks. Each
// run ends, with success or with an error on every rank; the name is whole or absent; the next save
// works. After SQLite's tests of running out of memory: number 0, 1, ... until none is left.

#include "support/exhaustion.h"

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/guarded.h"
#include "crash/states.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "varve/async_save.h"
#include "varve/checkpoint.h"
#include "varve/storage.h"

namespace varve::test::exhaustion_test {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
// Timeout of a rank that waits for a peer that could not even send an error.
constexpr auto kTimeout = std::chrono::seconds(60);
// Far more than a run takes, far less than a rank would wait for another in vain.
constexpr auto kDidNotHang = std::chrono::seconds(25);

Deadline Soon() { return std::chrono::steady_clock::now() + kTimeout; }

// Files of several blocks of 8 MiB, and staging memory for two of them: there are threads to start,
// and asynchronous saves go in waves.
constexpr std::uint64_t kManyBlocks = 150'000;

/// The work on one rank while the system refuses.
using Job = std::function<Status(int rank, Coordinator& ranks, Coordinator& background)>;

/// Runs `job` on `world_size` ranks, each a thread. `mortal`: a rank that has ended is lost to its
/// peers, as a process that exits. Else it is silent, and a peer that waits for it waits long.
std::vector<Status> OnRanks(int world_size, bool mortal, const Job& job) {
  std::vector<Status> outcomes(static_cast<std::size_t>(world_size));
  auto ranks = MakeInProcessCoordinators(world_size);
  auto background = MakeInProcessCoordinators(world_size);
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    threads.emplace_back([&, rank] {
      {
        const Subject subject(static_cast<int>(rank));
        outcomes[rank] =
            Guarded([&] { return job(static_cast<int>(rank), *ranks[rank], *background[rank]); });
      }
      if (mortal) {
        ranks[rank].reset();
        background[rank].reset();
      }
    });
  }
  threads.clear();
  return outcomes;
}

struct Case {
  const char* name;
  Resource resource;
  bool forever;
  int world_size;
  std::optional<int> group;  // The group that the system refuses; empty: all threads.
  std::uint64_t rows = 24;   // Of the saved tensor, of 160 bytes each.
};

class OutOf : public testing::TestWithParam<Case> {
 protected:
  OutOf()
      : old_(1, GetParam().world_size, GetParam().rows),
        new_(2, GetParam().world_size, GetParam().rows) {
    if (!CanRefuse()) {
      return;
    }
    EXPECT_TRUE(IsOk(SaveUnderNoStress(old_)));
  }

  void SetUp() override {
    if (!CanRefuse()) {
      GTEST_SKIP() << "the sanitizer has its own operator new and pthread_create";
    }
  }

  /// Replaces the checkpoint at path_.
  Status SaveUnderNoStress(const JobState& state) {
    const auto outcomes = OnRanks(
        GetParam().world_size, /*mortal=*/false,
        [&](int rank, Coordinator& ranks, Coordinator& /*background*/) {
          return Save(state.rank(rank), path_, {.overwrite = Overwrite::kAlways}, ranks).status();
        });
    for (const Status& outcome : outcomes) {
      VARVE_RETURN_IF_ERROR(outcome);
    }
    return Status::Ok();
  }

  /// Runs `job` once for each call that can be refused, and `check` after each.
  void Walk(const Job& job, const std::function<void(const std::vector<Status>&)>& check) {
    bool met = true;
    std::uint64_t number = 0;
    for (; met && !HasFailure(); ++number) {
      const testing::ScopedTrace trace("", 0, "refused: call " + std::to_string(number));
      const auto begin = std::chrono::steady_clock::now();
      std::vector<Status> outcomes;
      {
        const Exhaustion exhaustion(
            {GetParam().resource, number, GetParam().forever, GetParam().group});
        // A rank that is refused everything from some moment on may be unable even to report it.
        outcomes = OnRanks(GetParam().world_size, /*mortal=*/GetParam().group.has_value(), job);
        met = Exhaustion::met();
      }
      EXPECT_LT(std::chrono::steady_clock::now() - begin, kDidNotHang);
      if (!met) {
        for (const Status& outcome : outcomes) {
          EXPECT_TRUE(IsOk(outcome));
        }
      }
      for (const Status& outcome : outcomes) {
        EXPECT_TRUE(outcome.ok() || !outcome.message().empty());
      }
      check(outcomes);
    }
    RecordProperty("calls", static_cast<int>(number - 1));
    EXPECT_GT(number, GetParam().resource == Resource::kMemory ? 50U : 0U);
  }

  /// Checks a save of new_ to path_, where old_ was.
  void CheckSaved(const std::vector<Status>& outcomes) {
    const auto content = ReadContent(path_, PosixStorage());
    ASSERT_TRUE(IsOk(content));
    const bool is_new = content->tensors == new_.content().tensors;
    EXPECT_TRUE(is_new || content->tensors == old_.content().tensors);
    for (const Status& outcome : outcomes) {
      EXPECT_TRUE(!outcome.ok() || is_new) << "a rank was told that the save had succeeded";
    }
    ASSERT_TRUE(IsOk(SaveUnderNoStress(old_)));
  }

  Job AsyncSaveJob(const AsyncSaveOptions& options) {
    return [this, options](int rank, Coordinator& ranks, Coordinator& background) -> Status {
      // The test owns the background's coordinator: it must outlive its use by the stager.
      const auto made = Guarded([&] {
        return Stager::Make({.budget_bytes = 16 * kMiB}, std::make_unique<Borrowed>(&background));
      });
      if (!made.ok()) {
        return Agree(ranks, "make a stager", made.status(), Soon());
      }
      Stager* const stager = made->get();
      if (GetParam().resource == Resource::kThread) {
        stager->Prepare(kMiB);  // Takes 8 MiB from the system: slow, and only a thread.
      }
      // The caller makes the arguments that the call takes by value.
      State state;
      std::string path;
      AsyncSaveOptions mine;
      const Status copied = Guarded([&] {
        state = new_.rank(rank);
        path = path_;
        mine = options;
      });
      if (!copied.ok()) {
        return Agree(ranks, "copy the arguments", copied, Soon());
      }
      const AsyncSaveHandle save =
          AsyncSave(std::move(state), std::move(path), std::move(mine), *stager, ranks);
      const auto done = save.done();
      done.wait();
      return done.get().status();
    };
  }

  class Borrowed final : public Coordinator {
   public:
    explicit Borrowed(Coordinator* inner) : inner_(inner) {}
    [[nodiscard]] int rank() const override { return inner_->rank(); }
    [[nodiscard]] int size() const override { return inner_->size(); }
    Status Send(int to, std::string_view message, Deadline deadline) override {
      return inner_->Send(to, message, deadline);
    }
    Result<std::string> Receive(int from, Deadline deadline) override {
      return inner_->Receive(from, deadline);
    }

   private:
    Coordinator* inner_;
  };

  const TempDir dir_{"/dev/shm"};  // Nothing here is about disks.
  const std::string path_ = dir_ / "step-1";
  const JobState old_;
  const JobState new_;
};

TEST_P(OutOf, ASaveEndsOnEveryRankAndLeavesOneWholeCheckpoint) {
  for (const Format format : {Format::kVarve, Format::kDcp}) {
    const SaveOptions options{
        .overwrite = Overwrite::kAlways, .format = format, .timeout = kTimeout};
    std::vector<State> states;
    for (int rank = 0; rank < GetParam().world_size; ++rank) {
      states.push_back(new_.rank(rank));
      states.back().structure.clear();  // DCP cannot hold this one.
    }
    Walk(
        [&](int rank, Coordinator& ranks, Coordinator& /*background*/) {
          return Save(states[static_cast<std::size_t>(rank)], path_, options, ranks).status();
        },
        [&](const auto& outcomes) { CheckSaved(outcomes); });
  }
}

TEST_P(OutOf, AnAsyncSaveEndsOnEveryRankAndLeavesOneWholeCheckpoint) {
  AsyncSaveOptions options;
  options.save = {.overwrite = Overwrite::kAlways, .timeout = kTimeout};
  options.retry_delay = std::chrono::milliseconds(1);
  // A rank that cannot even say that it failed is waited for half a minute before a repetition.
  options.retries = GetParam().group ? 0 : 1;
  for (const bool overlapped : {false, true}) {
    options.overlapped = overlapped;
    options.deadline =
        overlapped ? std::optional(std::chrono::milliseconds(kTimeout)) : std::nullopt;
    Walk(AsyncSaveJob(options), [&](const auto& outcomes) { CheckSaved(outcomes); });
  }
}

TEST_P(OutOf, ALoadEndsOnEveryRank) {
  const std::uint64_t rows = GetParam().rows;
  const std::uint64_t bytes = rows * 40 * sizeof(float);
  std::vector<std::string> memory(2, std::string(bytes, '\0'));
  Walk(
      [&](int rank, Coordinator& ranks, Coordinator& /*background*/) -> Status {
        // Opening is no collective call: a rank that cannot open reports so in its part of the
        // load.
        LoadRequest request;
        const auto reader = Guarded([&]() -> Result<std::unique_ptr<CheckpointReader>> {
          request.targets.push_back({"model.weight",
                                     DType::kFloat32,
                                     {rows, 40},
                                     WholeBox({rows, 40}),
                                     memory[static_cast<std::size_t>(rank)].data(),
                                     {}});
          return CheckpointReader::Open(path_, PosixStorage());
        });
        if (!reader.ok()) {
          return Agree(ranks, "open", reader.status(), Soon());
        }
        LoadOptions options;
        options.strict = Strict::kOff;
        options.timeout = kTimeout;
        return Load(**reader, request, options, ranks).status();
      },
      [&](const std::vector<Status>& outcomes) {
        for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
          const std::string wanted = "float32[" + std::to_string(rows) + ", 40]: " + memory[rank];
          EXPECT_TRUE(!outcomes[rank].ok() || wanted == old_.content().tensors.at("model.weight"));
        }
      });
}

INSTANTIATE_TEST_SUITE_P(
    Exhaustion, OutOf,
    testing::Values(Case{"MemoryOnce", Resource::kMemory, false, 1, {}},
                    Case{"MemoryForEver", Resource::kMemory, true, 1, {}},
                    Case{"MemoryOnceOfTwoRanks", Resource::kMemory, false, 2, {}},
                    Case{"MemoryForEverOfRank0", Resource::kMemory, true, 2, 0},
                    Case{"MemoryForEverOfRank1", Resource::kMemory, true, 2, 1},
                    Case{"ThreadOnce", Resource::kThread, false, 1, {}, kManyBlocks},
                    Case{"ThreadsForEver", Resource::kThread, true, 1, {}, kManyBlocks},
                    Case{"ThreadOnceOfTwoRanks", Resource::kThread, false, 2, {}, kManyBlocks},
                    Case{"ThreadsForEverOfRank1", Resource::kThread, true, 2, 1, kManyBlocks}),
    [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace varve::test::exhaustion_test
