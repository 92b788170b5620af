#include "format/chunk_grid.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/random.h"
#include "tensor/box.h"

namespace varve::chunk_grid_test {
namespace {

using test::Random;

/// Returns the chunks of a tensor that is cut into cells, each in the file that `file_of` says.
template <class FileOf>
std::vector<Chunk> Cut(const Dims& shape, const Dims& cell, const FileOf& file_of) {
  const Cells cells = Cells::Of(shape, cell).value();
  std::vector<Chunk> chunks;
  for (std::uint32_t i = 0; i < cells.count(); ++i) {
    const Box box = cells.BoxOf(i);
    const auto [file, begin] = file_of(i);
    Chunk& chunk = chunks.emplace_back(Chunk{box, {file, begin, begin + 4 * Volume(box.sizes)}});
    chunk.content.bytes = {1, static_cast<std::uint8_t>(i), static_cast<std::uint8_t>(i >> 8)};
  }
  return chunks;
}

ChunkList Collect(const Dims& shape, const std::vector<Chunk>& chunks) {
  ChunkCollector collector(shape, DType::kFloat32);
  for (const Chunk& chunk : chunks) {
    collector.Add(chunk);
  }
  return collector.Take();
}

TEST(Cells, TileAShapeInTheOrderOfTheirOffsets) {
  const auto cells = Cells::Of({5, 3}, {2, 3});
  ASSERT_TRUE(cells.has_value());
  EXPECT_EQ(cells->count(), 3U);
  EXPECT_EQ(cells->BoxOf(0), (Box{{0, 0}, {2, 3}}));
  EXPECT_EQ(cells->BoxOf(2), (Box{{4, 0}, {1, 3}}));
  EXPECT_EQ(Cells::Of({}, {})->count(), 1U) << "the one element of a 0-d tensor";
}

TEST(Cells, AreNoneWhereTheSizeIsNoSizeOfACell) {
  EXPECT_FALSE(Cells::Of({5, 3}, {0, 3}));
  EXPECT_FALSE(Cells::Of({5, 3}, {6, 3}));
  EXPECT_FALSE(Cells::Of({0, 3}, {0, 3}));
  EXPECT_FALSE(Cells::Of({1U << 17, 1U << 17}, {1, 1})) << "more than a number of a chunk can be";
}

TEST(AddPlace, MakesOneRunOfFilesInStep) {
  std::vector<ChunkRun> runs;
  for (const std::uint32_t file : {3, 5, 7, 9}) {
    AddPlace(file, 4096, 0, &runs);
  }
  EXPECT_EQ(runs, (std::vector<ChunkRun>{{4, 4096, 3, 2}}));
  AddPlace(10, 4096, 0, &runs);
  AddPlace(9, 4096, 0, &runs);
  AddPlace(8, 4096, 0, &runs);
  AddPlace(7, 8192, 0, &runs);
  EXPECT_EQ(runs, (std::vector<ChunkRun>{{4, 4096, 3, 2}, {7, 4096, 10, -1}, {8, 8192, 7, 0}}));
  AddPlace(9, 8192, runs.size(), &runs);  // Of the next tensor.
  EXPECT_EQ(runs.back(), (ChunkRun{1, 8192, 9, 0}));
}

TEST(AddPlace, FilesTooFarApartAreRunsOfTheirOwn) {
  std::vector<ChunkRun> runs;
  AddPlace(0, 4096, 0, &runs);
  AddPlace(0xFFFFFFFF, 4096, 0, &runs);
  EXPECT_EQ(runs, (std::vector<ChunkRun>{{1, 4096, 0, 0}, {2, 4096, 0xFFFFFFFF, 0}}));
}

TEST(ChunkCollector, KeepsAShardOfEachRankAsOneRun) {
  const auto chunks =
      Cut({1024, 8}, {2, 8}, [](std::uint32_t i) { return std::pair(i, std::uint64_t{4096}); });
  const ChunkList list = Collect({1024, 8}, chunks);
  ASSERT_NE(list.grid(), nullptr);
  EXPECT_EQ(list.grid()->runs.size(), 1U);
  EXPECT_EQ(list, ChunkList(chunks));
}

// Sharded by columns over the first dimension of a mesh of 2 x 3 ranks and by rows over the second:
// chunks come in another order than that of their offsets.
TEST(ChunkCollector, FindsTheGridOfAMeshWhoseRanksGoAnotherWay) {
  const auto chunks = Cut({6, 4}, {2, 2}, [](std::uint32_t i) {
    return std::pair(i % 2 * 3 + i / 2, std::uint64_t{4096});
  });
  std::vector<Chunk> by_rank = chunks;
  std::sort(by_rank.begin(), by_rank.end(),
            [](const Chunk& a, const Chunk& b) { return a.extent.file < b.extent.file; });
  const ChunkList list = Collect({6, 4}, by_rank);
  ASSERT_NE(list.grid(), nullptr);
  EXPECT_EQ(list, ChunkList(chunks));
}

TEST(ChunkCollector, GivesBackWhatItGotWhateverThatWas) {
  Random random(7);
  for (int turn = 0; turn < 500; ++turn) {
    const Dims shape{random.Between(1, 12), random.Between(1, 12)};
    const Dims cell{random.Between(1, shape[0]), random.Between(1, shape[1])};
    std::vector<Chunk> chunks = Cut(shape, cell, [&](std::uint32_t i) {
      return std::pair(static_cast<std::uint32_t>(random.Below(3) == 0 ? random.Below(9) : i),
                       4096 + 4 * random.Below(2));
    });
    const std::uint64_t kind = random.Below(5);
    const std::size_t odd = random.Below(chunks.size());
    if (kind == 0) {  // A hole, as in metadata that CheckTiling will refuse.
      chunks.erase(chunks.begin() + static_cast<std::ptrdiff_t>(odd));
    } else if (kind == 1 && chunks[odd].box.sizes[0] > 1) {  // A box in two.
      Chunk second = chunks[odd];
      second.box.offsets[0] += 1;
      second.box.sizes[0] -= 1;
      second.extent.begin += 4 * second.box.sizes[1];
      chunks[odd].box.sizes[0] = 1;
      chunks[odd].extent.end = second.extent.begin;
      chunks.push_back(second);
      SortByOffsets(&chunks);
    } else if (kind == 2) {
      chunks[odd].conj = true;
    }
    std::vector<Chunk> added = chunks;
    if (random.Below(2) == 0) {
      random.Shuffle(&added);
    }
    ChunkList list = Collect(shape, added);
    ASSERT_EQ(list, ChunkList(chunks)) << "turn " << turn;
    ASSERT_EQ(list.size(), chunks.size());
    const Box box{{random.Below(shape[0]), random.Below(shape[1])}, {1, 1}};
    const Box wide{{0, box.offsets[1]}, {shape[0], random.Between(1, shape[1] - box.offsets[1])}};
    for (const Box& wanted : {box, wide, Box{{0, 0}, {0, 0}}}) {
      std::vector<std::uint32_t> found;
      list.AddOverlapping(wanted, &found);
      std::vector<std::uint32_t> want;
      for (std::uint32_t i = 0; i < chunks.size(); ++i) {
        if (Intersect(chunks[i].box, wanted)) {
          want.push_back(i);
        }
      }
      ASSERT_EQ(found, want) << "turn " << turn;
    }
    const ChunkList copy = list;
    ASSERT_EQ(list.Listed(), chunks);
    list.Listed().clear();
    ASSERT_EQ(copy, ChunkList(chunks)) << "a change of a copy";
  }
}

TEST(CellsOf, AreFoundInListsAndGridsAlike) {
  const auto place = [](std::uint32_t i) { return std::pair(i, std::uint64_t{4096}); };
  const std::vector<Chunk> chunks = Cut({10}, {2}, place);
  const ChunkList grid = Collect({10}, chunks);
  ASSERT_NE(grid.grid(), nullptr);
  for (const ChunkList& list : {ChunkList(chunks), grid}) {
    const auto cells = CellsOf({10}, 4, list);
    ASSERT_TRUE(cells.has_value());
    EXPECT_EQ(cells->cell(), (Dims{2}));
  }
  const std::vector<Chunk> most(chunks.begin(), chunks.end() - 1);
  EXPECT_FALSE(CellsOf({10}, 4, ChunkList(most)));
  EXPECT_FALSE(CellsOf({10}, 4, Collect({10}, most)));
  EXPECT_FALSE(CellsOf({10}, 2, ChunkList(chunks))) << "chunks of other sizes than their boxes";
  EXPECT_FALSE(CellsOf({10}, 4, ChunkList()));
}

}  // namespace
}  // namespace varve::chunk_grid_test
