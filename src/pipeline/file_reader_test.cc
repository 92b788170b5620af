#include "pipeline/file_reader.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "base/checksum.h"
#include "pipeline/read_units.h"
#include "support/fake_file.h"
#include "support/random.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "tensor/box.h"

namespace varve::file_reader_test {
namespace {

using test::ChosenWayFile;
using test::FailsWith;
using test::IsOk;
using test::Random;

constexpr std::uint64_t kHeader = 4096;
constexpr std::uint64_t kBlock = 16384;

/// A file on disk of random bytes after a header, with its checksums.
class StoredFile {
 public:
  StoredFile(const std::string& path, std::uint64_t data_bytes, std::uint64_t block, Random* random)
      : content_(std::string(kHeader, 'h') + random->Bytes(data_bytes)),
        geometry_{kHeader, kHeader + data_bytes, block},
        path_(path) {
    for (std::uint64_t at = kHeader; at < content_.size(); at += block) {
      crcs_.push_back(Crc32c(AsByteSpan(std::string_view(content_).substr(at, block))));
    }
    Write();
  }

  /// Changes a byte on disk; the checksums stay those of the good content.
  void Damage(std::uint64_t offset) {
    content_[offset] = static_cast<char>(content_[offset] ^ 0x10);
    Write();
  }

  FileReads Reads(ChosenWayFile* file, std::vector<ReadTarget> targets) {
    return {file, path_, geometry_, crcs_, std::move(targets), {}};
  }
  [[nodiscard]] std::unique_ptr<ChosenWayFile> Open(bool cached) const {
    auto file = PosixStorage().OpenForRead(path_);
    EXPECT_TRUE(IsOk(file));
    return std::make_unique<ChosenWayFile>(std::move(*file), cached);
  }
  [[nodiscard]] const std::string& content() const { return content_; }
  [[nodiscard]] const BlockGeometry& geometry() const { return geometry_; }
  [[nodiscard]] const std::vector<std::uint32_t>& crcs() const { return crcs_; }

 private:
  void Write() const { std::ofstream(path_, std::ios::binary | std::ios::trunc) << content_; }
  std::string content_;
  BlockGeometry geometry_;
  std::vector<std::uint32_t> crcs_;
  std::string path_;
};

/// Memory to fill with a box of a row-major chunk at `chunk_begin` of the file.
struct Wanted {
  std::uint64_t chunk_begin = 0;
  Dims chunk;
  Box box;
  std::uint64_t item = 1;
  bool transposed = false;
  std::string memory{};

  ReadTarget Target(std::uint32_t owner) {
    memory.assign(Volume(box.sizes) * item, '\0');
    Strides strides = RowMajorStrides(box.sizes);
    if (transposed) {
      strides = {1, static_cast<std::int64_t>(box.sizes[0])};
    }
    const StridedMemory to{reinterpret_cast<std::byte*>(memory.data()), box, strides, item};
    return {chunk_begin, Region(WholeBox(chunk), to, box), owner};
  }

