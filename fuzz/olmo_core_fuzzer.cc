// DecodeCoreMetadata, ReadCoreFile and the merges. The first line of the input is metadata.json,
// each further one the header of a rank's file. All files have the same data: a count of groups and
// two pickles, so that an optimizer's state can be read from them.

#include <algorithm>

#include "base/bytes.h"
#include "disjoint.h"
#include "fuzz_target.h"
#include "interop/olmo/core.h"
#include "tensor/box.h"

namespace varve::olmo_core_fuzzer {
namespace {

constexpr std::uint32_t kMaxRanks = 4;

/// Bytes [0, 8) are the number 1, [8, 63) a group of one parameter, [63, 80) a list of one key, and
/// what follows are zeros to byte 256.
std::string Data() {
  constexpr std::string_view kGroup(
      "\x80\x02}(X\x06\0\0\0params]K\0aX\x0c\0\0\0_param_names]X\x01\0\0\0waX\x02\0\0\0lrK\x01u.",
      55);
  constexpr std::string_view kKeys("\x80\x02]X\x07\0\0\0exp_avga.", 17);
  std::string data("\x01\0\0\0\0\0\0\0", 8);
  data += kGroup;
  data += kKeys;
  data.resize(256);
  return data;
}

std::string_view TakeLine(std::string_view* input) {
  const std::size_t end = std::min(input->find('\n'), input->size());
  const std::string_view line = input->substr(0, end);
  input->remove_prefix(std::min(end + 1, input->size()));
  return line;
}

std::string FileOf(std::string_view header) {
  Bytes file;
  ByteWriter(&file).U64(header.size());
  return std::string(file.data(), file.size()) + std::string(header) + Data();
}

void CheckState(StateNode state, const std::vector<std::string>& files) {
  Decoded decoded;
  if (!FlattenState(std::move(state), &decoded).ok()) {
    return;
  }
  for (const TensorMetadata& tensor : decoded.metadata.tensors) {
    std::vector<Box> boxes;
    for (const Chunk& chunk : tensor.chunks) {
      VARVE_FUZZ_CHECK(CheckBox(tensor.shape, chunk.box, ItemSize(tensor.dtype)).ok());
      VARVE_FUZZ_CHECK(chunk.extent.end <= files[chunk.extent.file].size());
      VARVE_FUZZ_CHECK(chunk.extent.end - chunk.extent.begin ==
                       Volume(chunk.box.sizes) * ItemSize(tensor.dtype));
      boxes.push_back(chunk.box);
    }
    VARVE_FUZZ_CHECK(fuzz::AreDisjoint(boxes));
  }
  for (const std::string& value : decoded.inline_values) {
    VARVE_FUZZ_CHECK(DecodeValue(value).ok());
  }
}

}  // namespace

VARVE_FUZZ_TARGET(olmo_core) {
  std::string_view rest = input;
  const auto layout = DecodeCoreMetadata(TakeLine(&rest));
  if (!layout.ok()) {
    return;
  }
  std::vector<std::string> contents;
  FileNames names;
  CoreFiles files;
  while (!rest.empty() && contents.size() < kMaxRanks) {
    const auto rank = static_cast<std::uint32_t>(contents.size());
    contents.push_back(FileOf(TakeLine(&rest)));
    names.push_back("rank_" + std::to_string(rank) + ".safetensors");
    const std::string& content = contents.back();
    const RangeReader read = [&](std::uint64_t begin, std::uint64_t size) {
      VARVE_FUZZ_CHECK(begin <= content.size() && size <= content.size() - begin);
      return ReadFrom(content)(begin, size);
    };
    auto file = ReadCoreFile({names.back(), content.size(), read}, rank, *layout);
    if (!file.ok()) {
      return;
    }
    files.ranks.push_back(*std::move(file));
  }
  if (layout->ranks > files.ranks.size()) {
    return;  // Files are missing.
  }
  const ExtentReader read = [&](std::uint32_t file, std::uint64_t begin, std::uint64_t end) {
    VARVE_FUZZ_CHECK(begin <= end && end <= contents[file].size());
    return ReadFrom(contents[file])(begin, end - begin);
  };
  const ReplicaCheck check(names, {}, read);
  if (auto model = MergeCoreModel(*layout, files, check); model.ok()) {
    CheckState(*std::move(model), contents);
  }
  if (auto optim = MergeCoreOptimizer(*layout, files, check, read); optim.ok()) {
    CheckState(*std::move(optim), contents);
  }
}

}  // namespace varve::olmo_core_fuzzer
