// How copies are ordered with the work of the training, on each device:
//  1. At the call of a save or a load, on the thread that makes it, an event is recorded on the
//     stream that last wrote to the tensors (After), and our own stream waits for it. Kernels that
//     are queued by then come before the copies: a copy out never sees half of their work, and a
//     copy in is never overwritten by it. The host waits for nothing.
//  2. Copies are queued on streams of our own, one for each direction, which are not ordered with
//     any other (non-blocking): what the training queues later runs beside them.
//  3. No more than kMostQueuedBytes are queued: a thread that has more to queue first sleeps until
//     the oldest event is reached. The training's own small copies would wait behind all of them.
//  4. The thread that asked for the copies of a block (Move) sleeps until the event behind them is
//     reached. It does not wait for the device, nor for our stream, which other threads use too.
//     Several blocks are under way, one for each thread, so that the device copies while other
//     blocks are summed, read or written.
//  5. Only then is a save reported as staged and the tensors' owner released: memory that is freed
//     earlier may be given to other tensors by the caching allocator, which knows nothing of our
//     stream, and be written to while it is copied. Only then is a block given back: the next read
//     into it would be copied to the tensor before. So a failed Move waits too.
//  6. A load returns when the host has seen the events of all its copies. The caller
//     queues its next work after them, on whatever stream.
// The context is the device's primary one, which the CUDA runtime and so PyTorch use. It is made
// current for the length of a call only, on whatever thread that is: a thread has no device of its
// own, and none is used that holds no tensor. For that length the thread also leaves stream capture
// alone: torch captures graphs in a mode in which some calls of any other thread would break them.

#include "device/cuda_devices.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <string>
#include <utility>

#include "base/guarded.h"
#include "device/cuda_event.h"

