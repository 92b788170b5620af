#include "load/tensor_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/checked.h"
#include "base/guarded.h"
#include "base/threads.h"
#include "catalogue/files.h"
#include "tensor/box.h"
#include "tensor/cast.h"

namespace varve {
namespace {

// Two batches wait, one is being read, one is being used.
constexpr std::uint64_t kBatchesHeld = 4;
constexpr std::size_t kBatchesReady = 2;
// For elements of any type.
constexpr std::uint64_t kItemAlignment = 64;

}  // namespace

std::uint64_t StreamItem::bytes() const { return Volume(tensor->shape) * ItemSize(dtype); }

std::vector<Box> Slabs(const Box& box, std::uint64_t item_size, std::uint64_t max_bytes) {
  if (IsEmpty(box)) {
    return {};
  }
  std::vector<Box> slabs{box};
  // Cut the outermost dimension; while one of its slices is still too large, cut the next.
  for (std::size_t d = 0; d < box.sizes.size(); ++d) {
    if (Volume(slabs.front().sizes) * item_size <= max_bytes) {
      break;
    }
    std::vector<Box> next;
    for (const Box& slab : slabs) {
      const std::uint64_t slice = Volume(slab.sizes) * item_size / slab.sizes[d];
      const std::uint64_t rows = std::clamp<std::uint64_t>(max_bytes / slice, 1, slab.sizes[d]);
      for (std::uint64_t at = 0; at < slab.sizes[d]; at += rows) {
        Box piece = slab;
        piece.offsets[d] += at;
        piece.sizes[d] = std::min(rows, slab.sizes[d] - at);
        next.push_back(std::move(piece));
      }
    }
    slabs = std::move(next);
  }
  return slabs;
}

TensorStream::TensorStream(CheckpointReader& reader, std::vector<StreamItem> items,
                           std::uint64_t max_bytes, std::stop_token stop)
    : reader_(reader),
      stop_requested_(std::move(stop)),
      items_(std::move(items)),
      batch_bytes_(std::clamp<std::uint64_t>(max_bytes / kBatchesHeld, 1, kMaxBatchBytes)) {
  const std::uint64_t blocks = batch_bytes_ / StoredBlockBytes(reader.metadata());
  if (blocks < 2 * reader.metadata().files.size()) {
    // Where each file has a part of every tensor, a batch has less than two blocks of a file, and
    // the next one begins in the block in which this one ends.
    batch_bytes_ = std::max<std::uint64_t>(std::min(batch_bytes_, max_bytes / 2 / kBatchesHeld), 1);
    reader.KeepTails(max_bytes - std::min(max_bytes, kBatchesHeld * batch_bytes_));
  }
  thread_ = StartThread<std::thread>([this] { ReadAhead(); });
}

TensorStream::~TensorStream() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

std::vector<std::byte> TensorStream::TakeMemory() {
  const std::scoped_lock lock(mutex_);
  if (spare_.empty()) {
    return {};
  }
  std::vector<std::byte> memory = std::move(spare_.back());
  spare_.pop_back();
  return memory;
}

Status TensorStream::Load(Batch* batch) {
  const auto stored_bytes = [&](const Piece& piece) {
    return Volume(piece.box.sizes) * ItemSize(items_[piece.item].tensor->dtype);
  };
  std::uint64_t total = 0;
  std::uint64_t total_cast = 0;
  for (const Piece& piece : batch->pieces) {
    const StreamItem& item = items_[piece.item];
    total += RoundUp(Volume(piece.box.sizes) * ItemSize(item.dtype), kItemAlignment);
    if (item.dtype != item.tensor->dtype) {
      total_cast += RoundUp(stored_bytes(piece), kItemAlignment);
    }
  }
  batch->memory = TakeMemory();
  batch->memory.resize(std::max<std::uint64_t>(batch->memory.size(), total));
  stored_.resize(std::max<std::uint64_t>(stored_.size(), total_cast));
  std::span<std::byte> left = batch->memory;
  std::span<std::byte> left_cast = stored_;
  const auto take = [](std::span<std::byte>* from, std::uint64_t size) {
    const std::span<std::byte> taken = from->first(size);
    *from = from->subspan(RoundUp(size, kItemAlignment));
    return taken;
  };
  std::vector<TargetTensor> targets;
  std::vector<std::span<std::byte>> read;
  for (Piece& piece : batch->pieces) {
    const StreamItem& item = items_[piece.item];
    const TensorMetadata& tensor = *item.tensor;
    piece.bytes = take(&left, Volume(piece.box.sizes) * ItemSize(item.dtype));
    read.push_back(item.dtype == tensor.dtype ? piece.bytes
                                              : take(&left_cast, stored_bytes(piece)));
    targets.push_back(
        {tensor.fqn, tensor.dtype, tensor.shape, piece.box, read.back().data(), Strides{}});
  }
  LoadOptions options;
  options.stop = stop_requested_;
  VARVE_RETURN_IF_ERROR(reader_.ReadTensors(targets, options).status());
  for (std::size_t i = 0; i < batch->pieces.size(); ++i) {
    const Piece& piece = batch->pieces[i];
    const StreamItem& item = items_[piece.item];
    if (item.dtype != item.tensor->dtype) {
      Cast(item.tensor->dtype, read[i], item.dtype, piece.bytes);
    }
  }
  return Status::Ok();
}

void TensorStream::ReadAhead() {
  Status status = Guarded([&] { Run(); });
  const std::scoped_lock lock(mutex_);
  if (status_.ok()) {
    status_ = std::move(status);
  }
  done_ = true;
  changed_.notify_all();
}

void TensorStream::Run() {
  Batch batch;
  std::uint64_t batch_bytes = 0;
  // Passes the batch to the reader; returns false when no more is wanted.
  const auto flush = [&] {
    Status status = Load(&batch);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ready_.size() < kBatchesReady || stop_; });
    const bool go_on = status.ok() && !stop_;
    if (go_on) {
      ready_.push_back(std::move(batch));
    } else if (status_.ok()) {
      status_ = std::move(status);
    }
    changed_.notify_all();
    batch = {};
    batch_bytes = 0;
    return go_on;
  };
  bool go_on = true;
  for (std::size_t i = 0; i < items_.size() && go_on; ++i) {
    std::uint64_t at = 0;
    const TensorMetadata& tensor = *items_[i].tensor;
    for (Box& box : Slabs(WholeBox(tensor.shape), ItemSize(tensor.dtype), batch_bytes_)) {
      const std::uint64_t elements = Volume(box.sizes);
      const std::uint64_t stored = elements * ItemSize(tensor.dtype);
      if (!batch.pieces.empty() && batch_bytes + stored > batch_bytes_) {
        go_on = flush();
        if (!go_on) {
          break;
        }
      }
      batch.pieces.push_back({i, at, std::move(box), {}});
      batch_bytes += stored;
      at += elements * ItemSize(items_[i].dtype);
    }
  }
  if (go_on && !batch.pieces.empty()) {
    flush();
  }
}

