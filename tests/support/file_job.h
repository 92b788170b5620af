/// Segments of a file with the memory behind them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/checksum.h"
#include "pipeline/file_writer.h"
#include "support/random.h"
#include "tensor/box.h"

namespace varve::test {

/// Segments with the memory behind them, and the bytes they should become.
struct FileJob {
  std::vector<std::unique_ptr<std::string>> memory;  // Addresses must not move.
  std::vector<FileSegment> segments;
  std::string image;
  std::vector<Hash128> contents;

  void AddLiteral(std::string bytes) {
    image += bytes;
    memory.push_back(std::make_unique<std::string>(std::move(bytes)));
    segments.push_back({memory.back()->size(), AsByteSpan(*memory.back()), std::nullopt});
  }

  /// Adds a row-major chunk whose memory is transposed if `strided`.
  void AddTensor(const Dims& shape, std::uint64_t item, bool strided, Random* random) {
    const std::string bytes = random->Bytes(Volume(shape) * item);
    auto source = std::make_unique<std::string>(bytes);
    Strides strides = RowMajorStrides(shape);
    if (strided) {
      strides = {1, static_cast<std::int64_t>(shape[0])};
      for (std::uint64_t i = 0; i < shape[0]; ++i) {
        for (std::uint64_t j = 0; j < shape[1]; ++j) {
          source->replace((j * shape[0] + i) * item, item, bytes, (i * shape[1] + j) * item, item);
        }
      }
    }
    const Box box = WholeBox(shape);
    const StridedMemory from{reinterpret_cast<std::byte*>(source->data()), box, strides, item};
    memory.push_back(std::move(source));
    segments.push_back({bytes.size(), {}, Region(box, from, box)});
    image += bytes;
    contents.push_back(Xxh3(AsByteSpan(bytes)));
  }

  [[nodiscard]] std::vector<std::uint32_t> Crcs(std::uint64_t block_bytes) const {
    std::vector<std::uint32_t> crcs;
    for (std::uint64_t at = 0; at < image.size(); at += block_bytes) {
      crcs.push_back(Crc32c(AsByteSpan(std::string_view(image).substr(at, block_bytes))));
    }
    return crcs;
  }
};

/// Returns tensors small and large, packed and strided, values and an empty one.
inline FileJob MixedFileJob(Random* random) {
  FileJob job;
  job.AddTensor({3, 5}, 16, true, random);
  job.AddTensor({700, 1100}, 8, true, random);
  job.AddTensor({4'000'000}, 4, false, random);  // Crosses pool blocks.
  job.AddTensor({1}, 2, false, random);
  job.AddTensor({999, 77}, 1, true, random);
  job.AddLiteral("an encoded value");
  job.AddLiteral("");
  job.AddLiteral(random->Bytes(10'001));
  return job;
}

}  // namespace varve::test
