// Ranks on threads that read for each other, over real sockets: the bytes that storage is asked
// for, and ranks that fail, die or send wrong bytes.

#include "share/peer_reads.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "base/fields.h"
#include "share/sharing.h"
#include "storages/faulty.h"
#include "storages/memory.h"
#include "support/status_matchers.h"
#include "tensor/box.h"
#include "varve/checkpoint.h"

namespace varve::peer_reads_test {
namespace {

using test::FailsWith;
using test::IsOk;

constexpr std::uint64_t kRows = 2048;
constexpr std::uint64_t kColumns = 8192;  // Of 64 MiB in all: eight cells.
constexpr int kCells = 8;
constexpr std::uint64_t kBytes = kRows * kColumns * sizeof(float);

/// The storage as one rank sees it.
class Seen {
 public:
  explicit Seen(Storage& storage) : storage_(storage) {
    storage_.SetObserver([this](Operation operation, const std::string& name) {
      if (operation == Operation::kOpenForRead && name.ends_with(".safetensors")) {
        ++opened_;
      }
      if (operation == Operation::kRead && name.ends_with(".safetensors")) {
        ++reads_;
        while (held_) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      }
    });
  }
  Storage& storage() { return storage_; }
  [[nodiscard]] int reads() const { return reads_; }
  [[nodiscard]] int opened() const { return opened_; }
  void Forget() { reads_ = opened_ = 0; }
  void Stop() { storage_.Stop(); }
  /// Has reads wait until Go.
  void Hold() { held_ = true; }
  void Go() { held_ = false; }

 private:
  FaultyStorage storage_;
  std::atomic<int> reads_{0};
  std::atomic<int> opened_{0};
  std::atomic<bool> held_{false};
};

/// A rank with a reader of its own, and what it wants.
struct Rank {
  Rank(Storage& inner, std::string of_node, Box wanted)
      : seen(inner), node(std::move(of_node)), box(std::move(wanted)) {
    auto opened = CheckpointReader::Open("/c", seen.storage());
    EXPECT_TRUE(IsOk(opened));
    reader = *std::move(opened);
    memory.resize(Volume(box.sizes));
    // Opens the data file, which reads its header.
    TargetTensor first = Targets().front();
    first.box = {{0, 0}, {1, 1}};
    EXPECT_TRUE(IsOk(reader->ReadTensors(std::vector{first}, {})));
  }

  [[nodiscard]] std::vector<TargetTensor> Targets() {
    TargetTensor target;
    target.fqn = "w";
    target.dtype = DType::kFloat32;
    target.shape = {kRows, kColumns};
    target.box = box;
    target.data = memory.data();
    return {target};
  }
  /// Returns the need, with the node of this rank's name.
  std::string Need() {
    auto need = DecodeFields<ReadNeed>(reader->NeedOf(Targets(), true));
    EXPECT_TRUE(IsOk(need));
    EXPECT_FALSE(need->address.empty());
    need->node = node;
    need->remote = remote;
    return EncodeFields(*need);
  }
  Status Read() { return reader->ReadTensors(Targets(), {}).status(); }
  [[nodiscard]] bool IsRight() const {
    for (std::uint64_t row = 0; row < box.sizes[0]; ++row) {
      for (std::uint64_t column = 0; column < box.sizes[1]; column += 97) {
        const auto at = (row + box.offsets[0]) * kColumns + column + box.offsets[1];
        if (memory[row * box.sizes[1] + column] != static_cast<float>(at)) {
          return false;
        }
      }
    }
    return true;
  }