namespace varve {
namespace {

std::string Named(int device) { return "CUDA device " + std::to_string(device); }

std::uint64_t BytesOf(std::span<const DeviceMove> moves) {
  std::uint64_t bytes = 0;
  for (const DeviceMove& move : moves) {
    bytes += move.bytes();
  }
  return bytes;
}

/// Blocks of threads that are started for a launch at least, so that few pieces are shared by many.
constexpr std::size_t kLeastBlocks = 64;
constexpr std::size_t kMostBlocksOfPiece = 8;

/// No error of the driver's: there is no kernel for these pieces.
constexpr int kNoKernel = -1;

}  // namespace

/// The last event of each device.
class CudaDevices::Work {
 public:
  struct Part {
    Lane* lane = nullptr;
    std::shared_ptr<Event> done;
    std::string what;
  };
  explicit Work(const CudaDriver& used) : driver(used) {}
  /// Waits for all parts. Needs no memory. Returns the first that failed, null where none did, and
  /// its error.
  [[nodiscard]] std::pair<const Part*, int> Reach() const noexcept;
  const CudaDriver& driver;
  std::vector<Part> parts;
};

Result<CudaDevices*> CudaDevices::Get() {
  VARVE_ASSIGN_OR_RETURN(const CudaDriver* const driver, CudaDriver::Get());
  static auto* const devices = new CudaDevices(*driver);
  return devices;
}

Result<std::unique_ptr<CudaDevices>> CudaDevices::MakeForTest() {
  VARVE_ASSIGN_OR_RETURN(const CudaDriver* const driver, CudaDriver::Get());
  return MakeForTest(*driver);
}

std::unique_ptr<CudaDevices> CudaDevices::MakeForTest(const CudaDriver& driver) {
  return std::unique_ptr<CudaDevices>(new CudaDevices(driver));
}

Result<CudaDevices::Device*> CudaDevices::DeviceAt(int ordinal) {
  const std::scoped_lock lock(mutex_);
  std::unique_ptr<Device>& known = devices_[ordinal];
  if (known == nullptr) {
    known = std::make_unique<Device>(driver_);
    known->ordinal = ordinal;
  }
  if (known->ready) {
    return known.get();
  }
  // After an error the next call goes on from there: nothing is taken twice.
  const std::string what = "begin to use " + Named(ordinal);
  if (known->context == nullptr) {
    VARVE_RETURN_IF_ERROR(driver_.Check(driver_.device_get(&known->device, ordinal), what));
    VARVE_RETURN_IF_ERROR(
        driver_.Check(driver_.context_retain(&known->context, known->device), what));
  }
  const Current current(driver_, known->context);
  VARVE_RETURN_IF_ERROR(driver_.Check(current.error(), what));
  for (Lane& lane : known->lanes) {
    if (lane.stream == nullptr) {
      VARVE_RETURN_IF_ERROR(
          driver_.Check(driver_.stream_create(&lane.stream, CudaDriver::kStreamNonBlocking), what));
    }
  }
  int shares = 0;
  known->shares_addresses =
      driver_.device_attribute(&shares, CudaDriver::kSharesHostAddresses, known->device) == 0 &&
      shares != 0;
  known->ready = true;
  return known.get();
}

Status CudaDevices::After(Direction direction, int device, void* stream) {
  VARVE_ASSIGN_OR_RETURN(Device* const known, DeviceAt(device));
  const std::string what = "wait for the work queued on " + Named(device);
  const Lane& lane = known->lanes[static_cast<std::size_t>(direction)];
  const Event event(driver_, known->context, lane.stream);
  VARVE_RETURN_IF_ERROR(driver_.Check(event.error(), what));
  const Current current(driver_, known->context);
  VARVE_RETURN_IF_ERROR(driver_.Check(current.error(), what));
  VARVE_RETURN_IF_ERROR(driver_.Check(driver_.event_record(event.get(), stream), what));
  // An event that is destroyed meanwhile lives until all streams that wait for it go on.
  return driver_.Check(driver_.stream_wait_event(lane.stream, event.get(), 0), what);
}

Status CudaDevices::Move(Direction direction, std::span<const DeviceMove> moves, Kernels kernels) {
  VARVE_ASSIGN_OR_RETURN(const auto work, Queue(direction, moves, kernels));
  return Wait(*work);
}

Result<std::shared_ptr<const CudaDevices::Work>> CudaDevices::Queue(
    Direction direction, std::span<const DeviceMove> moves, Kernels kernels) {
  auto work = std::make_shared<Work>(driver_);
  // Where this returns an error or throws, what was queued on other devices is under way.
  const auto reach = [](const Work* queued) { (void)queued->Reach(); };
  std::unique_ptr<const Work, decltype(reach)> unfinished(work.get(), reach);
  while (!moves.empty()) {
    const int ordinal = moves.front().device;
    const auto end = std::find_if(moves.begin(), moves.end(),
                                  [&](const DeviceMove& move) { return move.device != ordinal; });
    const auto of_device = moves.first(static_cast<std::size_t>(end - moves.begin()));
    moves = moves.subspan(of_device.size());
    const std::string what = "copy " + std::to_string(BytesOf(of_device)) + " bytes " +
                             (direction == Direction::kToHost ? "from " : "to ") + Named(ordinal);
    Work::Part part;
    part.what = what;
    work->parts.reserve(work->parts.size() + 1);  // Nothing may be thrown once it is queued.
    const auto queue = [&]() -> Status {
      VARVE_ASSIGN_OR_RETURN(Device* const device, DeviceAt(ordinal));
      part.lane = &device->lanes[static_cast<std::size_t>(direction)];
      VARVE_ASSIGN_OR_RETURN(part.done, QueueOn(*device, direction, of_device, kernels));
      return Status::Ok();
    };
    VARVE_RETURN_IF_ERROR(queue().Annotate(what));
    work->parts.push_back(std::move(part));
  }
  (void)unfinished.release();
  return std::shared_ptr<const Work>(std::move(work));
}

std::pair<const CudaDevices::Work::Part*, int> CudaDevices::Work::Reach() const noexcept {
  std::pair<const Part*, int> first{nullptr, 0};
  for (const Part& part : parts) {
    const int error = part.done->Wait();
    NoteReached(*part.lane, part.done);
    if (error != 0 && first.first == nullptr) {
      first = {&part, error};
    }
  }
  return first;
}

Status CudaDevices::Wait(const Work& work) noexcept {
  const auto [failed, error] = work.Reach();
  if (failed == nullptr) {
    return Status::Ok();
  }
  return Guarded(
      [&, part = failed, number = error] { return work.driver.Check(number, part->what); });
}

Status CudaDevices::MakeRoom(Lane& lane, std::uint64_t bytes) {
  std::unique_lock lock(lane.mutex);
  while (lane.bytes > 0 && lane.bytes + bytes > kMostQueuedBytes) {
    if (lane.queued.empty()) {
      lane.changed.wait(lock);  // Those who have taken the room are about to queue.
      continue;
    }
    const std::shared_ptr<Event> oldest = lane.queued.front().done;
    lock.unlock();
    const int error = oldest->Wait();
    NoteReached(lane, oldest);
    VARVE_RETURN_IF_ERROR(driver_.Check(error, "wait for earlier copies"));
    lock.lock();
  }
  lane.bytes += bytes;  // Ours from now on, before it is queued.
  return Status::Ok();
}

/// Forgets a part of a lane that has been reached, and those before it: the stream takes them in
/// order.
void CudaDevices::NoteReached(Lane& lane, const std::shared_ptr<Event>& event) noexcept {
  std::list<Queued> reached;  // Destroyed without the lock: an event calls the driver then.
  const std::scoped_lock lock(lane.mutex);
  const auto known = std::find_if(lane.queued.begin(), lane.queued.end(),
                                  [&](const Queued& queued) { return queued.done == event; });
  if (known == lane.queued.end()) {
    return;  // Another thread saw a later one.
  }
  reached.splice(reached.end(), lane.queued, lane.queued.begin(), std::next(known));
  for (const Queued& queued : reached) {
    lane.bytes -= queued.bytes;
  }
  lane.changed.notify_all();
}

Result<std::shared_ptr<CudaDevices::Event>> CudaDevices::QueueOn(Device& device,
                                                                 Direction direction,
                                                                 std::span<const DeviceMove> moves,
                                                                 Kernels kernels) {
  Lane& lane = device.lanes[static_cast<std::size_t>(direction)];
  const std::uint64_t bytes = BytesOf(moves);
  auto done = std::make_shared<Event>(driver_, device.context, lane.stream);
  VARVE_RETURN_IF_ERROR(driver_.Check(done->error(), "make an event"));
  VARVE_RETURN_IF_ERROR(MakeRoom(lane, bytes));
  const Current current(driver_, device.context);
  int failed = current.error();
  try {
    failed = failed != 0 ? failed : QueueAll(device, direction, moves, kernels);
    const std::scoped_lock lock(lane.mutex);
    failed = failed != 0 ? failed : driver_.event_record(done->get(), lane.stream);
    if (failed == 0) {
      lane.queued.push_back({done, bytes});
      lane.changed.notify_all();
      return done;
    }
  } catch (const std::bad_alloc&) {
    failed = CudaDriver::kOutOfMemory;
  }
  driver_.stream_synchronize(lane.stream);  // What was queued before the failure is under way.
  const std::scoped_lock lock(lane.mutex);
  lane.bytes -= bytes;
  lane.changed.notify_all();
  return driver_.Check(failed, "queue the copies");
}

int CudaDevices::QueueAll(Device& device, Direction direction, std::span<const DeviceMove> moves,
                          Kernels kernels) {
  // What takes addresses of registered memory as the device's own, which is so on most systems.
  const bool registered = device.shares_addresses && AreRegistered(moves);
  int error = kNoKernel;
  if (registered && !lacks_kernels_) {
    error = QueueSorted(device, direction, SortMoves(moves, true), registered, kernels);
  }
  // Where there is no kernel, everything is copied anew.
  return error == kNoKernel
             ? QueueSorted(device, direction, SortMoves(moves, false), registered, kernels)
             : error;
}

int CudaDevices::QueueSorted(Device& device, Direction direction, const SortedMoves& sorted,
                             bool registered, Kernels kernels) {
  const CudaDriver::Handle stream = device.lanes[static_cast<std::size_t>(direction)].stream;
  if (!sorted.pieces.empty()) {
    if (const int error = QueuePieces(device, direction, sorted.pieces, kernels); error != 0) {
      return error;
    }
  }
  // A batch refuses memory that is not registered, or waits for it.
  const bool batched = registered && has_batches_ && sorted.copies.size() > 1;
  int error = 0;
  if (!batched || !QueueBatch(direction, sorted.copies, stream)) {
    error = QueueCopies(direction, sorted.copies, stream);
  }
  for (auto move = sorted.by_rows.begin(); move != sorted.by_rows.end() && error == 0; ++move) {
    error = QueueRows(direction, *move, stream);
  }
  return error;
}

/// Returns false where the driver makes no batch of these. Then some of the copies may be under
/// way.
bool CudaDevices::QueueBatch(Direction direction, std::span<const DeviceCopy> copies,
                             CudaDriver::Handle stream) {
  std::vector<CudaDriver::Address> targets;
  std::vector<CudaDriver::Address> sources;
  std::vector<std::size_t> sizes;
  for (const DeviceCopy& copy : copies) {
    const auto on_host = reinterpret_cast<CudaDriver::Address>(copy.on_host);
    const bool out = direction == Direction::kToHost;
    targets.push_back(out ? on_host : copy.on_device);
    sources.push_back(out ? copy.on_device : on_host);
    sizes.push_back(copy.bytes);
  }
  CudaDriver::BatchAttributes attributes{.order = CudaDriver::kInStreamOrder};
  std::size_t first = 0;
  std::size_t failed = 0;
  if (driver_.copy_batch_async == nullptr) {
    has_batches_ = false;
    return false;
  }
  const int error = driver_.copy_batch_async(targets.data(), sources.data(), sizes.data(),
                                             sizes.size(), &attributes, &first, 1, &failed, stream);
  // A driver may have the function and not the feature. After another error the copies say one by
  // one what is wrong.
  if (CudaDriver::IsLacking(error)) {
    has_batches_ = false;
  }
  return error == 0;
}

int CudaDevices::QueueCopies(Direction direction, std::span<const DeviceCopy> copies,
                             CudaDriver::Handle stream) const {
  int error = 0;
  for (auto copy = copies.begin(); copy != copies.end() && error == 0; ++copy) {
    error = direction == Direction::kToHost
                ? driver_.copy_to_host_async(copy->on_host, copy->on_device, copy->bytes, stream)
                : driver_.copy_to_device_async(copy->on_device, copy->on_host, copy->bytes, stream);
  }
  return error;
}

int CudaDevices::QueuePieces(Device& device, Direction direction, std::span<const MovePiece> pieces,
                             Kernels kernels) {
  const CudaDriver::Handle stream = device.lanes[static_cast<std::size_t>(direction)].stream;
  MoveTable table;
  table.to_host = direction == Direction::kToHost ? 1 : 0;
  while (!pieces.empty()) {
    const std::uint32_t item = pieces.front().item;
    CudaDriver::Handle kernel = device.kernels.Find(item);
    if (kernel == nullptr && kernels == Kernels::kCompile) {
      kernel = device.kernels.Compile(item, &lacks_kernels_);
    }
    if (kernel == nullptr) {
      return kNoKernel;
    }
    const auto end = std::find_if(pieces.begin(), pieces.end(),
                                  [&](const MovePiece& piece) { return piece.item != item; });
    const std::size_t count =
        std::min(static_cast<std::size_t>(end - pieces.begin()), MoveTable::kMost);
    std::copy_n(pieces.begin(), count, table.pieces.begin());
    table.count = static_cast<std::uint32_t>(count);
    pieces = pieces.subspan(count);
    const auto shared = std::clamp(kLeastBlocks / count, std::size_t{1}, kMostBlocksOfPiece);
    void* parameter = &table;
    const int error = driver_.launch(kernel, static_cast<unsigned>(shared), table.count, 1,
                                     kMoveThreads, 1, 1, 0, stream, &parameter, nullptr);
    if (error != 0) {
      return error;
    }
  }
  return 0;
}

int CudaDevices::QueueRows(Direction direction, const DeviceMove& move,
                           CudaDriver::Handle stream) const {
  const bool out = direction == Direction::kToHost;
  // One call copies rows that do not overlap and are no further apart than the driver takes; where
  // they are not so, each is one call.
  const auto row = static_cast<std::int64_t>(move.row_bytes);
  const bool pitched = std::min(move.device_inner, move.host_inner) >= row &&
                       std::max(move.device_inner, move.host_inner) <= CudaDriver::kMostPitch;
  for (std::uint64_t i = move.first; i < move.first + move.count;) {
    const std::uint64_t rest = std::min(move.inner - i % move.inner, move.first + move.count - i);
    const auto inner = static_cast<std::int64_t>(i % move.inner);
    const auto outer = static_cast<std::int64_t>(i / move.inner);
    std::byte* const on_device =
        move.on_device + inner * move.device_inner + outer * move.device_outer;
    std::byte* const on_host = move.on_host + inner * move.host_inner + outer * move.host_outer;
    CudaDriver::RowsCopy rows;
    rows.width = move.row_bytes;
    rows.height = pitched ? rest : 1;
    (out ? rows.source_type : rows.target_type) = CudaDriver::kDeviceMemory;
    (out ? rows.target_type : rows.source_type) = CudaDriver::kHostMemory;
    (out ? rows.source_device : rows.target_device) =
        reinterpret_cast<CudaDriver::Address>(on_device);
    (out ? rows.source_pitch : rows.target_pitch) =
        pitched ? static_cast<std::size_t>(move.device_inner) : move.row_bytes;
    (out ? rows.target_pitch : rows.source_pitch) =
        pitched ? static_cast<std::size_t>(move.host_inner) : move.row_bytes;
    if (out) {
      rows.target_host = on_host;
    } else {
      rows.source_host = on_host;
    }
    if (const int error = driver_.copy_rows_async(&rows, stream); error != 0) {
      return error;
    }
    i += rows.height;
  }
  return 0;
}

void CudaDevices::CompileKernels(int device) {
  const auto known = DeviceAt(device);
  if (!known.ok()) {
    return;
  }
  const Current current(driver_, (*known)->context);
  for (const std::uint32_t item : kMoveItems) {
    if (current.error() == 0 && !lacks_kernels_ && (*known)->shares_addresses) {
      (*known)->kernels.Compile(item, &lacks_kernels_);
    }
  }
  (*known)->compiled = true;
}

bool CudaDevices::WantsKernels(int device) {
  const auto known = DeviceAt(device);
  return known.ok() && !(*known)->compiled;
}

}  // namespace varve
