// Segments on a device are copied first, all of a block at once, and summed in host memory after
// they have arrived. Segments in host memory are copied and summed in one pass. So the pieces of a
// mixed block are still summed in file order.

#include "pipeline/segment_copier.h"

#include <algorithm>

#include "base/checksum.h"

namespace varve {
namespace {

// Strided memory is copied in steps that fit the cache, then summed.
constexpr std::uint64_t kStridedStepBytes = std::uint64_t{128} << 10;

/// Copies bytes [at, at + out.size()) of a segment and extends the checksum over them.
std::uint32_t CopyPart(std::uint32_t crc, const FileSegment& segment, std::uint64_t at,
                       std::span<std::byte> out) {
  if (segment.device) {
    return Crc32cExtend(crc, out);  // It has been copied already.
  }
  if (!segment.region) {
    return CopyAndCrc32c(crc, segment.literal.subspan(at, out.size()), out.data());
  }
  if (const auto source = segment.region->Contiguous(segment.begin + at, out.size())) {
    return StreamAndCrc32c(crc, *source, out.data());
  }
  while (!out.empty()) {
    const std::span<std::byte> step = out.first(std::min(out.size(), kStridedStepBytes));
    segment.region->CopyFromMemory(segment.begin + at, step);
    crc = Crc32cExtend(crc, step);
    at += step.size();
    out = out.subspan(step.size());
  }
  return crc;
}

}  // namespace

void AppendDeviceCopies(const FileSegment& segment, std::uint64_t at, std::span<std::byte> out,
                        std::vector<DeviceCopy>* copies) {
  at += segment.begin;
  if (const auto source = segment.region->Contiguous(at, out.size())) {
    copies->push_back({*segment.device, source->data(), out.data(), out.size()});
    return;
  }
  // A part of a shard: rows of it.
  std::uint64_t done = 0;
  segment.region->ForEachRun({at, at + out.size()}, [&](const Run& run) {
    const std::uint64_t item = segment.region->item_size();
    const bool whole = run.memory_step == static_cast<std::int64_t>(item);
    const std::uint64_t step = whole ? run.count * item : item;
    for (std::uint64_t i = 0; i < (whole ? 1 : run.count); ++i, done += step) {
      copies->push_back({*segment.device,
                         run.memory + static_cast<std::int64_t>(i) * run.memory_step,
                         out.data() + done, step});
    }
  });
}

std::size_t SegmentCopier::PartAt(std::uint64_t offset) const {
  const auto part = std::partition_point(parts_.begin(), parts_.end(),
                                         [&](const StagedPart& p) { return p.end <= offset; });
  return static_cast<std::size_t>(part - parts_.begin());
}

Status SegmentCopier::Copy(std::uint64_t begin, std::span<std::byte> out,
                           std::vector<std::uint32_t>* sums) {
  VARVE_RETURN_IF_ERROR(CopyFromDevices(begin, out));
  std::size_t part = PartAt(begin);
  std::uint32_t crc = 0;
  std::uint64_t in_sum = 0;
  for (std::uint64_t done = 0; done < out.size();) {
    const FileSegment& segment = segments_[part];
    const std::uint64_t at = segment.bytes - (parts_[part].end - (begin + done));
    const std::uint64_t step =
        std::min({segment.bytes - at, checksum_block_bytes_ - in_sum, out.size() - done});
    crc = CopyPart(crc, segment, at, out.subspan(done, step));
    done += step;
    in_sum += step;
    if (in_sum == checksum_block_bytes_ || done == out.size()) {
      sums->push_back(crc);
      crc = 0;
      in_sum = 0;
    }
    while (part < parts_.size() && parts_[part].end <= begin + done) {
      ++part;
    }
  }
  return Status::Ok();
}

Status SegmentCopier::CopyFromDevices(std::uint64_t begin, std::span<std::byte> out) {
  std::vector<DeviceCopy> copies;
  const FileSegment* first = nullptr;
  const FileSegment* last = nullptr;
  std::uint64_t bytes = 0;
  for (std::size_t part = PartAt(begin); part < parts_.size(); ++part) {
    const FileSegment& segment = segments_[part];
    const std::uint64_t segment_begin = parts_[part].end - segment.bytes;
    if (segment_begin >= begin + out.size()) {
      break;
    }
    if (!segment.device || segment.bytes == 0) {
      continue;
    }
    const std::uint64_t from = std::max(begin, segment_begin);
    const std::uint64_t to = std::min(begin + out.size(), parts_[part].end);
    AppendDeviceCopies(segment, from - segment_begin, out.subspan(from - begin, to - from),
                       &copies);
    first = first == nullptr ? &segment : first;
    last = &segment;
    bytes += to - from;
  }
  if (copies.empty()) {
    return Status::Ok();
  }
  if (devices_.reader == nullptr) {
    return Internal("a tensor on a device is to be staged by what cannot read devices");
  }
  // The whole block: another save may fill more of it.
  const bool pinned = devices_.reader->Pin(copies.front().device, {out.data(), kPoolBlockBytes});
  if (Status status = devices_.reader->Read(copies); !status.ok()) {
    return status.Annotate("tensors \"" + devices_.name_of(first->owner) + "\" to \"" +
                           devices_.name_of(last->owner) + "\"");
  }
  device_bytes_ += bytes;
  pageable_bytes_ += pinned ? 0 : bytes;
  return Status::Ok();
}

}  // namespace varve
