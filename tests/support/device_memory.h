/// Memory of fake devices and of the host, and moves between them with what they should make.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <sys/mman.h>

#include "device/device_move.h"
#include "support/fake_cuda.h"
#include "support/random.h"

namespace varve::test {

/// Memory of a fake device.
class OnDevice {
 public:
  OnDevice(int device, const std::string& content)
      : device_(device), bytes_(content.size()), memory_(fake_cuda_alloc(device, content.size())) {
    fake_cuda_poke(memory_, content.data(), content.size());
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { fake_cuda_free(memory_); }

  [[nodiscard]] int device() const { return device_; }
  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(memory_); }
  [[nodiscard]] std::string content() const {
    std::string content(bytes_, '\0');
    fake_cuda_peek(memory_, content.data(), bytes_);
    return content;
  }

 private:
  int device_;
  std::size_t bytes_;
  void* memory_;
};

/// Pages of the host.
class Pages {
 public:
  explicit Pages(std::size_t bytes)
      : bytes_(bytes),
        memory_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { ::munmap(memory_, bytes_); }

  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(memory_); }
  [[nodiscard]] std::span<std::byte> bytes() const { return {data(), bytes_}; }
  [[nodiscard]] std::string content() const { return {static_cast<char*>(memory_), bytes_}; }
  void Set(const std::string& content) const {
    std::memcpy(memory_, content.data(), content.size());
  }

 private:
  std::size_t bytes_;
  void* memory_;
};

/// Returns a run of bytes.
inline DeviceMove RunOf(int device, std::byte* on_device, std::byte* on_host, std::size_t bytes) {
  DeviceMove move;
  move.device = device;
  move.on_device = on_device;
  move.on_host = on_host;
  move.row_bytes = bytes;
  return move;
}

/// How a plane's rows lie in memory: in their order or transposed, apart by gaps.
struct RowSteps {
  std::int64_t inner = 0;
  std::int64_t outer = 0;
  std::uint64_t span = 0;  ///< Bytes from the first to the end of the last.
};

inline RowSteps AnySteps(std::uint64_t row_bytes, std::uint64_t inner, std::uint64_t outer,
                         std::uint64_t grain, Random* random) {
  const std::uint64_t row = row_bytes + (random->OneIn(2) ? 0 : random->Below(5) * grain);
  const std::uint64_t gap = random->OneIn(2) ? 0 : random->Below(9) * grain;
  const bool transposed = random->OneIn(2);
  const std::uint64_t step = row * (transposed ? outer : inner) + gap;
  const std::uint64_t inner_step = transposed ? step : row;
  const std::uint64_t outer_step = transposed ? row : step;
  return {static_cast<std::int64_t>(inner_step), static_cast<std::int64_t>(outer_step),
          (inner - 1) * inner_step + (outer - 1) * outer_step + row_bytes};
}

/// Returns moves of every kind between `on_device` and `on_host`, none of which touch the same
/// bytes: long runs, short ones at odd addresses, planes and parts of planes, straight and
/// transposed. Both sides need `kMovesBytes`.
inline constexpr std::size_t kMovesBytes = std::size_t{3} << 19;
inline std::vector<DeviceMove> AnyMoves(int device, std::byte* on_device, std::byte* on_host,
                                        Random* random) {
  std::vector<DeviceMove> moves;
  std::uint64_t device_at = 0;
  std::uint64_t host_at = 0;
  for (int i = 0; i < 12; ++i) {
    const std::uint64_t grain = std::uint64_t{1} << random->Below(5);
    const std::uint64_t inner = i < 2 ? 1 : random->Between(1, 40);
    const std::uint64_t outer = i < 2 ? 1 : random->Between(1, 20);
    const std::uint64_t longest = 40'000 / (grain * inner * outer) + 1;
    DeviceMove move;
    move.device = device;
    move.row_bytes = grain * (i < 2 ? 60'000 / grain : random->Between(1, longest));
    const RowSteps of_device = AnySteps(move.row_bytes, inner, outer, grain, random);
    const RowSteps of_host = AnySteps(move.row_bytes, inner, outer, grain, random);
    device_at = (device_at / grain + 1 + random->Below(20)) * grain;
    host_at = (host_at / grain + 1 + random->Below(20)) * grain;
    move.on_device = on_device + device_at;
    move.on_host = on_host + host_at;
    device_at += of_device.span;
    host_at += of_host.span;
    move.device_inner = of_device.inner;
    move.device_outer = of_device.outer;
    move.host_inner = of_host.inner;
    move.host_outer = of_host.outer;
    move.inner = inner;
    move.first = random->OneIn(2) ? 0 : random->Below(inner * outer);
    move.count = inner * outer - move.first - random->Below(inner * outer - move.first);
    moves.push_back(move);
  }
  random->Shuffle(&moves);
  return moves;
}

/// Makes the moves between strings that stand for the memory from these addresses on.
inline void MakeMoves(Direction direction, std::span<const DeviceMove> moves, std::string* device,
                      const std::byte* device_begin, std::string* host,
                      const std::byte* host_begin) {
  for (const DeviceMove& move : moves) {
    for (std::uint64_t i = move.first; i < move.first + move.count; ++i) {
      const auto inner = static_cast<std::int64_t>(i % move.inner);
      const auto outer = static_cast<std::int64_t>(i / move.inner);
      char* const on_device = device->data() + (move.on_device - device_begin) +
                              inner * move.device_inner + outer * move.device_outer;
      char* const on_host = host->data() + (move.on_host - host_begin) + inner * move.host_inner +
                            outer * move.host_outer;
      const bool out = direction == Direction::kToHost;
      std::memcpy(out ? on_host : on_device, out ? on_device : on_host, move.row_bytes);
    }
  }
}

}  // namespace varve::test
