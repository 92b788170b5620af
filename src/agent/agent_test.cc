#include "varve/agent.h"

#include <atomic>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "agent/client.h"
#include "agent/shared_memory.h"
#include "support/agent.h"
#include "support/fake_cuda.h"
#include "support/no_huge_pages.h"
#include "support/ranks.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "support/training.h"
#include "varve/async_save.h"
#include "varve/catalogue.h"

namespace varve::agent_test {
namespace {

using namespace std::chrono_literals;
using test::AgentHere;
using test::FailsWith;
using test::IsOk;
using test::Load;
using test::LongDeadline;
using test::TempDir;
using test::Training;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

AgentReport StatusOf(const AgentHere& agent) {
  auto report = AgentStatus(agent.directory());
  EXPECT_TRUE(IsOk(report));
  return report.ok() ? *report : AgentReport{};
}

/// Overwrites the data of all files of a checkpoint, so that only memory has them.
void RuinData(const std::string& path) {
  for (const auto& file : std::filesystem::directory_iterator(path)) {
    if (file.path().extension() == ".safetensors" || file.path().extension() == ".distcp") {
      std::fstream stream(file.path(), std::ios::in | std::ios::out | std::ios::binary);
      stream.seekp(static_cast<std::streamoff>(file.file_size() / 2));
      stream << "ruined";
    }
  }
}

TEST(Agent, IsHandedWhatWasCopiedFromADevice) {
  AgentHere agent;
  const TempDir dir;
  const auto stager =
      std::move(*Stager::Make({.budget_bytes = 64 * kMiB}, nullptr, agent.Connect()));
  const Training training(20 * kMiB + 12345);
  State state = training.state();
  for (SourceTensor& tensor : state.tensors) {
    const std::uint64_t bytes = tensor.shape.front();
    void* const memory = fake_cuda_alloc(1, bytes);
    fake_cuda_poke(memory, std::get<HostMemory>(tensor.source).data, bytes);
    tensor.source = CudaMemory{memory, 1};
  }
  const AsyncSaveHandle save = AsyncSave(state, dir / "a", {}, *stager);
  ASSERT_TRUE(IsOk(save.staged().get()));
  for (const SourceTensor& tensor : state.tensors) {
    fake_cuda_free(const_cast<void*>(std::get<CudaMemory>(tensor.source).data));
  }
  ASSERT_TRUE(IsOk(save.done().get()));
  EXPECT_EQ(save.done().get()->device_bytes, training.memory.size());
  EXPECT_EQ(save.done().get()->pageable_bytes, 0U);
  EXPECT_TRUE(Load(dir / "a", training.memory.size()) == training.memory);
}

TEST(Agent, SavesWhatWasThereAtTheCallAsThreadsOfTheTrainerDo) {
  AgentHere agent;
  const TempDir dir;
  const auto stager = agent.MakeStager();
  for (const Format format : {Format::kVarve, Format::kDcp}) {
    Training training(20 * kMiB + 12345);
    const std::string before = training.memory;
    const std::string path = dir / std::string(FormatName(format));
    AsyncSaveOptions options;
    options.save.format = format;
    const AsyncSaveHandle save = AsyncSave(training.state(), path, options, *stager);
    ASSERT_TRUE(IsOk(save.staged().get()));
    training.Step();
    const auto& report = save.done().get();
    ASSERT_TRUE(IsOk(report));
    EXPECT_FALSE(report->in_waves);
    EXPECT_GT(report->bytes_written, before.size());
    EXPECT_TRUE(Load(path, before.size()) == before);
    EXPECT_TRUE(Verify(path)->clean());
  }
}

// The system pins small pages one by one, so the agent copies them once more.
TEST(Agent, WritesFromSmallPagesToo) {
  const test::NoHugePages none;
  if (!none.done()) {
    GTEST_SKIP() << "huge pages cannot be refused to this process: prctl is not allowed to";
  }
  AgentHere agent;
  const TempDir dir;
  const auto stager = agent.MakeStager();
  const Training training(20 * kMiB + 12345);
  ASSERT_TRUE(IsOk(AsyncSave(training.state(), dir / "a", {}, *stager).done().get()));
  EXPECT_TRUE(Load(dir / "a", training.memory.size()) == training.memory);
  EXPECT_TRUE(Verify(dir / "a")->clean());
}

TEST(Agent, KeepsTheContentOfManySavesApartWhenMemoryIsShort) {
  AgentHere agent;
  const TempDir dir;
  const auto stager = agent.MakeStager(56 * kMiB);  // Room for two; one is kept beside.
  Training training(18 * kMiB);
  std::vector<std::string> states;
  std::vector<AsyncSaveHandle> saves;
  for (int step = 0; step < 8; ++step) {
    states.push_back(training.memory);
    AsyncSaveOptions options;
    options.overlapped = step % 2 == 1;
    saves.push_back(AsyncSave(training.state(), dir / std::to_string(step), options, *stager));
    ASSERT_TRUE(IsOk(saves.back().staged().get()));
    training.Step();
  }
  stager->Drain();
  for (std::size_t step = 0; step < saves.size(); ++step) {
    ASSERT_TRUE(IsOk(saves[step].done().get()));
    EXPECT_TRUE(Load(dir / std::to_string(step), training.memory.size()) == states[step]) << step;
  }
  EXPECT_EQ(StatusOf(agent).held.size(), 1U);
}

TEST(Agent, SeveralRanksSaveOneCheckpointTogetherAndLeaveNothingElse) {
  AgentHere agent;
  const TempDir dir;
  const Training training(9 * kMiB);
  for (const bool coordinate : {true, false}) {
    const std::string path = dir / (coordinate ? "together" : "apart");
    auto planning = MakeInProcessCoordinators(3);
    const auto saved =
        test::OnEveryRank(planning, [&](Coordinator& rank) -> Result<AsyncSaveReport> {
          const auto stager = agent.MakeStager();
          AsyncSaveOptions options;
          options.save.coordinate = coordinate;
          options.save.save_id = SaveId{{1, 2, 3}};
          const std::string prefix = std::to_string(rank.rank()) + ".";
          return AsyncSave(training.state(prefix), path, options, *stager, rank).done().get();
        });
    for (const auto& report : saved) {
      ASSERT_TRUE(IsOk(*report));
    }
    for (const char* const prefix : {"0.", "1.", "2."}) {
      EXPECT_TRUE(Load(path, training.memory.size(), prefix) == training.memory);
    }
  }
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    const std::string name = entry.path().filename();
    EXPECT_TRUE(name == "together" || name == "apart") << name;
  }
}

TEST(Agent, SavesTensorsThatAllAreEmpty) {
  AgentHere agent;
  const TempDir dir;
  State state;
  for (const char* const name : {"a", "b"}) {
    state.tensors.push_back(
        {name, DType::kFloat32, {3, 0}, WholeBox({3, 0}), HostMemory{nullptr, {0, 4}}});
  }
  const auto stager = agent.MakeStager();
  ASSERT_TRUE(IsOk(AsyncSave(state, dir / "a", {}, *stager).done().get()));
  const auto verified = Verify(dir / "a");
  ASSERT_TRUE(IsOk(verified));
  EXPECT_TRUE(verified->clean());
}

TEST(Agent, ARankThatCannotSaveIsNamedOnAll) {
  AgentHere agent;
  const TempDir dir;
  const Training training(9 * kMiB);
  auto planning = MakeInProcessCoordinators(2);
  const auto saved = test::OnEveryRank(planning, [&](Coordinator& rank) -> Result<AsyncSaveReport> {
    const auto stager = agent.MakeStager();
    AsyncSaveOptions options;
    std::stop_source stop;
    options.save.stop = stop.get_token();
    if (rank.rank() == 1) {
      stop.request_stop();
    }
    const std::string prefix = std::to_string(rank.rank()) + ".";
    return AsyncSave(training.state(prefix), dir / "c", options, *stager, rank).done().get();
  });
  EXPECT_TRUE(FailsWith(*saved[0], StatusCode::kCancelled, {"rank 1"}));
  EXPECT_TRUE(FailsWith(*saved[1], StatusCode::kCancelled));
  EXPECT_FALSE(std::filesystem::exists(dir / "c"));
}

TEST(Agent, WhatIsLargerThanTheMemoryIsWrittenInWavesByTheTrainer) {
  AgentHere agent;
  const TempDir dir;
  const auto stager = agent.MakeStager(16 * kMiB);
  const Training training(60 * kMiB);
  for (const char* const name : {"a", "b"}) {
    const AsyncSaveHandle save = AsyncSave(training.state(), dir / name, {}, *stager);
    const auto& report = save.done().get();
    ASSERT_TRUE(IsOk(report));
    EXPECT_TRUE(report->in_waves);
    EXPECT_TRUE(Load(dir / name, training.memory.size()) == training.memory);
  }
}

TEST(Agent, ThatIsStoppedLeavesTheMemoryOfTrainersThatLiveAlone) {
  AgentHere agent;
  const TempDir dir;
  const auto stager = agent.MakeStager(32 * kMiB);
  const Training training(100 * kMiB);
  AsyncSaveOptions options;
  options.overlapped = true;
  options.save.max_write_bandwidth = 100 * kMiB;
  const AsyncSaveHandle save = AsyncSave(training.state(), dir / "c", options, *stager);
  std::this_thread::sleep_for(300ms);
  EXPECT_TRUE(IsOk(StopAgent(60s, agent.directory())));  // The agent has no part in these waves.
  const auto& report = save.done().get();
  ASSERT_TRUE(IsOk(report));
  EXPECT_TRUE(report->in_waves);
  EXPECT_TRUE(Load(dir / "c", training.memory.size()) == training.memory);
}

TEST(Agent, StoppingItFailsAtOnceWhereItsDirectoryCannotBeUsed) {
  const TempDir dir;
  std::ofstream(dir / "file") << "no directory";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(FailsWith(StopAgent(600s, dir / "file/agent"), StatusCode::kUnavailable,
                        {"VARVE_AGENT_DIR names another"}));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 300s);
}