Status TensorStream::Read(std::size_t item, std::uint64_t at, std::span<std::byte> out) {
  while (!out.empty()) {
    if (piece_ == current_.pieces.size()) {
      std::unique_lock lock(mutex_);
      if (!current_.memory.empty()) {
        spare_.push_back(std::move(current_.memory));
        current_ = {};
        piece_ = 0;
      }
      changed_.wait(lock, [&] { return !ready_.empty() || done_; });
      if (ready_.empty()) {
        return status_.ok() ? Internal("a tensor stream was read beyond its end") : status_;
      }
      current_ = std::move(ready_.front());
      ready_.pop_front();
      piece_ = 0;
      changed_.notify_all();
    }
    const Piece& piece = current_.pieces[piece_];
    if (piece.item != item || at < piece.begin || at >= piece.begin + piece.bytes.size()) {
      return Internal("a tensor stream was read out of turn, at tensor \"" +
                      items_[item].tensor->fqn + "\" byte " + std::to_string(at));
    }
    const std::uint64_t skip = at - piece.begin;
    const std::uint64_t take = std::min<std::uint64_t>(piece.bytes.size() - skip, out.size());
    std::memcpy(out.data(), piece.bytes.data() + skip, take);
    at += take;
    out = out.subspan(take);
    if (skip + take == piece.bytes.size()) {
      ++piece_;
    }
  }
  return Status::Ok();
}

}  // namespace varve