  Seen seen;
  std::string node;
  Box box;
  bool remote = false;
  std::unique_ptr<CheckpointReader> reader;
  std::uint64_t storage_before = 0;
  std::vector<float> memory;
};

class ReadsOfPeers : public testing::Test {
 protected:
  /// Saves by so many ranks, each some of the rows in a file of its own.
  explicit ReadsOfPeers(int files = 1) {
    std::vector<float> values(kRows * kColumns);
    std::iota(values.begin(), values.end(), 0.0F);
    auto saving = MakeInProcessCoordinators(files);
    const std::uint64_t rows = kRows / saving.size();
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < saving.size(); ++i) {
      threads.emplace_back([&, i] {
        State state;
        state.tensors.push_back({"w",
                                 DType::kFloat32,
                                 {kRows, kColumns},
                                 {{i * rows, 0}, {rows, kColumns}},
                                 HostMemory{values.data() + i * rows * kColumns}});
        EXPECT_TRUE(IsOk(Save(state, "/c", {}, *saving[i], storage_)));
      });
    }
  }

  void Add(const std::string& node, Box box = WholeBox({kRows, kColumns})) {
    ranks_.push_back(std::make_unique<Rank>(storage_, node, std::move(box)));
  }
  /// Has the ranks agree, each after `change` of what it will be told.
  void Agree(const std::function<void(ReadGroup*)>& change = {}) {
    std::vector<std::string> needs;
    for (auto& rank : ranks_) {
      needs.push_back(rank->Need());
    }
    const auto told = ranks_.front()->reader->ShareNeeds(needs);
    ASSERT_TRUE(IsOk(told));
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      auto group = DecodeFields<ReadGroup>((*told)[i]);
      ASSERT_TRUE(IsOk(group));
      if (change) {
        change(&*group);
      }
      ASSERT_TRUE(IsOk(ranks_[i]->reader->BeginSharing(EncodeFields(*group))));
      ranks_[i]->seen.Forget();
      ranks_[i]->storage_before = ranks_[i]->reader->storage_bytes();
    }
  }
  /// Reads on all ranks at once, and checks the values; returns how often storage was read.
  int ReadAll() {
    {
      std::vector<std::jthread> threads;
      for (auto& rank : ranks_) {
        threads.emplace_back([&rank] { EXPECT_TRUE(IsOk(rank->Read())); });
      }
    }
    int reads = 0;
    for (auto& rank : ranks_) {
      EXPECT_TRUE(rank->IsRight());
      reads += rank->seen.reads();
    }
    return reads;
  }

  /// Returns the bytes that the ranks say they have asked storage for, together.
  [[nodiscard]] std::uint64_t StorageBytes() const {
    std::uint64_t bytes = 0;
    for (const auto& rank : ranks_) {
      bytes += rank->reader->storage_bytes() - rank->storage_before;
    }
    return bytes;
  }

  MemoryStorage storage_{{.cached = false}};
  std::vector<std::unique_ptr<Rank>> ranks_;
};

TEST_F(ReadsOfPeers, EachCellIsReadFromStorageOnceByRanksOfTwoNodes) {
  for (const char* node : {"a", "b", "a", "b", "b"}) {
    Add(node);
  }
  Agree();
  EXPECT_EQ(ReadAll(), kCells);
  EXPECT_EQ(StorageBytes(), kBytes);
}

TEST_F(ReadsOfPeers, ColumnsOfRowsAreReadFromStorageOnce) {
  for (std::uint64_t i = 0; i < 4; ++i) {
    Add(i < 2 ? "a" : "b", {{0, i * kColumns / 4}, {kRows, kColumns / 4}});
  }
  Agree();
  EXPECT_EQ(ReadAll(), kCells);
}

TEST_F(ReadsOfPeers, RanksOfOneNodeDoSoWhereTheFilesAreOnAServer) {
  for (int i = 0; i < 3; ++i) {
    Add("a");
    ranks_.back()->remote = true;
  }
  Agree();
  EXPECT_EQ(ReadAll(), kCells);
}

class ReadsOfManyFiles : public ReadsOfPeers {
 protected:
  static constexpr int kFiles = 16;
  ReadsOfManyFiles() : ReadsOfPeers(kFiles) {}
};