TEST(Agent, AStateIsLoadedFromItsMemoryUntilTheNextOneTakesItsPlace) {
  AgentHere agent;
  const TempDir dir;
  const auto stager = agent.MakeStager();
  Training training(20 * kMiB);
  const std::string first = training.memory;
  ASSERT_TRUE(IsOk(AsyncSave(training.state(), dir / "1", {}, *stager).done().get()));
  RuinData(dir / "1");
  std::atomic<std::uint64_t> from_memory{0};
  const auto count = [&](std::uint64_t bytes) { from_memory += bytes; };
  const auto memory = OpenAgentMemory(dir / "1", PosixStorage(), count, agent.directory());
  ASSERT_NE(memory, nullptr);
  EXPECT_TRUE(Load(dir / "1", first.size(), "", *memory) == first);
  EXPECT_GE(from_memory, first.size());

  training.Step();
  ASSERT_TRUE(IsOk(AsyncSave(training.state(), dir / "2", {}, *stager).done().get()));
  // The agent revokes the page of files in memory, and offers them no more.
  const auto verified = Verify(dir / "1", *memory);
  ASSERT_TRUE(IsOk(verified));
  EXPECT_EQ(verified->damages.size(), 1U);
  EXPECT_EQ(OpenAgentMemory(dir / "1", PosixStorage(), {}, agent.directory()), nullptr);
  EXPECT_NE(OpenAgentMemory(dir / "2", PosixStorage(), {}, agent.directory()), nullptr);
}

