// The calls of the simulated driver. Each may let the devices go on, may fail, and fails once the
// device is dead. A call that fails has done nothing, with two exceptions: a batch may have queued
// some of its copies, and a wait for a stream has waited.

#include <algorithm>
#include <string_view>
#include <utility>

#include "sim/device_model.h"

namespace varve::sim {
namespace {

constexpr int kInvalidContext = 201;  // CUDA_ERROR_INVALID_CONTEXT
constexpr int kInvalidHandle = 400;   // CUDA_ERROR_INVALID_HANDLE
constexpr int kLaunchFailed = 719;    // CUDA_ERROR_LAUNCH_FAILED, the end of a device
constexpr std::array<int, 4> kErrors{2, 46, 101, 999};

constexpr std::uintptr_t kContextHandle = 0x100;
constexpr std::uintptr_t kFunctionHandle = 0x200;  // That number and the size of elements.
constexpr std::uintptr_t kEventHandle = 0x100000;
constexpr std::string_view kKernelName = "varve_move_";

// The functions of the table take nothing that could name a model.
thread_local DeviceModel* current_model = nullptr;

std::uintptr_t NumberOf(CudaDriver::Handle handle) {
  return reinterpret_cast<std::uintptr_t>(handle);
}

CudaDriver::Handle HandleOf(std::uintptr_t number) {
  return reinterpret_cast<CudaDriver::Handle>(number);
}

}  // namespace

DeviceModel::~DeviceModel() { current_model = nullptr; }

CudaDriver DeviceModel::MakeDriver() {
  using Out = CudaDriver::Handle*;
  current_model = this;
  CudaDriver driver{};
  driver.init = [](unsigned) { return 0; };
  driver.get_error_name = [](int, const char** name) {
    *name = "CUDA_ERROR_SIMULATED";
    return 0;
  };
  driver.get_error_string = driver.get_error_name;
  driver.device_get = [](int* device, int ordinal) {
    *device = ordinal;
    return current_model->Enter();
  };
  driver.device_bus_id = [](char*, int, int) { return kInvalidHandle; };
  driver.device_attribute = [](int* value, int, int) {
    *value = 1;
    return 0;
  };
  driver.context_retain = [](Out out, int device) {
    return current_model->RetainContext(out, device);
  };
  driver.context_push = [](Handle context) { return current_model->PushContext(context); };
  driver.context_pop = [](Out out) { return current_model->PopContext(out); };
  driver.exchange_capture_mode = [](int* mode) { return current_model->ExchangeMode(mode); };
  driver.stream_create = [](Out out, unsigned flags) {
    return current_model->CreateStream(out, flags);
  };
  driver.stream_synchronize = [](Handle stream) {
    return current_model->SynchronizeStream(stream);
  };
  driver.stream_wait_event = [](Handle stream, Handle event, unsigned) {
    return current_model->WaitForEvent(stream, event);
  };
  driver.event_create = [](Out out, unsigned) { return current_model->CreateEvent(out); };
  driver.event_destroy = [](Handle event) { return current_model->DestroyEvent(event); };
  driver.event_record = [](Handle event, Handle stream) {
    return current_model->RecordEvent(event, stream);
  };
  driver.event_synchronize = [](Handle event) { return current_model->SynchronizeEvent(event); };
  AddCopies(&driver);
  return driver;
}

/// Adds the calls that copy, and those that make copies possible.
void DeviceModel::AddCopies(CudaDriver* driver) const {
  driver->copy_to_host_async = [](void* target, Address source, std::size_t bytes, Handle stream) {
    return current_model->CopyRun(DevicePart::Kind::kToHost, source, target, bytes, stream);
  };
  driver->copy_to_device_async = [](Address target, const void* source, std::size_t bytes,
                                    Handle stream) {
    return current_model->CopyRun(DevicePart::Kind::kToDevice, target, source, bytes, stream);
  };
  driver->copy_rows_async = [](const void* rows, Handle stream) {
    return current_model->CopyRows(*static_cast<const CudaDriver::RowsCopy*>(rows), stream);
  };
  driver->host_register = [](void* memory, std::size_t bytes, unsigned) {
    return current_model->Register(memory, bytes);
  };
  driver->host_unregister = [](void* memory) { return current_model->Unregister(memory); };
  driver->module_load = [](Handle* module, const void*) {
    return current_model->LoadModule(module);
  };
  driver->module_function = [](Handle* function, Handle, const char* name) {
    return current_model->FindFunction(function, name);
  };
  driver->launch = [](Handle function, unsigned x, unsigned y, unsigned z, unsigned threads,
                      unsigned, unsigned, unsigned, Handle stream, void** parameters, void**) {
    return current_model->Launch(function, {x, y, z}, threads, stream,
                                 *static_cast<const MoveTable*>(*parameters));
  };
  if (options_.has_batches) {
    driver->copy_batch_async = [](Address* targets, Address* sources, std::size_t* sizes,
                                  std::size_t count, void*, std::size_t*, std::size_t, std::size_t*,
                                  Handle stream) {
      return current_model->CopyBatch(targets, sources, sizes, count, stream);
    };
  }
}

// ---- what calls have in common ----

/// Begins a call. Returns the error with which the seed lets it fail, or 0.
int DeviceModel::Enter() {
  RunSome();
  if (!options_.fails_at.contains(++calls_)) {
    return 0;
  }
  ++failures_;
  const int error = kErrors[random_.Below(kErrors.size())];
  trace_.Add("driver call " + std::to_string(calls_) + " fails: " + std::to_string(error));
  return error;
}

/// Begins a call that needs a current context.
int DeviceModel::EnterContext() {
  const int error = Enter();
  if (contexts_.empty()) {
    if (failures_ == 0) {
      Blame("a call of the driver without a current context");
    }
    return kInvalidContext;
  }
  return is_dead(contexts_.back()) ? kLaunchFailed : error;
}

/// Begins a call that queues something on a stream of the current context.
int DeviceModel::EnterStream(Handle handle, Stream** stream) {
  const int error = EnterContext();
  if (contexts_.empty()) {
    return error;
  }
  const std::size_t index = IndexOf(handle, contexts_.back());
  if (index == streams_.size() || streams_[index].device != contexts_.back()) {
    Blame("a stream is used that is not of the current context");
    return kInvalidHandle;
  }
  *stream = &streams_[index];
  return error;
}

DeviceModel::Event* DeviceModel::EventOf(Handle handle) {
  const auto known = events_.find(NumberOf(handle) - kEventHandle);
  if (known == events_.end()) {
    Blame("an event is used that does not exist");
    return nullptr;
  }
  return &known->second;
}

// ---- contexts ----

int DeviceModel::RetainContext(Handle* context, int device) {
  *context = HandleOf(kContextHandle + static_cast<std::uintptr_t>(device));
  const int error = Enter();
  return is_dead(device) ? kLaunchFailed : error;
}

int DeviceModel::PushContext(Handle context) {
  const int error = Enter();
  if (error == 0) {
    contexts_.push_back(static_cast<int>(NumberOf(context) - kContextHandle));
  }
  return error;
}

int DeviceModel::PopContext(Handle* context) {
  if (contexts_.empty()) {
    Blame("a context is popped that was not pushed");
    return kInvalidContext;
  }
  *context = HandleOf(kContextHandle + static_cast<std::uintptr_t>(contexts_.back()));
  contexts_.pop_back();
  return 0;
}

/// Fails only where it leaves the default mode: nothing could be done about the other way round.
int DeviceModel::ExchangeMode(int* mode) {
  const int error = capture_mode_ == 0 ? Enter() : 0;
  if (error == 0) {
    std::swap(*mode, capture_mode_);
  }
  return error;
}

// ---- streams and events ----

int DeviceModel::CreateStream(Handle* stream, unsigned flags) {
  const int error = EnterContext();
  if (error != 0) {
    return error;
  }
  if (flags != CudaDriver::kStreamNonBlocking) {
    Blame("a stream is made that waits for the default stream");
  }
  *stream = AddStream(contexts_.back());
  return 0;
}

int DeviceModel::SynchronizeStream(Handle handle) {
  const int error = Enter();
  const std::size_t index = handle == nullptr ? streams_.size() : IndexOf(handle, 0);
  if (index == streams_.size()) {
    Blame("the host waits for a stream that does not exist");
    return kInvalidHandle;
  }
  Stream& stream = streams_[index];
  if (!is_dead(stream.device)) {
    const auto reached = std::make_shared<bool>(false);
    stream.queue.push_back({.reaches = reached});
    RunUntil(*reached);
  }
  return is_dead(stream.device) ? kLaunchFailed : error;
}

int DeviceModel::WaitForEvent(Handle stream, Handle event) {
  Stream* waits = nullptr;
  const int error = EnterStream(stream, &waits);
  const Event* const known = EventOf(event);
  if (error != 0 || known == nullptr) {
    return error != 0 ? error : kInvalidHandle;
  }
  if (known->reached != nullptr && plant_ != Plant::kStreamNotOrdered) {
    waits->queue.push_back({.waits_for = known->reached});
  }
  return 0;
}

int DeviceModel::CreateEvent(Handle* event) {
  const int error = EnterContext();
  if (error != 0) {
    return error;
  }
  events_[++next_event_] = {.device = contexts_.back()};
  *event = HandleOf(kEventHandle + next_event_);
  return 0;
}

/// Streams that wait for the event go on when it is reached.
int DeviceModel::DestroyEvent(Handle event) {
  if (EventOf(event) != nullptr) {
    events_.erase(NumberOf(event) - kEventHandle);
  }
  return 0;
}

int DeviceModel::RecordEvent(Handle event, Handle stream) {
  Stream* records = nullptr;
  const int error = EnterStream(stream, &records);
  Event* const known = EventOf(event);
  if (error != 0 || known == nullptr) {
    return error != 0 ? error : kInvalidHandle;
  }
  if (known->device != records->device) {
    Blame("an event of one device is recorded on another one");
    return kInvalidHandle;
  }
  known->reached = std::make_shared<bool>(false);
  known->copies_to_device = records->copies_to_device;
  records->queue.push_back({.reaches = known->reached});
  return 0;
}

int DeviceModel::SynchronizeEvent(Handle event) {
  const int error = EnterContext();
  const Event* const known = EventOf(event);
  if (error != 0 || known == nullptr) {
    return error != 0 ? error : kInvalidHandle;
  }
  const bool skipped = plant_ == Plant::kEventNotWaited ||
                       (plant_ == Plant::kBlockReusedEarly && known->copies_to_device);
  if (known->reached != nullptr && !skipped) {
    RunUntil(*known->reached);
  }
  return is_dead(known->device) ? kLaunchFailed : 0;
}

// ---- copies ----

/// Returns the offset of an address; kDeviceBytes, which nothing reaches behind, for one of
/// another device.
std::uint64_t DeviceModel::OffsetOf(Address address, int device) {
  const Address offset = address - BaseOf(device);
  return std::min<Address>(offset, kDeviceBytes);
}

int DeviceModel::CopyRun(DevicePart::Kind kind, Address device, const void* host, std::size_t bytes,
                         Handle stream) {
  Stream* copies = nullptr;
  if (const int error = EnterStream(stream, &copies); error != 0) {
    return error;
  }
  DevicePart first;
  first.kind = kind;
  first.offset = OffsetOf(device, copies->device);
  first.host = static_cast<std::byte*>(const_cast<void*>(host));
  first.bytes = bytes / 2;
  DevicePart second = first;
  second.offset += first.bytes;
  second.host += first.bytes;
  second.bytes = bytes - first.bytes;
  QueueCopy(copies, {first, second});
  return 0;
}

int DeviceModel::CopyRows(const CudaDriver::RowsCopy& rows, Handle stream) {
  Stream* copies = nullptr;
  if (const int error = EnterStream(stream, &copies); error != 0) {
    return error;
  }
  const bool out = rows.source_type == CudaDriver::kDeviceMemory;
  if ((out ? rows.target_type : rows.source_type) != CudaDriver::kHostMemory) {
    Blame("rows are copied that are not between a device and the host");
    return kInvalidHandle;
  }
  std::vector<DevicePart> parts(rows.height);
  for (std::size_t row = 0; row < rows.height; ++row) {
    DevicePart& part = parts[row];
    const void* const host = out ? rows.target_host : rows.source_host;
    part.kind = out ? DevicePart::Kind::kToHost : DevicePart::Kind::kToDevice;
    part.offset = OffsetOf((out ? rows.source_device : rows.target_device) +
                               row * (out ? rows.source_pitch : rows.target_pitch),
                           copies->device);
    part.host = static_cast<std::byte*>(const_cast<void*>(host)) +
                row * (out ? rows.target_pitch : rows.source_pitch);
    part.bytes = rows.width;
  }
  QueueCopy(copies, std::move(parts));
  return 0;
}

int DeviceModel::CopyBatch(const Address* targets, const Address* sources, const std::size_t* sizes,
                           std::size_t count, Handle stream) {
  Stream* copies = nullptr;
  const int error = EnterStream(stream, &copies);
  if (copies == nullptr || is_dead(copies->device)) {
    return error;
  }
  std::vector<DevicePart> parts(error == 0 ? count : random_.Below(count));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const bool out = sources[i] >= BaseOf(0);
    parts[i].kind = out ? DevicePart::Kind::kToHost : DevicePart::Kind::kToDevice;
    parts[i].offset = OffsetOf(out ? sources[i] : targets[i], copies->device);
    parts[i].host = reinterpret_cast<std::byte*>(out ? targets[i] : sources[i]);
    parts[i].bytes = sizes[i];
    if (!IsRegistered(parts[i].host, parts[i].bytes)) {
      Blame("a batch copies memory that is not registered");
    }
  }
  QueueCopy(copies, std::move(parts));
  return error;
}