TEST_F(ReadsOfManyFiles, EachIsOpenedByOneRankOnAServer) {
  for (int i = 0; i < 3; ++i) {
    Add("a");
    ranks_.back()->remote = true;
  }
  Agree();
  const int opened = kFiles - 1;  // All have opened the first one before.
  EXPECT_EQ(ReadAll(), kFiles + opened);
  EXPECT_EQ(ranks_[0]->seen.opened() + ranks_[1]->seen.opened() + ranks_[2]->seen.opened(), opened);
  EXPECT_EQ(ranks_[1]->seen.opened(), 5);  // 1, 4, 7, 10 and 13.
}

TEST_F(ReadsOfManyFiles, EachIsReadOnceByRanksOfTwoNodes) {
  for (const char* node : {"a", "b", "b"}) {
    Add(node);
  }
  Agree();
  ReadAll();
  EXPECT_EQ(StorageBytes(), kBytes);
}

TEST_F(ReadsOfPeers, ARankThatCannotBeReachedCostsTheOthersItsPartAlone) {
  for (const char* node : {"a", "b", "c"}) {
    Add(node);
  }
  Agree();
  ranks_[1]->reader->EndSharing();  // As if it had died: its listener is closed.
  ranks_.erase(ranks_.begin() + 1);
  EXPECT_EQ(ReadAll(), kCells + 3);  // Each has read cells 1, 4 and 7.
}

TEST_F(ReadsOfPeers, ARankThatHangsIsReadFor) {
  Add("a");
  Add("b");
  auto listened = Listen();  // Whose process is stopped: the system takes its connections.
  ASSERT_TRUE(IsOk(listened));
  Agree([&](ReadGroup* group) { group->nodes[1].front() = EncodeFields(listened->second); });
  EXPECT_TRUE(IsOk(ranks_[0]->Read()));
  EXPECT_TRUE(ranks_[0]->IsRight());
  EXPECT_EQ(ranks_[0]->seen.reads(), kCells);
}

TEST_F(ReadsOfPeers, ARankWhoseStorageFailsIsReadFor) {
  Add("a");
  Add("b");
  Agree();
  ranks_[1]->seen.Stop();
  EXPECT_TRUE(IsOk(ranks_[0]->Read()));
  EXPECT_TRUE(ranks_[0]->IsRight());
  EXPECT_FALSE(ranks_[1]->Read().ok());
}

TEST_F(ReadsOfPeers, AnAddressWithoutTheRightTokenGetsNothing) {
  Add("a");
  Add("b");
  Agree([](ReadGroup* group) {
    for (auto& node : group->nodes) {
      auto address = DecodeFields<Address>(node.front());
      ASSERT_TRUE(IsOk(address));
      std::reverse(address->token.begin(), address->token.end());
      node.front() = EncodeFields(*address);
    }
  });
  EXPECT_GE(ReadAll(), 2 * kCells);  // Each reads all for itself.
}

TEST_F(ReadsOfPeers, ARequestForWhatIsNoPartOfACellIsRefused) {
  Add("a");
  Add("b");
  std::optional<Address> address;
  Agree([&](ReadGroup* group) {
    auto decoded = DecodeFields<Address>(group->nodes[0].front());
    ASSERT_TRUE(IsOk(decoded));
    address = *decoded;
  });
  auto link = PeerLink::To(*address, -1);
  ASSERT_TRUE(IsOk(link));
  std::vector<std::byte> memory(4096);
  const std::span<std::byte> part(memory);
  const DataFile& file = ranks_[0]->reader->metadata().files[0];
  const std::uint64_t begin = file.data_begin;
  for (const PeerRequest& request :
       std::vector<PeerRequest>{{7, {begin, begin + 4096}},
                                {std::uint64_t{1} << 32, {begin, begin + 4096}},
                                {0, {0, 4096}},
                                {0, {begin + 4096, begin + 4096}},
                                {0, {begin + 4096, begin}},
                                {0, {begin, begin + kBytes}},
                                {0, {file.size - 1, file.size + 4095}},
                                {0, {~std::uint64_t{0} - 4096, ~std::uint64_t{0}}}}) {
    const auto fetched = link->Fetch(request, false, std::chrono::seconds(10), {&part, 1});
    ASSERT_TRUE(IsOk(fetched));
    EXPECT_FALSE(*fetched) << request.file << " " << request.range.begin;
  }
  const auto fetched = link->Fetch({0, {begin + 1024, begin + 1024 + 4096}}, false,
                                   std::chrono::seconds(10), {&part, 1});
  ASSERT_TRUE(IsOk(fetched));
  EXPECT_TRUE(*fetched);
  EXPECT_EQ(*reinterpret_cast<const float*>(memory.data()), 256.0F);
}