TEST(Agent, MemoryThatATrainerUsesAgainAfterTheAgentHasEndedIsNotRead) {
  AgentHere agent;
  const TempDir dir;
  const auto stager = agent.MakeStager();
  Training training(20 * kMiB);
  const std::string first = training.memory;
  ASSERT_TRUE(IsOk(AsyncSave(training.state(), dir / "1", {}, *stager).done().get()));
  const auto memory = OpenAgentMemory(dir / "1", PosixStorage(), {}, agent.directory());
  ASSERT_NE(memory, nullptr);
  agent.Restart();
  training.Step();
  for (const char* const name : {"2", "3"}) {
    ASSERT_TRUE(IsOk(AsyncSave(training.state(), dir / name, {}, *stager).done().get()));
  }
  EXPECT_TRUE(Load(dir / "1", first.size(), "", *memory) == first);
}

TEST(Agent, ACheckpointThatWasReplacedIsNotReadFromMemory) {
  AgentHere agent;
  const TempDir dir;
  const auto stager = agent.MakeStager();
  for (const Format format : {Format::kVarve, Format::kDcp}) {
    Training training(20 * kMiB);
    const std::string path = dir / std::string(FormatName(format));
    AsyncSaveOptions options;
    options.save.format = format;
    ASSERT_TRUE(IsOk(AsyncSave(training.state(), path, options, *stager).done().get()));
    training.Step();
    ASSERT_TRUE(
        IsOk(Save(training.state(), path, {.overwrite = Overwrite::kAlways, .format = format})));
    const auto memory = OpenAgentMemory(path, PosixStorage(), {}, agent.directory());
    ASSERT_NE(memory, nullptr);  // The agent holds a file of that name.
    EXPECT_TRUE(Load(path, training.memory.size(), "", *memory) == training.memory);
  }
}

