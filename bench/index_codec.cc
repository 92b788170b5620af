// Encodes and decodes the index of a DCP checkpoint of many chunks, and prints what it takes as one
// JSON line: the engine's arm of the scenario `index`.
//
//   index_codec encode DIR RANKS TENSORS   writes DIR/.metadata; every rank has a chunk of each
//                                          tensor. Data files are as long as it says, and hollow.
//   index_codec decode DIR                 opens DIR

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

#include <sys/resource.h>

#include "save/dcp_index.h"
#include "varve/checkpoint.h"

namespace {

constexpr std::uint64_t kChunkBytes = 1 << 20;
constexpr std::uint64_t kRows = 256;
constexpr std::uint64_t kItemBytes = kChunkBytes + 4096;

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "index_codec: %s\n", message.c_str());
  std::exit(1);
}

struct Usage {
  double cpu_seconds = 0;
  std::uint64_t peak_bytes = 0;
};

/// Returns the peak of this program alone: getrusage would include its parent's memory before exec.
std::uint64_t PeakBytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  std::uint64_t kib = 0;
  while (status >> word) {
    if (word == "VmHWM:") {
      status >> kib;
    }
  }
  return kib * 1024;
}

Usage UsageNow() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return {seconds(usage.ru_utime) + seconds(usage.ru_stime), PeakBytes()};
}

template <class Action>
void Timed(const Action& action) {
  const Usage before = UsageNow();
  const auto begin = std::chrono::steady_clock::now();
  const std::uint64_t chunks = action();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  const Usage after = UsageNow();
  std::printf("{\"seconds\":%.6f,\"cpu_seconds\":%.6f,\"peak_bytes\":%llu,\"chunks\":%llu}\n",
              elapsed.count(), after.cpu_seconds - before.cpu_seconds,
              static_cast<unsigned long long>(after.peak_bytes),
              static_cast<unsigned long long>(chunks));
}

varve::Metadata MetadataOf(std::uint32_t ranks, std::uint32_t tensors) {
  varve::Metadata metadata;
  metadata.format = varve::Format::kDcp;
  metadata.world_size = ranks;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    varve::DataFile file;
    file.name = "__" + std::to_string(rank) + "_0.distcp";
    file.rank = rank;
    file.size = tensors * kItemBytes;
    metadata.files.push_back(std::move(file));
  }
  constexpr std::uint64_t kColumns = kChunkBytes / kRows / 4;
  for (std::uint32_t t = 0; t < tensors; ++t) {
    varve::TensorMetadata tensor;
    tensor.fqn = "model.layers." + std::to_string(1000000 + t) + ".mlp.weight";
    tensor.dtype = varve::DType::kFloat32;
    tensor.shape = {ranks * kRows, kColumns};
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      varve::Chunk chunk;
      chunk.box = {{rank * kRows, 0}, {kRows, kColumns}};
      chunk.extent = {rank, t * kItemBytes, (t + 1) * kItemBytes, varve::Encoding::kTorchItem};
      tensor.chunks.push_back(std::move(chunk));
    }
    metadata.tensors.push_back(std::move(tensor));
  }
  return metadata;
}

void Encode(const std::filesystem::path& directory, std::uint32_t ranks, std::uint32_t tensors) {
  const varve::Metadata metadata = MetadataOf(ranks, tensors);
  std::string index;
  Timed([&] {
    auto encoded = varve::EncodeDcpIndex(metadata);
    if (!encoded.ok()) {
      Fail(encoded.status().message());
    }
    index = std::move(*encoded);
    return std::uint64_t{ranks} * tensors;
  });
  std::filesystem::create_directories(directory);
  std::ofstream(directory / ".metadata", std::ios::binary) << index;
  for (const varve::DataFile& file : metadata.files) {
    std::ofstream{directory / file.name};
    std::filesystem::resize_file(directory / file.name, file.size);
  }
}

void Decode(const std::string& directory) {
  Timed([&] {
    auto reader = varve::CheckpointReader::Open(directory);
    if (!reader.ok()) {
      Fail(reader.status().message());
    }
    std::uint64_t chunks = 0;
    for (const varve::TensorMetadata& tensor : (*reader)->metadata().tensors) {
      chunks += tensor.chunks.size();
    }
    return chunks;
  });
}

std::uint32_t Number(std::string_view text) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || number == 0) {
    Fail(std::string(text) + " is not a count");
  }
  return number;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view mode = argc > 1 ? argv[1] : "";
  if (mode == "encode" && argc == 5) {
    Encode(argv[2], Number(argv[3]), Number(argv[4]));
  } else if (mode == "decode" && argc == 3) {
    Decode(argv[2]);
  } else {
    Fail("want: encode DIR RANKS TENSORS | decode DIR");
  }
  return 0;
}