int DeviceModel::Register(void* memory, std::size_t bytes) {
  const int error = EnterContext();
  if (error == 0) {
    registered_[static_cast<std::byte*>(memory)] = bytes;
  }
  return error;
}

int DeviceModel::Unregister(void* memory) {
  if (registered_.erase(static_cast<std::byte*>(memory)) == 0) {
    Blame("memory is unregistered that was not registered");
  }
  return 0;
}

// ---- the move kernel ----

int DeviceModel::LoadModule(Handle* module) {
  const int error = EnterContext();
  *module = HandleOf(1);
  return error != 0 || options_.has_kernels ? error : kInvalidHandle;
}

int DeviceModel::FindFunction(Handle* function, std::string_view name) {
  const int error = EnterContext();
  *function = HandleOf(kFunctionHandle + std::stoul(std::string(name.substr(kKernelName.size()))));
  return error;
}

int DeviceModel::Launch(Handle function, std::array<unsigned, 3> grid, unsigned threads,
                        Handle stream, const MoveTable& table) {
  Stream* copies = nullptr;
  if (const int error = EnterStream(stream, &copies); error != 0) {
    return error;
  }
  if (grid[0] == 0 || grid[1] != table.count || grid[2] != 1 || threads != kMoveThreads) {
    Blame("the move kernel is launched with a wrong grid");
  }
  std::vector<DevicePart> parts;
  for (std::uint32_t i = 0; i < std::min<std::size_t>(table.count, MoveTable::kMost); ++i) {
    if (table.pieces[i].item != NumberOf(function) - kFunctionHandle) {
      Blame("a piece is given to the kernel of another size");
    }
    AddElements(table.pieces[i], table.to_host != 0, copies->device, &parts);
  }
  QueueCopy(copies, std::move(parts));
  return 0;
}