TEST(Agent, ACheckpointOfDcpIsReadFromMemoryToo) {
  AgentHere agent;
  const TempDir dir;
  const auto stager = agent.MakeStager();
  const Training training(20 * kMiB);
  AsyncSaveOptions options;
  options.save.format = Format::kDcp;
  ASSERT_TRUE(IsOk(AsyncSave(training.state(), dir / "c", options, *stager).done().get()));
  RuinData(dir / "c");
  const auto memory = OpenAgentMemory(dir / "c", PosixStorage(), {}, agent.directory());
  ASSERT_NE(memory, nullptr);
  EXPECT_TRUE(Load(dir / "c", training.memory.size(), "", *memory) == training.memory);
}

TEST(Agent, EndsByItselfWhenIdle) {
  AgentHere agent(50ms);
  {
    const TempDir dir;
    const auto stager = agent.MakeStager();
    const Training training(9 * kMiB);
    ASSERT_TRUE(IsOk(AsyncSave(training.state(), dir / "c", {}, *stager).done().get()));
    std::this_thread::sleep_for(200ms);  // A peer is connected.
    EXPECT_EQ(StatusOf(agent).trainers, 1U);
  }
  EXPECT_TRUE(IsOk(agent.End()));
  EXPECT_TRUE(FailsWith(AgentStatus(agent.directory()), StatusCode::kNotFound));
}

TEST(Agent, IsWaitedForAsLongAsItTakesIfSoWished) {
  AgentHere agent;
  for (const auto timeout : {std::chrono::milliseconds(1ms * 3600 * 24 * 365 * 1000),
                             std::chrono::milliseconds::max()}) {
    EXPECT_TRUE(IsOk(DrainAgent(timeout, agent.directory())));
  }
}

