/// Small states made in a line each, and functions that change a checkpoint's files.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensor/box.h"
#include "varve/checkpoint.h"
#include "varve/value.h"

namespace varve::test {

/// The state of one process. Owns the memory of its tensors.
class SmallState {
 public:
  /// Adds a whole tensor; `values` are its elements in row-major order.
  template <class T>
  SmallState& Tensor(const std::string& fqn, DType dtype, const Dims& shape,
                     const std::vector<T>& values) {
    std::string& memory = memory_.emplace_back(values.size() * sizeof(T), '\0');
    std::memcpy(memory.data(), values.data(), memory.size());
    state_.tensors.push_back({fqn, dtype, shape, WholeBox(shape), HostMemory{memory.data()}});
    return *this;
  }
  /// Adds a float32 tensor of one dimension.
  SmallState& Floats(const std::string& fqn, const std::vector<float>& values) {
    return Tensor(fqn, DType::kFloat32, {values.size()}, values);
  }
  SmallState& Object(const std::string& fqn, const Value& value) {
    state_.objects.push_back({fqn, EncodeValue(value)});
    return *this;
  }
  SmallState& Structure(const Value& structure) {
    state_.structure = EncodeValue(structure);
    return *this;
  }
  SmallState& File(const std::string& name, const std::string& content) {
    state_.files.push_back({name, content});
    return *this;
  }

  Status Save(Storage& storage, const std::string& path, const SaveOptions& options = {}) const {
    return varve::Save(state_, path, options, storage).status();
  }

 private:
  State state_;
  std::list<std::string> memory_;  // Strings whose addresses stay.
};

/// Replaces the content of a file.
inline Status Rewrite(Storage& storage, const std::string& path, std::string_view content) {
  return WriteWholeFile(storage, path, content, false);
}

/// Flips a bit of the byte at `at`; of the last byte when that is beyond the end.
inline Status Damage(Storage& storage, const std::string& path,
                     std::size_t at = std::string::npos) {
  VARVE_ASSIGN_OR_RETURN(std::string content, ReadWholeFile(storage, path, 1U << 30U));
  content[std::min(at, content.size() - 1)] ^= 1;
  return Rewrite(storage, path, content);
}

}  // namespace varve::test
