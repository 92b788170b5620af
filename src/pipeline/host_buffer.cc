#include "pipeline/host_buffer.h"

#include <algorithm>
#include <cerrno>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include "base/checked.h"
#include "base/checksum.h"
#include "pipeline/device_fetch.h"
#include "pipeline/huge_pages.h"
#include "pipeline/run_threads.h"
#include "tensor/box.h"
#include "tensor/region.h"

namespace varve {
namespace {

// Bytes of one job: enough to make its cost negligible, few enough to share evenly.
constexpr std::uint64_t kPieceBytes = std::uint64_t{4} << 20;
constexpr int kMostThreads = 8;

/// The work of one job: several small copies, or a piece of a large one.
struct CopyJob {
  std::size_t first = 0;
  std::size_t count = 0;  // Copies; for one copy, a piece of it:
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

std::vector<CopyJob> JobsOf(std::span<const HostCopy> copies) {
  std::vector<CopyJob> jobs;
  std::uint64_t together = 0;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const std::uint64_t bytes = copies[i].bytes;
    if (bytes >= kPieceBytes) {
      for (std::uint64_t at = 0; at < bytes; at += kPieceBytes) {
        jobs.push_back({i, 1, at, std::min(at + kPieceBytes, bytes)});
      }
      together = 0;
      continue;
    }
    if (together == 0 || together + bytes > kPieceBytes) {
      jobs.push_back({i, 0, 0, 0});
      together = 0;
    }
    ++jobs.back().count;
    jobs.back().end = copies[jobs.back().first].bytes;
    together += std::max<std::uint64_t>(bytes, 1);
  }
  return jobs;
}

/// Returns the memory of a copy whose elements do not lie in order; nothing for bytes.
std::optional<Region> StridedSource(const HostCopy& copy) {
  if (copy.strides.empty() || copy.bytes == 0) {
    return std::nullopt;
  }
  const Box box = WholeBox(copy.sizes);
  auto* const data = static_cast<std::byte*>(const_cast<void*>(copy.source));
  return Region(box, {data, box, copy.strides, copy.item}, box);
}

Status CheckCopy(const HostCopy& copy, std::uint64_t size) {
  if (copy.at > size || copy.bytes > size - copy.at) {
    return InvalidArgument("a copy of " + std::to_string(copy.bytes) + " bytes to " +
                           std::to_string(copy.at) + " does not fit into " + std::to_string(size));
  }
  if (!copy.strides.empty() &&
      (copy.item == 0 || copy.bytes % copy.item != 0 || copy.strides.size() != copy.sizes.size() ||
       CheckedProduct(copy.sizes) != copy.bytes / copy.item)) {
    return InvalidArgument("a copy of " + std::to_string(copy.bytes) +
                           " bytes has the sizes of another tensor");
  }
  return Status::Ok();
}

std::string NamesOf(std::span<const HostCopy> copies) {
  return copies.size() == 1
             ? "tensor \"" + copies.front().name + "\""
             : "tensors \"" + copies.front().name + "\" to \"" + copies.back().name + "\"";
}

/// Copies bytes [begin, end) of a copy to `out`, or adds moves that do.
void CopyPart(const HostCopy& copy, std::uint64_t begin, std::span<std::byte> out,
              std::vector<DeviceMove>* moves) {
  const std::optional<Region> strided = StridedSource(copy);
  const auto* const source = static_cast<const std::byte*>(copy.source) + begin;
  if (strided && copy.device) {
    AppendMoves(*strided, copy.device->number, begin, out, moves);
  } else if (strided) {
    strided->CopyFromMemory(begin, out);
  } else if (copy.device) {
    DeviceMove move;
    move.device = copy.device->number;
    move.on_device = const_cast<std::byte*>(source);
    move.on_host = out.data();
    move.row_bytes = out.size();
    moves->push_back(move);
  } else {
    StreamCopy({source, out.size()}, out.data());
  }
}

}  // namespace

Result<std::unique_ptr<HostBuffer>> HostBuffer::Make(std::uint64_t bytes) {
  const std::uint64_t size = RoundUp(std::max<std::uint64_t>(bytes, 1), kHugePageBytes);
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (size < bytes || data == MAP_FAILED) {
    return Status(StatusCode::kOutOfSpace,
                  "no memory for a copy of " + std::to_string(bytes) + " bytes")
        .With({.system_error = ENOMEM});
  }
  ::madvise(data, size, MADV_HUGEPAGE);
  ::madvise(data, size, MADV_DONTFORK);
  return std::unique_ptr<HostBuffer>(new HostBuffer(static_cast<std::byte*>(data), size));
}

HostBuffer::~HostBuffer() {
  if (devices_ != nullptr) {
    devices_->Unregister(data_);
  }
  ::munmap(data_, size_);
}

/// Registers the buffer, and orders the copies behind what is queued on the devices.
Status HostBuffer::PrepareForDevices(std::span<const HostCopy> copies) {
  std::set<std::pair<int, void*>> seen;
  for (const HostCopy& copy : copies) {
    if (!copy.device || !seen.emplace(copy.device->number, copy.device->stream).second) {
      continue;
    }
    if (devices_ == nullptr) {
      VARVE_ASSIGN_OR_RETURN(devices_, CudaDevices::Get());
      // Where the driver refuses, copies are slower.
      (void)devices_->Register(copy.device->number, {data_, size_});
    }
    VARVE_RETURN_IF_ERROR(
        devices_->After(Direction::kToHost, copy.device->number, copy.device->stream));
  }
  return Status::Ok();
}

Status HostBuffer::CopyIn(std::span<const HostCopy> copies, int threads) {
  for (const HostCopy& copy : copies) {
    VARVE_RETURN_IF_ERROR(CheckCopy(copy, size_));
  }
  VARVE_RETURN_IF_ERROR(PrepareForDevices(copies));
  const std::vector<CopyJob> jobs = JobsOf(copies);
  const int cores =
      std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMostThreads);
  return RunThreads(jobs.size(), threads > 0 ? threads : cores, {}, [&](std::size_t t) -> Status {
    const CopyJob& job = jobs[t];
    std::vector<DeviceMove> moves;
    for (std::size_t i = job.first; i < job.first + job.count; ++i) {
      const HostCopy& copy = copies[i];
      const std::uint64_t begin = job.count == 1 ? job.begin : 0;
      const std::uint64_t end = job.count == 1 ? job.end : copy.bytes;
      CopyPart(copy, begin, {data_ + copy.at + begin, end - begin}, &moves);
    }
    if (moves.empty()) {
      return Status::Ok();
    }
    return devices_->Move(Direction::kToHost, moves)
        .Annotate(NamesOf(copies.subspan(job.first, job.count)));
  });
}

std::string DeviceProblem() {
  const auto devices = CudaDevices::Get();
  return devices.ok() ? std::string() : devices.status().message();
}

}  // namespace varve