TEST(Agent, ListensOnlyInADirectoryThatIsPrivate) {
  const TempDir home;
  const std::string open = home / "open";
  ASSERT_TRUE(std::filesystem::create_directory(open));
  std::filesystem::permissions(open, std::filesystem::perms(0750));
  EXPECT_TRUE(FailsWith(RunAgent({.directory = open}), StatusCode::kFailedPrecondition, {open}));
  EXPECT_TRUE(FailsWith(ConnectToAgent({open, ""}), StatusCode::kFailedPrecondition, {open}));
  EXPECT_TRUE(FailsWith(AgentStatus(open), StatusCode::kFailedPrecondition, {open}));
  std::filesystem::create_symlink(home.path(), home / "link");
  EXPECT_TRUE(FailsWith(RunAgent({.directory = home / "link"}), StatusCode::kFailedPrecondition));
  EXPECT_TRUE(FailsWith(ConnectToAgent({home / "none", "/no/such/agent"}),
                        StatusCode::kFailedPrecondition, {"/no/such/agent", "VARVE_AGENT"}));
  EXPECT_TRUE(FailsWith(ConnectToAgent({home / "none", "false"}), StatusCode::kFailedPrecondition,
                        {"false", "exit status 1"}));

  AgentHere agent;
  struct stat status{};
  ASSERT_EQ(::lstat((agent.directory() + "/agent.socket").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  EXPECT_TRUE(FailsWith(RunAgent({.directory = agent.directory()}), StatusCode::kAlreadyExists));
}

TEST(Agent, OneOfAnotherVersionIsRefusedByName) {
  AgentHere agent;
  auto socket = ConnectToSocket(agent.directory() + "/agent.socket", Deadline::max());
  ASSERT_TRUE(IsOk(socket));
  AgentConnection connection(std::move(*socket));
  EXPECT_TRUE(FailsWith(Ask(connection, {AgentVerb::kHello, 0, "9.9.9", {}}, LongDeadline()),
                        StatusCode::kFailedPrecondition, {"9.9.9", "varve agent stop"}));
  // kStop is served without a check of the version.
  EXPECT_TRUE(IsOk(Ask(connection, {AgentVerb::kStop, 0, {}, {}}, LongDeadline())));
  EXPECT_TRUE(IsOk(agent.End()));
}

/// A connection to an agent of this process, which has no descriptor left to accept it with.
class ConnectedWithoutDescriptors {
 public:
  explicit ConnectedWithoutDescriptors(const AgentHere& agent)
      : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)), next_(::dup(socket_.get())) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    (agent.directory() + "/agent.socket").copy(address.sun_path, sizeof(address.sun_path) - 1);
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    // No lower number than that of `next_` is free.
    const rlimit none{.rlim_cur = static_cast<rlim_t>(next_.get()), .rlim_max = before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    EXPECT_EQ(
        ::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  ~ConnectedWithoutDescriptors() { Restore(); }
  ConnectedWithoutDescriptors(const ConnectedWithoutDescriptors&) = delete;
  ConnectedWithoutDescriptors& operator=(const ConnectedWithoutDescriptors&) = delete;

  void Restore() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }
  FileDescriptor TakeSocket() { return std::move(socket_); }

 private:
  FileDescriptor socket_;
  FileDescriptor next_;
  rlimit before_{};
};

TEST(Agent, WithoutDescriptorsForThoseWhoConnectItWaitsQuietly) {
  AgentHere agent;
  ConnectedWithoutDescriptors connected(agent);
  const std::clock_t start = std::clock();
  std::this_thread::sleep_for(500ms);
  const std::clock_t used = std::clock() - start;
  connected.Restore();
  EXPECT_LT(used, CLOCKS_PER_SEC / 10);
  AgentConnection connection(connected.TakeSocket());
  EXPECT_TRUE(IsOk(Ask(connection, {AgentVerb::kHello, 0, AgentVersion(), {}}, LongDeadline())));
}

TEST(Agent, WithoutDescriptorsForLongItSendsThoseWhoConnectTheReason) {
  AgentHere agent;
  ConnectedWithoutDescriptors connected(agent);
  AgentConnection connection(connected.TakeSocket());
  const auto answer =
      Ask(connection, {AgentVerb::kHello, 0, AgentVersion(), {}}, LongDeadline()).status();
  connected.Restore();
  EXPECT_TRUE(FailsWith(
      answer, StatusCode::kFailedPrecondition,
      {"the agent, process " + std::to_string(::getpid()), "accept a connection", "ulimit -n"}));
  EXPECT_EQ(StatusOf(agent).trainers, 0U);  // It goes on.
}

TEST(Agent, DropsAPeerThatSendsMalformedMessagesAndServesTheOthers) {
  AgentHere agent;
  const TempDir dir;
  const auto stager = agent.MakeStager();
  test::Random random(7);
  for (int round = 0; round < 300; ++round) {
    auto connection = ConnectAndGreet(agent.directory(), LongDeadline());
    ASSERT_TRUE(IsOk(connection));
    for (int i = 0; i < 4; ++i) {
      AgentMessage message;
      message.verb = static_cast<AgentVerb>(random.Below(20));
      message.verb = message.verb == AgentVerb::kStop ? AgentVerb::kAttach : message.verb;
      message.ticket = random.Below(3);
      message.payload = random.Bytes(random.Below(40));
      for (std::uint64_t fds = random.Below(4); fds > 0; --fds) {
        message.fds.push_back(std::move(*MakeBlob(random.Bytes(random.Below(200)))));
      }
      (void)(*connection)->Send(message);
    }
  }
  const Training training(9 * kMiB);
  ASSERT_TRUE(IsOk(AsyncSave(training.state(), dir / "c", {}, *stager).done().get()));
  EXPECT_TRUE(Load(dir / "c", training.memory.size()) == training.memory);
}

}  // namespace
}  // namespace varve::agent_test
