/// Reproducible choices for property tests: the same seed gives the same case on every machine.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "varve/tensor.h"

namespace varve::test {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  /// Returns a number from 0 to `end` - 1. The standard's distributions differ between libraries;
  /// this does not.
  std::uint64_t Below(std::uint64_t end) { return engine_() % end; }
  /// Returns a number from `low` to `high`, both included.
  std::uint64_t Between(std::uint64_t low, std::uint64_t high) {
    return low + Below(high - low + 1);
  }
  bool OneIn(std::uint64_t n) { return Below(n) == 0; }

  template <class T>
  void Shuffle(std::vector<T>* items) {
    for (std::size_t i = items->size(); i > 1; --i) {
      std::swap((*items)[i - 1], (*items)[Below(i)]);
    }
  }

  /// Returns that many bytes, whole words at a time: in a build with sanitizers that takes a tenth.
  std::string Bytes(std::size_t size) {
    std::string bytes(size, '\0');
    for (std::size_t i = 0; i < size; i += sizeof(std::uint64_t)) {
      const std::uint64_t word = engine_();
      std::memcpy(bytes.data() + i, &word, std::min(sizeof(word), size - i));
    }
    return bytes;
  }

  /// Returns a shape with each size from `low` to `high`.
  Dims Shape(std::size_t rank, std::uint64_t low, std::uint64_t high) {
    Dims shape(rank);
    for (std::uint64_t& size : shape) {
      size = Between(low, high);
    }
    return shape;
  }

  /// Returns a box inside `shape`; empty ones only if `shape` is or `may_be_empty`.
  Box BoxIn(const Dims& shape, bool may_be_empty = false) {
    Box box{Dims(shape.size()), Dims(shape.size())};
    for (std::size_t d = 0; d < shape.size(); ++d) {
      const std::uint64_t least = may_be_empty || shape[d] == 0 ? 0 : 1;
      box.sizes[d] = Between(least, shape[d]);
      box.offsets[d] = Below(shape[d] - box.sizes[d] + 1);
    }
    return box;
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace varve::test
