// The driver's modules and kernels. The only kernels are those of src/device/move_kernel.cc.

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "device/move_kernel.h"
#include "fake_cuda/state.h"

using namespace fake_cuda;  // NOLINT(google-build-using-namespace): the functions are C.

namespace {

using varve::MovePiece;
using varve::MoveTable;

__extension__ using Wide = __int128;  // Products of any members of a piece fit into it.

/// One of the two places that a piece moves elements between.
struct Side {
  std::uint64_t address;
  std::int64_t inner;
  std::int64_t outer;

  [[nodiscard]] std::uint64_t ElementAt(std::uint32_t number, const MovePiece& piece) const {
    // Unsigned, so that it wraps as the address of a device does.
    return address + number % piece.inner * static_cast<std::uint64_t>(inner) +
           number / piece.inner * static_cast<std::uint64_t>(outer);
  }
};

Side DeviceSide(const MovePiece& piece) {
  return {piece.device, piece.device_inner, piece.device_outer};
}
Side HostSide(const MovePiece& piece) { return {piece.host, piece.host_inner, piece.host_outer}; }

/// Bytes of memory that a piece touches.
struct Range {
  std::byte* first = nullptr;
  std::size_t bytes = 0;
};

/// Returns the smallest range with all elements of the piece on that side, or nothing if it is not
/// within the address space.
std::optional<Range> Touched(const MovePiece& piece, const Side& side) {
  const Wide inner = piece.inner;
  const Wide begin = piece.first;
  const Wide last = begin + piece.count - 1;
  Wide least = Wide{side.address} + begin % inner * side.inner + begin / inner * side.outer;
  Wide most = least;
  // Addresses are linear in row and column, so the corners of each rectangle have the extremes.
  const auto add_rows = [&](Wide first_row, Wide last_row, Wide first_column, Wide last_column) {
    for (const Wide row : {first_row, last_row}) {
      for (const Wide column : {first_column, last_column}) {
        const Wide at = Wide{side.address} + column * side.inner + row * side.outer;
        least = std::min(least, at);
        most = std::max(most, at);
      }
    }
  };
  const Wide first_row = begin / inner;
  const Wide last_row = last / inner;
  if (first_row == last_row) {
    add_rows(first_row, first_row, begin % inner, last % inner);
  } else {
    add_rows(first_row, first_row, begin % inner, inner - 1);
    add_rows(last_row, last_row, 0, last % inner);
  }
  if (last_row - first_row > 1) {
    add_rows(first_row + 1, last_row - 1, 0, inner - 1);
  }
  most += piece.item;
  if (least <= 0 || most > Wide{UINT64_MAX}) {
    return std::nullopt;
  }
  return Range{reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(least)),
               static_cast<std::size_t>(most - least)};
}

/// Where the two sides of a piece lie.
struct Place {
  std::shared_ptr<Allocation> memory;
  std::uintptr_t base = 0;  ///< Address of the allocation.
  Range host;
};

/// Returns whether every element of the piece lies in registered host memory.
bool HostRegistered(const MovePiece& piece, const Range& touched) {
  if (AllRegistered(touched.first, touched.bytes)) {
    return true;
  }
  // What lies between the elements does not matter.
  const Side host = HostSide(piece);
  for (std::uint32_t i = 0; i < piece.count; ++i) {
    const std::uint64_t at = host.ElementAt(piece.first + i, piece);
    if (!AllRegistered(reinterpret_cast<const std::byte*>(at), piece.item)) {
      return false;
    }
  }
  return true;
}

bool Aligned(const MovePiece& piece, const Side& side) {
  const std::int64_t item = piece.item;
  const bool uses_inner = piece.inner > 1 && std::uint64_t{piece.first} + piece.count > 1;
  const bool uses_outer = std::uint64_t{piece.first} + piece.count > piece.inner;
  return side.address % piece.item == 0 && (!uses_inner || side.inner % item == 0) &&
         (!uses_outer || side.outer % item == 0);
}

/// Returns 0 and the place of the piece if the kernel for elements of `item` bytes may run with it.
int CheckPiece(const MovePiece& piece, std::uint32_t item, int device, Place* place) {
  if (piece.item != item || piece.inner == 0 ||
      std::uint64_t{piece.first} + piece.count > UINT32_MAX || !Aligned(piece, DeviceSide(piece)) ||
      !Aligned(piece, HostSide(piece))) {
    return kInvalidValue;
  }
  if (piece.count == 0) {
    return 0;
  }
  const std::optional<Range> on_device = Touched(piece, DeviceSide(piece));
  const std::optional<Range> on_host = Touched(piece, HostSide(piece));
  if (!on_device) {
    return kInvalidValue;
  }
  std::size_t offset = 0;
  place->memory = Find(on_device->first, on_device->bytes, &offset);
  if (place->memory == nullptr || place->memory->device != device) {
    return kInvalidValue;
  }
  if (!on_host || !HostRegistered(piece, *on_host)) {
    return kIllegalAddress;
  }
  place->base = reinterpret_cast<std::uintptr_t>(on_device->first) - offset;
  place->host = *on_host;
  return 0;
}