TEST_F(ReadsOfPeers, WrongBytesOfAnotherRankAreReadAgainFromStorage) {
  Add("a");
  Add("b");
  // The other rank is one that answers every request, with zeros.
  auto listened = Listen();
  ASSERT_TRUE(IsOk(listened));
  Agree([&](ReadGroup* group) { group->nodes[1].front() = EncodeFields(listened->second); });
  std::atomic<int> answered{0};
  std::vector<std::jthread> threads;
  std::mutex mutex;
  std::vector<int> sockets;
  std::jthread accepts([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const int fd = ::accept4(listened->first.get(), nullptr, nullptr, SOCK_NONBLOCK);
      if (fd < 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        continue;
      }
      const std::scoped_lock lock(mutex);
      threads.emplace_back([&, socket = Socket(fd)]() mutable {
        PeerLink link(std::move(socket), -1);
        (void)link.Greet(listened->second.token);
        const std::vector<std::byte> zeros(kPoolBlockBytes);
        for (auto request = link.NextRequest(); request.ok() && *request;
             request = link.NextRequest()) {
          const ByteRange range = (*request)->range;
          (void)link.Answer(std::span(zeros).first(range.end - range.begin), false);
          ++answered;
        }
      });
    }
  });
  EXPECT_TRUE(IsOk(ranks_[0]->Read()));
  EXPECT_TRUE(ranks_[0]->IsRight());
  EXPECT_GT(answered, 0);
  ranks_[0]->reader->EndSharing();
}

TEST_F(ReadsOfPeers, DamageInStorageIsFoundByEachRankAndNamed) {
  Add("a");
  Add("b");
  const std::string name = "/c/" + ranks_[0]->reader->metadata().files[0].name;
  auto file = storage_.OpenForWrite(name, {.exclusive = false, .shared = true});
  ASSERT_TRUE(IsOk(file));
  const std::array<std::byte, 4> wrong{};
  ASSERT_TRUE(IsOk((*file)->WriteAt(kBytes / 2, wrong)));
  ASSERT_TRUE(IsOk((*file)->Sync(ranks_[0]->reader->metadata().files[0].size)));
  Agree();
  std::jthread other([&] {
    EXPECT_TRUE(FailsWith(ranks_[1]->Read(), StatusCode::kDataLoss, {"checksum", "\"w\""}));
  });
  EXPECT_TRUE(FailsWith(ranks_[0]->Read(), StatusCode::kDataLoss, {"checksum", "\"w\""}));
}

TEST_F(ReadsOfPeers, ARankThatIsStoppedDoesNotWaitForTheOthers) {
  Add("a");
  Add("b");
  Agree();
  ranks_[1]->seen.Hold();
  std::stop_source stop;
  LoadOptions options;
  options.stop = stop.get_token();
  const auto begin = std::chrono::steady_clock::now();
  std::jthread stops([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    stop.request_stop();
  });
  (void)ranks_[0]->reader->ReadTensors(ranks_[0]->Targets(), options);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(8));
  ranks_[1]->seen.Go();
}

}  // namespace
}  // namespace varve::peer_reads_test
