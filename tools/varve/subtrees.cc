#include "subtrees.h"

#include <map>

#include "varve/catalogue.h"

namespace varve::cli {
namespace {

constexpr std::size_t kMostRows = 100;

struct Natural {
  bool operator()(const std::string& a, const std::string& b) const { return NaturalLess(a, b); }
};

/// Returns the first `parts` parts of a name; empty where it has no more than these.
std::string Prefix(const std::string& name, int parts) {
  std::size_t end = 0;
  for (int part = 0; part < parts; ++part) {
    end = name.find_first_of("./", part == 0 ? 0 : end + 1);
    if (end == std::string::npos) {
      return {};
    }
  }
  return name.substr(0, end);
}

std::vector<Subtree> SubtreesOf(const Metadata& metadata, int parts_at_most) {
  std::map<std::string, Subtree, Natural> found;
  for (const TensorMetadata& tensor : metadata.tensors) {
    for (int parts = 1; parts <= parts_at_most; ++parts) {
      const std::string name = Prefix(tensor.fqn, parts);
      if (name.empty()) {
        continue;
      }
      Subtree& subtree = found[name];
      subtree.name = name;
      ++subtree.tensor_count;
      subtree.bytes += StoredBytes(tensor);
    }
  }
  std::vector<Subtree> subtrees;
  for (auto& [name, subtree] : found) {
    if (subtree.tensor_count > 1) {  // One tensor is in the table of tensors.
      subtrees.push_back(std::move(subtree));
    }
  }
  return subtrees;
}

}  // namespace

std::uint64_t StoredBytes(const TensorMetadata& tensor) {
  std::uint64_t bytes = 0;
  for (const Chunk& chunk : tensor.chunks) {
    std::uint64_t chunk_bytes = ItemSize(tensor.dtype);
    for (const std::uint64_t size : chunk.box.sizes) {
      chunk_bytes *= size;
    }
    bytes += chunk_bytes;
  }
  return bytes;
}

std::uint64_t StoredBytes(const Metadata& metadata) {
  std::uint64_t bytes = 0;
  for (const TensorMetadata& tensor : metadata.tensors) {
    bytes += StoredBytes(tensor);
  }
  return bytes;
}

std::vector<Subtree> Subtrees(const Metadata& metadata) {
  auto subtrees = SubtreesOf(metadata, 2);
  return subtrees.size() <= kMostRows ? subtrees : SubtreesOf(metadata, 1);
}

}  // namespace varve::cli
