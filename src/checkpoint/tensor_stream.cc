#include "checkpoint/tensor_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tensor/box.h"
#include "tensor/cast.h"

namespace varve {
namespace {

// Two batches wait, one is being read, one is being used.
constexpr std::uint64_t kBatchesHeld = 4;
constexpr std::size_t kBatchesReady = 2;
// Larger ones are no faster.
constexpr std::uint64_t kMaxBatchBytes = std::uint64_t{64} << 20;

}  // namespace

std::uint64_t StreamItem::bytes() const { return Volume(tensor->shape) * ItemSize(dtype); }

std::vector<Box> Slabs(const TensorMetadata& tensor, std::uint64_t max_bytes) {
  const std::uint64_t item_size = ItemSize(tensor.dtype);
  std::vector<Box> slabs{WholeBox(tensor.shape)};
  if (IsEmpty(slabs[0])) {
    return {};
  }
  // Cut the outermost dimension; while one of its slices is still too large, cut the next.
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
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
                           std::uint64_t max_bytes)
    : reader_(reader),
      items_(std::move(items)),
      batch_bytes_(std::clamp<std::uint64_t>(max_bytes / kBatchesHeld, 1, kMaxBatchBytes)),
      thread_([this] { Run(); }) {}

TensorStream::~TensorStream() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

Status TensorStream::Load(Batch* batch) {
  std::vector<TargetTensor> targets;
  std::vector<std::vector<std::byte>> stored(batch->size());
  for (std::size_t i = 0; i < batch->size(); ++i) {
    const Piece& piece = (*batch)[i];
    const TensorMetadata& tensor = *items_[piece.item].tensor;
    stored[i].resize(Volume(piece.box.sizes) * ItemSize(tensor.dtype));
    targets.push_back(
        {tensor.fqn, tensor.dtype, tensor.shape, piece.box, stored[i].data(), Strides{}});
  }
  VARVE_RETURN_IF_ERROR(reader_.ReadTensors(targets, {}).status());
  for (std::size_t i = 0; i < batch->size(); ++i) {
    Piece& piece = (*batch)[i];
    const StreamItem& item = items_[piece.item];
    if (item.dtype == item.tensor->dtype) {
      piece.bytes = std::move(stored[i]);
      continue;
    }
    piece.bytes.resize(Volume(piece.box.sizes) * ItemSize(item.dtype));
    Cast(item.tensor->dtype, stored[i], item.dtype, piece.bytes);
    stored[i] = {};
  }
  return Status::Ok();
}

void TensorStream::Run() {
  Batch batch;
  std::uint64_t batch_bytes = 0;
  // Hands the batch over; false when nobody wants more.
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
    for (Box& box : Slabs(*items_[i].tensor, batch_bytes_)) {
      const std::uint64_t elements = Volume(box.sizes);
      const std::uint64_t stored = elements * ItemSize(items_[i].tensor->dtype);
      if (!batch.empty() && batch_bytes + stored > batch_bytes_) {
        go_on = flush();
        if (!go_on) {
          break;
        }
      }
      batch.push_back({i, at, std::move(box), {}});
      batch_bytes += stored;
      at += elements * ItemSize(items_[i].dtype);
    }
  }
  if (go_on && !batch.empty()) {
    flush();
  }
  const std::scoped_lock lock(mutex_);
  done_ = true;
  changed_.notify_all();
}

Status TensorStream::Read(std::size_t item, std::uint64_t at, std::span<std::byte> out) {
  while (!out.empty()) {
    if (piece_ == current_.size()) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !ready_.empty() || done_; });
      if (ready_.empty()) {
        return status_.ok() ? Internal("a tensor stream was read beyond its end") : status_;
      }
      current_ = std::move(ready_.front());
      ready_.pop_front();
      piece_ = 0;
      changed_.notify_all();
    }
    Piece& piece = current_[piece_];
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
      piece.bytes = {};
      ++piece_;
    }
  }
  return Status::Ok();
}

}  // namespace varve