/// Adds the elements of a piece, those that are neighbours on both sides as one part.
void DeviceModel::AddElements(const MovePiece& piece, bool to_host, int device,
                              std::vector<DevicePart>* parts) {
  const auto item = static_cast<std::int64_t>(piece.item);
  const bool dense = piece.device_inner == item && piece.host_inner == item;
  for (std::uint32_t i = piece.first; i < piece.first + piece.count;) {
    const std::uint32_t rest =
        std::min(piece.inner - i % piece.inner, piece.first + piece.count - i);
    const std::uint32_t count = dense ? rest : 1;
    const std::int64_t inner = i % piece.inner;
    const std::int64_t outer = i / piece.inner;
    DevicePart part;
    part.kind = to_host ? DevicePart::Kind::kToHost : DevicePart::Kind::kToDevice;
    part.offset = OffsetOf(piece.device + static_cast<Address>(inner * piece.device_inner +
                                                               outer * piece.device_outer),
                           device);
    part.host = reinterpret_cast<std::byte*>(
        piece.host +
        static_cast<std::uint64_t>(inner * piece.host_inner + outer * piece.host_outer));
    part.bytes = std::uint64_t{count} * piece.item;
    if (!IsRegistered(part.host, part.bytes)) {
      Blame("the move kernel is given memory that is not registered");
    }
    parts->push_back(part);
    i += count;
  }
}

}  // namespace varve::sim