template <std::size_t Item>
void RunPiece(const MovePiece& piece, bool to_host, const Place& place) {
  const Side device_side = DeviceSide(piece);
  const Side host_side = HostSide(piece);
  for (std::uint32_t i = 0; i < piece.count; ++i) {
    const std::uint32_t number = piece.first + i;
    std::byte* const device =
        place.memory->content.data() + (device_side.ElementAt(number, piece) - place.base);
    auto* const host = reinterpret_cast<std::byte*>(host_side.ElementAt(number, piece));
    std::memcpy(to_host ? host : device, to_host ? device : host, Item);
  }
}

void RunPiece(const MovePiece& piece, bool to_host, const Place& place) {
  switch (piece.item) {
    case 1: return RunPiece<1>(piece, to_host, place);
    case 2: return RunPiece<2>(piece, to_host, place);
    case 4: return RunPiece<4>(piece, to_host, place);
    case 8: return RunPiece<8>(piece, to_host, place);
    default: return RunPiece<16>(piece, to_host, place);
  }
}

struct Launch {
  MoveTable table;
  std::array<Place, MoveTable::kMost> places;
};

/// Runs the kernel; poisons the driver instead if host memory was unregistered after the launch.
void Run(const Launch& launch) {
  for (std::size_t i = 0; i < launch.table.count; ++i) {
    const MovePiece& piece = launch.table.pieces[i];
    if (piece.count == 0) {
      continue;
    }
    if (!HostRegistered(piece, launch.places[i].host)) {
      Poison(kIllegalAddress);
      return;
    }
    RunPiece(piece, launch.table.to_host != 0, launch.places[i]);
  }
}

}  // namespace

extern "C" {

FAKE_CUDA_API int cuModuleLoadData(void** module, const void* image) {
  const std::scoped_lock lock(g.mutex);
  const int error = BeginUnsafe("cuModuleLoadData");
  if (error != 0) {
    return error;
  }
  if (std::strstr(static_cast<const char*>(image), ".entry varve_move_") == nullptr) {
    return kInvalidPtx;
  }
  auto loaded = std::make_unique<Module>();
  loaded->device = t_current.back()->device;
  for (std::uint32_t i = 0; i < loaded->functions.size(); ++i) {
    loaded->functions[i] = {1U << i};
  }
  *module = loaded.get();
  g.modules.emplace(loaded.get(), std::move(loaded));
  ++g.counts.modules;
  return 0;
}

FAKE_CUDA_API int cuModuleGetFunction(void** function, void* module, const char* name) {
  const std::scoped_lock lock(g.mutex);
  const int error = BeginInContext("cuModuleGetFunction");
  const auto known = g.modules.find(static_cast<const Module*>(module));
  if (error != 0 || known == g.modules.end()) {
    return error != 0 ? error : kInvalidHandle;
  }
  for (Function& candidate : known->second->functions) {
    if (name == "varve_move_" + std::to_string(candidate.item)) {
      *function = &candidate;
      return 0;
    }
  }
  return kNotFound;
}

FAKE_CUDA_API int cuModuleUnload(void* module) {
  const std::scoped_lock lock(g.mutex);
  const int error = BeginInContext("cuModuleUnload");
  if (error != 0 && error != g.poison) {
    return error;
  }
  if (g.modules.erase(static_cast<const Module*>(module)) == 0) {
    return kInvalidHandle;
  }
  --g.counts.modules;
  return error;
}

FAKE_CUDA_API int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                 unsigned block_x, unsigned block_y, unsigned block_z,
                                 unsigned /*shared_bytes*/, void* stream, void** params,
                                 void** extra) {
  const std::scoped_lock lock(g.mutex);
  const int error = BeginInContext("cuLaunchKernel");
  if (error != 0) {
    return error;
  }
  const int device = t_current.back()->device;
  const auto* const kernel = static_cast<const Function*>(function);
  const auto has_kernel = [&](const auto& module) {
    const auto& all = module.second->functions;
    return std::any_of(all.begin(), all.end(), [&](const Function& f) { return &f == kernel; }) &&
           module.second->device == device;
  };
  Stream& on = StreamOf(stream, device);
  if (std::none_of(g.modules.begin(), g.modules.end(), has_kernel) || on.device() != device) {
    return kInvalidHandle;
  }
  const auto launch = std::make_shared<Launch>();
  MoveTable& table = launch->table;
  std::memcpy(&table, params[0], sizeof table);
  if (extra != nullptr || grid_x == 0 || grid_y != table.count || grid_z != 1 ||
      block_x != varve::kMoveThreads || block_y != 1 || block_z != 1 || table.count == 0 ||
      table.count > MoveTable::kMost) {
    return kInvalidValue;
  }
  Move move;
  move.kernel = true;
  for (std::size_t i = 0; i < table.count; ++i) {
    const MovePiece& piece = table.pieces[i];
    const int refused = CheckPiece(piece, kernel->item, device, &launch->places[i]);
    if (refused != 0) {
      return refused;
    }
    const std::size_t bytes = std::size_t{piece.count} * piece.item;
    move.parts.push_back({launch->places[i].host.first, bytes});
    move.bytes += bytes;
  }
  (table.to_host != 0 ? g.counts.to_registered : g.counts.from_registered) += move.bytes;
  move.work = [launch] { Run(*launch); };
  QueueMove(&on, std::move(move));
  return 0;
}

}  // extern "C"