  /// Returns what the memory should hold, for two-dimensional boxes.
  [[nodiscard]] std::string Want(const std::string& content) const {
    std::string want(memory.size(), '\0');
    for (std::uint64_t i = 0; i < box.sizes[0]; ++i) {
      for (std::uint64_t j = 0; j < box.sizes[1]; ++j) {
        const std::uint64_t to = transposed ? j * box.sizes[0] + i : i * box.sizes[1] + j;
        const std::uint64_t from = (box.offsets[0] + i) * chunk[1] + box.offsets[1] + j;
        want.replace(to * item, item, content, chunk_begin + from * item, item);
      }
    }
    return want;
  }
};

std::vector<Wanted> ManyWays() {
  return {
      {kHeader, {100, 4096}, {{0, 0}, {100, 4096}}, 4},            // A whole chunk, in place.
      {kHeader + 1'638'400, {64, 2000}, {{3, 100}, {50, 7}}, 8},   // A few columns.
      {kHeader + 1'638'400, {64, 2000}, {{10, 0}, {5, 2000}}, 8},  // Wanted twice.
      {kHeader + 2'662'400, {300, 500}, {{7, 9}, {200, 400}}, 2, true},
      {kHeader + 2'962'400, {900, 33'000}, {{899, 1}, {1, 32'000}}, 1},  // One long row far out.
  };
}
constexpr std::uint64_t kManyWaysBytes = 2'962'400 + 900 * 33'000;

ReadFilesOptions Named(std::uint64_t gap = 65536) {
  return {.max_gap_bytes = gap, .threads = 4, .owner_name = [](std::uint32_t owner) {
            return "tensor " + std::to_string(owner);
          }};
}

TEST(ReadFiles, BothWaysGiveTheStoredBytes) {
  Random random(1);
  const test::TempDir dir;
  BufferPool pool(0);
  for (const std::uint64_t block : {kBlock, std::uint64_t{1} << 20, kPoolBlockBytes}) {
    StoredFile stored(dir / "data", kManyWaysBytes, block, &random);
    for (const bool cached : {false, true}) {
      for (const std::uint64_t gap : {0, 65536, 100'000'000}) {
        const auto file = stored.Open(cached);
        std::vector<Wanted> wanted = ManyWays();
        std::vector<ReadTarget> targets;
        for (std::uint32_t i = 0; i < wanted.size(); ++i) {
          targets.push_back(wanted[i].Target(i));
        }
        FileReads reads = stored.Reads(file.get(), std::move(targets));
        const ReadOutcome outcome =
            ReadFiles({&reads, 1}, static_cast<std::uint32_t>(wanted.size()), pool, Named(gap));
        ASSERT_TRUE(IsOk(outcome.status));
        for (const Wanted& one : wanted) {
          EXPECT_TRUE(one.memory == one.Want(stored.content()));
        }
        EXPECT_EQ(outcome.touched, std::vector<bool>(wanted.size(), true));
        EXPECT_EQ(file->uncached_reads > 0, !cached);
        EXPECT_EQ(file->cached_reads > 0, cached);
      }
    }
  }
}

TEST(ReadFiles, LeavesWhatSeveralRanksReadInThePageCache) {
  Random random(7);
  const test::TempDir dir;
  BufferPool pool(0);
  StoredFile stored(dir / "data", 10 * kBlock, kBlock, &random);
  const Dims chunk{10, kBlock};
  for (const std::uint32_t place : {0, 1, 2}) {
    const auto file = stored.Open(false);
    Wanted wanted{kHeader, chunk, {{0, 0}, chunk}};
    FileReads reads = stored.Reads(file.get(), {wanted.Target(0)});
    ReadFilesOptions options = Named();
    options.shared_by = {place, 3};
    const ReadOutcome outcome = ReadFiles({&reads, 1}, 1, pool, options);
    ASSERT_TRUE(IsOk(outcome.status));
    EXPECT_TRUE(wanted.memory == wanted.Want(stored.content()));
    EXPECT_EQ(file->uncached_reads, 0);
    EXPECT_EQ(outcome.storage_bytes, place == 2 ? outcome.bytes_read : 0);  // The one unit is its.
  }
}

TEST(UnitsOf, RanksThatShareBeginApartAndEachHasAllUnits) {
  const test::TempDir dir;
  constexpr std::uint64_t kUnits = 300;  // Two windows of two ranks, the last of 44 units.
  Wanted wanted{0, {kUnits, kPoolBlockBytes}, {}, 1};
  const Box box = WholeBox(wanted.chunk);
  // Nothing is read: any address will do.
  const Region region(
      box, {reinterpret_cast<std::byte*>(&wanted), box, RowMajorStrides(box.sizes), 1}, box);
  const FileReads reads{nullptr, "data",           {0, kUnits * kPoolBlockBytes, kPoolBlockBytes},
                        {},      {{0, region, 0}}, {}};
  const auto begins = [&](SharedBy by) {
    std::vector<std::uint64_t> numbers;
    for (const ReadUnit& unit : UnitsOf({&reads, 1}, 0, by)) {
      numbers.push_back(unit.range.begin / kPoolBlockBytes);
    }
    return numbers;
  };
  const std::vector<std::uint64_t> alone = begins({0, 1});
  ASSERT_EQ(alone.size(), kUnits);
  EXPECT_TRUE(std::is_sorted(alone.begin(), alone.end()));
  EXPECT_EQ(begins({0, 2}), alone);
  std::vector<std::uint64_t> second = begins({1, 2});
  EXPECT_EQ(second[0], 64U);
  EXPECT_EQ(second[127], 63U);
  EXPECT_EQ(second[128], 128U + 64);
  EXPECT_EQ(second[256], 256U + 22);
  std::sort(second.begin(), second.end());
  EXPECT_EQ(second, alone);
}

TEST(UnitsOf, ARankTakesItsOwnCellsAWindowBeforeThoseOfOthersAndEachHasAllBytes) {
  constexpr std::uint64_t kCells = 12;
  constexpr std::uint64_t kBegin = 1 << 20;  // Of what is wanted: in the middle of a cell.
  Wanted wanted{0, {kCells * kPoolBlockBytes - kBegin}, {}, 1};
  const Box box = WholeBox(wanted.chunk);
  const Region region(
      box, {reinterpret_cast<std::byte*>(&wanted), box, RowMajorStrides(box.sizes), 1}, box);
  FileReads reads{nullptr, "data", {4096, 4096 + kCells * kPoolBlockBytes, kBegin}, {}, {}, {}};
  reads.targets.push_back({4096 + kBegin, region, 0});
  const ReadOrder order{.window = 4, .first = 0, .delay = [](std::uint32_t, std::uint64_t cell) {
                          return cell % 2 == 0 ? 0U : 1U;  // This rank reads the even ones.
                        }};
  std::vector<std::uint64_t> cells;
  std::uint64_t bytes = 0;
  for (const ReadUnit& unit : UnitsOf({&reads, 1}, 0, {}, order)) {
    cells.push_back(CellOf(reads.geometry, unit.range.begin));
    EXPECT_LE(unit.range.end, CellRange(reads.geometry, cells.back()).end);
    bytes += unit.range.end - unit.range.begin;
  }
  EXPECT_EQ(cells, (std::vector<std::uint64_t>{0, 2, 4, 1, 6, 3, 8, 5, 10, 7, 9, 11}));
  EXPECT_EQ(bytes, kCells * kPoolBlockBytes - kBegin);
}

TEST(ReadFiles, ReadsOnlyTheBlocksItNeeds) {
  Random random(2);
  const test::TempDir dir;
  BufferPool pool(0);
  StoredFile stored(dir / "data", 100 * kBlock, kBlock, &random);
  for (const bool cached : {false, true}) {
    const auto file = stored.Open(cached);
    Wanted wanted{kHeader, {100, kBlock}, {{40, 10}, {1, 100}}};
    FileReads reads = stored.Reads(file.get(), {wanted.Target(0)});
    std::atomic<std::uint64_t> seen{0};
    ReadFilesOptions options = Named(0);
    options.on_read = [&](std::uint64_t bytes) { seen += bytes; };
    const ReadOutcome outcome = ReadFiles({&reads, 1}, 1, pool, options);
    ASSERT_TRUE(IsOk(outcome.status));
    EXPECT_EQ(outcome.bytes_read, kBlock);
    EXPECT_EQ(seen, kBlock);
    EXPECT_EQ(wanted.memory, wanted.Want(stored.content()));
  }
}

TEST(ReadFiles, NamesFileOffsetAndOwnersOfDamage) {
  Random random(3);
  const test::TempDir dir;
  BufferPool pool(0);
  StoredFile stored(dir / "data", 10 * kBlock, kBlock, &random);
  stored.Damage(kHeader + 3 * kBlock + 77);
  for (const bool cached : {false, true}) {
    for (const bool transposed : {false, true}) {
      const auto file = stored.Open(cached);
      Wanted whole{kHeader, {10, kBlock}, {{0, 0}, {10, kBlock}}, 1, transposed};
      Wanted before{kHeader, {10, kBlock}, {{1, 0}, {2, kBlock}}};
      Wanted inside{kHeader, {10, kBlock}, {{3, 0}, {1, kBlock}}};
      FileReads reads =
          stored.Reads(file.get(), {whole.Target(0), before.Target(1), inside.Target(2)});
      const ReadOutcome outcome = ReadFiles({&reads, 1}, 3, pool, Named());
      EXPECT_TRUE(FailsWith(
          outcome.status, StatusCode::kDataLoss,
          {reads.name + " [53248, 69632): checksum mismatch (want ", "holds tensor 0, tensor 2"}));
      EXPECT_EQ(outcome.status.message().find("tensor 1"), std::string::npos)
          << "tensor 1 ends before the damage";
    }
  }
}

TEST(ReadFiles, DoesNotNoticeDamageInBlocksThatAreNotWanted) {
  Random random(4);
  const test::TempDir dir;
  BufferPool pool(0);
  StoredFile stored(dir / "data", 10 * kBlock, kBlock, &random);
  stored.Damage(kHeader + 9 * kBlock);
  const auto file = stored.Open(true);
  Wanted wanted{kHeader, {10, kBlock}, {{0, 0}, {5, kBlock}}};
  FileReads reads = stored.Reads(file.get(), {wanted.Target(0)});
  EXPECT_TRUE(IsOk(ReadFiles({&reads, 1}, 1, pool, Named()).status));
}

TEST(ReadFiles, TellsWhichOwnersMemoryWasTouched) {
  Random random(5);
  const test::TempDir dir;
  BufferPool pool(0);
  StoredFile stored(dir / "data", 1000 * kBlock, kBlock, &random);
  stored.Damage(kHeader + 5);
  for (const bool cached : {false, true}) {
    const auto file = stored.Open(cached);
    Wanted first{kHeader, {1000, kBlock}, {{0, 0}, {1, kBlock}}};
    Wanted last{kHeader, {1000, kBlock}, {{999, 0}, {1, kBlock}}};
    FileReads reads = stored.Reads(file.get(), {first.Target(0), last.Target(1)});
    ReadFilesOptions options = Named(0);
    options.threads = 1;  // In file order, so the damage comes first.
    const ReadOutcome outcome = ReadFiles({&reads, 1}, 3, pool, options);
    EXPECT_FALSE(outcome.status.ok());
    EXPECT_FALSE(outcome.touched[1]);
    EXPECT_EQ(last.memory, std::string(kBlock, '\0'));
    EXPECT_FALSE(outcome.touched[2]) << "has no targets";
    EXPECT_EQ(outcome.touched[0], first.memory != std::string(kBlock, '\0'));
  }
}

TEST(ReadFiles, ReadsSeveralFiles) {
  Random random(6);
  const test::TempDir dir;
  BufferPool pool(0);
  std::vector<std::unique_ptr<StoredFile>> stored;
  std::vector<std::unique_ptr<ChosenWayFile>> files;
  std::vector<Wanted> wanted(5);
  std::vector<FileReads> reads;
  for (std::uint32_t f = 0; f < 5; ++f) {
    stored.push_back(
        std::make_unique<StoredFile>(dir / std::to_string(f), 3 * kBlock + f, kBlock, &random));
    files.push_back(stored.back()->Open(f % 2 == 0));
    wanted[f] = {kHeader, {1, 3 * kBlock + f}, {{0, 1}, {1, 3 * kBlock - 1 + f}}};
    reads.push_back(stored.back()->Reads(files.back().get(), {wanted[f].Target(f)}));
  }
  ASSERT_TRUE(IsOk(ReadFiles(reads, 5, pool, Named()).status));
  for (std::size_t f = 0; f < 5; ++f) {
    EXPECT_TRUE(wanted[f].memory == wanted[f].Want(stored[f]->content()));
  }
}

TEST(ReadFiles, ReportsAFileThatIsShorterThanItShouldBe) {
  Random random(7);
  const test::TempDir dir;
  BufferPool pool(0);
  StoredFile stored(dir / "data", 4 * kBlock, kBlock, &random);
  for (const bool cached : {false, true}) {
    const auto file = stored.Open(cached);
    std::filesystem::resize_file(dir / "data", kHeader + 2 * kBlock);
    Wanted wanted{kHeader, {4, kBlock}, {{0, 0}, {4, kBlock}}};
    FileReads reads = stored.Reads(file.get(), {wanted.Target(0)});
    EXPECT_TRUE(FailsWith(ReadFiles({&reads, 1}, 1, pool, Named()).status, StatusCode::kDataLoss));
  }
}

TEST(ReadFiles, StopsOnRequest) {
  Random random(8);
  const test::TempDir dir;
  BufferPool pool(0);
  StoredFile stored(dir / "data", 4 * kBlock, kBlock, &random);
  const auto file = stored.Open(true);
  Wanted wanted{kHeader, {4, kBlock}, {{0, 0}, {4, kBlock}}};
  FileReads reads = stored.Reads(file.get(), {wanted.Target(0)});
  std::stop_source stop;
  stop.request_stop();
  ReadFilesOptions options = Named();
  options.stop = stop.get_token();
  const ReadOutcome outcome = ReadFiles({&reads, 1}, 1, pool, options);
  EXPECT_TRUE(FailsWith(outcome.status, StatusCode::kCancelled));
  EXPECT_EQ(outcome.touched, std::vector<bool>{false});
}

TEST(CheckBlocks, NamesEveryDamagedBlock) {
  Random random(9);
  const test::TempDir dir;
  BufferPool pool(0);
  StoredFile stored(dir / "data", 2000 * kBlock + 7, kBlock, &random);
  const auto damaged = [&] {
    const auto file = stored.Open(false);
    std::vector<ByteRange> ranges;
    std::atomic<std::uint64_t> read{0};
    EXPECT_TRUE(IsOk(CheckBlocks(
        *file, stored.geometry(), stored.crcs(), pool, 3,
        [&](ByteRange range, std::uint32_t want, std::uint32_t got) {
          EXPECT_NE(want, got);
          ranges.push_back(range);
        },
        [&](std::uint64_t bytes) { read += bytes; })));
    EXPECT_EQ(read, 2000 * kBlock + 7);
    std::sort(ranges.begin(), ranges.end(),
              [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
    return ranges;
  };
  EXPECT_TRUE(damaged().empty());
  stored.Damage(kHeader);
  stored.Damage(kHeader + 1500 * kBlock - 1);
  stored.Damage(kHeader + 2000 * kBlock + 6);
  const std::uint64_t end = kHeader + 2000 * kBlock;
  EXPECT_EQ(damaged(), (std::vector<ByteRange>{{kHeader, kHeader + kBlock},
                                               {kHeader + 1499 * kBlock, kHeader + 1500 * kBlock},
                                               {end, end + 7}}));
}

}  // namespace
}  // namespace varve::file_reader_test
