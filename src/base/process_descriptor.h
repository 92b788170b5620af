/// A file descriptor that belongs to one process: its forked children do not keep it.
#pragma once

#include <cstdint>
#include <utility>

namespace varve {

/// Move-only; -1 when it holds none. A forked child closes all descriptors of this kind as it
/// begins. Its copies of these objects then close nothing. So a connection or a lock of the parent
/// ends with the parent and does not wait for its children.
/// Objects may be made, moved and destroyed on any thread; one object is for one thread at a time.
class ProcessDescriptor {
 public:
  ProcessDescriptor() = default;
  /// Takes over `fd`; -1 stands for none.
  explicit ProcessDescriptor(int fd);
  ProcessDescriptor(ProcessDescriptor&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), id_(std::exchange(other.id_, 0)) {}
  ProcessDescriptor& operator=(ProcessDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(id_, other.id_);
    return *this;
  }
  ProcessDescriptor(const ProcessDescriptor&) = delete;
  ProcessDescriptor& operator=(const ProcessDescriptor&) = delete;
  ~ProcessDescriptor() { Close(); }

  void Close();
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
  std::uint64_t id_ = 0;  // Of the registry of open ones; never used twice.
};

}  // namespace varve
