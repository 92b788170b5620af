#include "sim/devices.h"

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda_devices.h"
#include "sim/device_model.h"
#include "sim/device_training.h"

namespace varve::sim {
namespace {

using test::Random;

constexpr std::uint64_t kBlockBytes = std::uint64_t{24} << 10;
/// What a copy counts as where it is repeated: two of them are more than may be queued.
constexpr std::uint64_t kRepeatedBytes = std::uint64_t{20} << 20;
constexpr std::size_t kMostJobs = 2;
constexpr std::size_t kMostBlocks = 4;  // Of one job at a time.
constexpr std::uint64_t kJobBytes = kMostBlocks * kBlockBytes;

/// Bytes of a tensor of one row, or rows of another one, and their place in a block.
struct Part {
  DeviceTensor* tensor = nullptr;
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  std::uint64_t at = 0;
  std::uint64_t host_pitch = 1;
  std::uint64_t times = 1;  ///< The same bytes are copied so many times.
};

/// Calls a function for each run of bytes of a part, with its offsets on the device and in the
/// block.
template <class Function>
void ForEachRun(const Part& part, const Function& each) {
  const DeviceTensor& tensor = *part.tensor;
  if (tensor.rows == 1) {
    each(tensor.begin + part.first, part.at, part.count);
    return;
  }
  for (std::uint64_t row = 0; row < part.count; ++row) {
    each(tensor.begin + (part.first + row) * tensor.pitch, part.at + row * part.host_pitch,
         tensor.row_bytes);
  }
}

DeviceMove MoveOf(const Part& part, std::byte* block) {
  const DeviceTensor& tensor = *part.tensor;
  DeviceMove move;
  move.device = tensor.device;
  if (tensor.rows == 1) {
    move.on_device = DeviceModel::AddressOf(tensor.device, tensor.begin + part.first);
    move.on_host = block + part.at;
    move.row_bytes = part.count;
    move.inner = move.count = part.times;  // With steps of nothing.
    return move;
  }
  // As those of a region: the addresses are of the first row of all.
  move.on_device = DeviceModel::AddressOf(tensor.device, tensor.begin);
  move.on_host = block + part.at - part.first * part.host_pitch;
  move.row_bytes = tensor.row_bytes;
  move.device_inner = static_cast<std::int64_t>(tensor.pitch);
  move.host_inner = static_cast<std::int64_t>(part.host_pitch);
  move.inner = tensor.rows;
  move.first = part.first;
  move.count = part.count;
  return move;
}

/// The parts of a run that its jobs use.
struct Scene {
  Random* random = nullptr;
  Trace* trace = nullptr;
  DeviceModel* model = nullptr;
  DeviceTraining* training = nullptr;
  CudaDevices* devices = nullptr;
  bool repeats = false;  ///< Long copies are repeated, so that too many bytes are queued.
};

/// A save or a load of some tensors.
class Job {
 public:
  /// `memory`: kMostBlocks blocks, the job's as long as it lives.
  Job(const Scene& scene, Direction direction, int number, std::vector<DeviceTensor*> tensors,
      std::byte* memory);
  /// Does the next thing. Returns false when nothing is left.
  bool Step();

 private:
  struct Slot {
    std::byte* memory = nullptr;
    std::size_t block = 0;
    std::shared_ptr<const CudaDevices::Work> work;  ///< Null: free.
  };

  void Plan();
  void PlanTensor(DeviceTensor* tensor);
  void RegisterBlocks();
  void Begin();
  void QueueNext(Slot* slot);
  void WaitFor(Slot* slot);
  void GiveBack(const Slot& slot, bool succeeded);
  void FillBlock(const Slot& slot);
  void JudgeBlock(const Slot& slot) const;
  void End();
  /// Notes the result of a call of the engine. Returns true for success.
  bool Note(const Status& status, const std::string& call);
  [[nodiscard]] std::uint64_t ValueOf(const DeviceTensor* tensor) const;
  [[nodiscard]] bool saves() const { return direction_ == Direction::kToHost; }

  const Scene scene_;
  Random& random_;
  const Direction direction_;
  const std::string name_;
  const std::vector<DeviceTensor*> tensors_;
  std::vector<std::uint64_t> values_;  // Of the tensors.
  std::vector<std::vector<Part>> blocks_;
  std::uint64_t used_ = kBlockBytes;  // Of the last block while they are planned.
  std::size_t next_ = 0;
  std::byte* const memory_;
  std::vector<Slot> slots_;
  bool begun_ = false;
  bool failed_ = false;
};

Job::Job(const Scene& scene, Direction direction, int number, std::vector<DeviceTensor*> tensors,
         std::byte* memory)
    : scene_(scene),
      random_(*scene.random),
      direction_(direction),
      name_((direction == Direction::kToHost ? "save " : "load ") + std::to_string(number)),
      tensors_(std::move(tensors)),
      memory_(memory) {
  Plan();
  slots_.resize(random_.Between(1, kMostBlocks));
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].memory = memory_ + i * kBlockBytes;
  }
  for (DeviceTensor* const tensor : tensors_) {
    (saves() ? tensor->is_saved : tensor->is_loaded) = true;
    values_.push_back(saves() ? tensor->value : scene_.training->NewValue());
  }
}

// ---- what is copied ----

void Job::Plan() {
  for (DeviceTensor* const tensor : tensors_) {
    PlanTensor(tensor);
  }
}

void Job::PlanTensor(DeviceTensor* tensor) {
  const std::uint64_t all = tensor->rows == 1 ? tensor->row_bytes : tensor->rows;
  const std::uint64_t pitch =
      tensor->rows == 1 ? 1 : tensor->row_bytes + (random_.OneIn(3) ? tensor->row_bytes : 0);
  for (std::uint64_t done = 0; done < all;) {
    if (kBlockBytes - used_ < pitch || random_.OneIn(4)) {
      blocks_.emplace_back();
      used_ = 0;
    }
    Part part{.tensor = tensor, .first = done, .at = used_, .host_pitch = pitch};
    part.count = std::min(all - done, (kBlockBytes - used_) / pitch);
    if (random_.OneIn(4)) {
      part.count = random_.Between(1, part.count);
    }
    if (scene_.repeats && tensor->rows == 1 && part.count >= kLeastCopyBytes) {
      part.times = kRepeatedBytes / part.count;
    }
    done += part.count;
    used_ += part.count * pitch;
    used_ = random_.OneIn(2) ? std::min(kBlockBytes, (used_ + 15) / 16 * 16) : used_;
    blocks_.back().push_back(part);
  }
}

std::uint64_t Job::ValueOf(const DeviceTensor* tensor) const {
  const auto at = std::find(tensors_.begin(), tensors_.end(), tensor) - tensors_.begin();
  return values_[static_cast<std::size_t>(at)];
}

// ---- the calls of the engine ----

bool Job::Note(const Status& status, const std::string& call) {
  scene_.model->JudgeThread();
  scene_.trace->Add(name_ + ": " + call + ": " + status.ToString());
  if (status.ok()) {
    return true;
  }
  failed_ = true;
  const std::string said = name_ + ": " + call + " failed: " + status.ToString();
  if (!scene_.model->has_failed()) {
    scene_.model->Blame(said + ", and no call of the driver had");
  }
  if (status.code() != StatusCode::kUnavailable ||
      status.message().find("CUDA device ") == std::string::npos) {
    scene_.model->Blame(said + ", which names no device or has the wrong code");
  }
  return false;
}

/// Registers the blocks, perhaps. They can be used also where that fails.
void Job::RegisterBlocks() {
  if (failed_ || random_.OneIn(3)) {
    return;
  }
  (void)Note(
      scene_.devices->Register(tensors_.front()->device, {memory_, slots_.size() * kBlockBytes}),
      "Register");
  failed_ = false;
}

void Job::Begin() {
  begun_ = true;
  std::set<std::pair<int, CudaDriver::Handle>> streams;
  for (const DeviceTensor* const tensor : tensors_) {
    streams.emplace(tensor->device, tensor->stream);
  }
  for (const auto& [device, stream] : streams) {
    if (!Note(scene_.devices->After(direction_, device, stream), "After")) {
      return;
    }
  }
}

bool Job::Step() {
  if (!begun_) {
    Begin();
    RegisterBlocks();
    return true;
  }
  std::vector<Slot*> waiting;
  std::vector<Slot*> free;
  for (Slot& slot : slots_) {
    (slot.work == nullptr ? free : waiting).push_back(&slot);
  }
  const bool can_queue = !failed_ && next_ < blocks_.size() && !free.empty();
  if (can_queue && (waiting.empty() || !random_.OneIn(3))) {
    QueueNext(free[random_.Below(free.size())]);
  } else if (!waiting.empty()) {
    WaitFor(waiting[random_.Below(waiting.size())]);
  } else {
    End();
    return false;
  }
  return true;
}

/// Queues the next block, and perhaps waits for it at once.
void Job::QueueNext(Slot* slot) {
  slot->block = next_++;
  if (!saves()) {
    FillBlock(*slot);
  }
  std::vector<DeviceMove> moves;
  for (const Part& part : blocks_[slot->block]) {
    moves.push_back(MoveOf(part, slot->memory));
  }
  scene_.model->Lend(slot->memory, kBlockBytes);
  const std::string of = " of block " + std::to_string(slot->block);
  if (random_.OneIn(scene_.repeats ? 8 : 2)) {
    GiveBack(*slot, Note(scene_.devices->Move(direction_, moves), "Move" + of));
    return;
  }
  auto work = scene_.devices->Queue(direction_, moves);
  if (Note(work.status(), "Queue" + of)) {
    slot->work = std::move(*work);
  } else {
    GiveBack(*slot, false);
  }
}

void Job::WaitFor(Slot* slot) {
  const Status status = CudaDevices::Wait(*slot->work);
  slot->work = nullptr;
  GiveBack(*slot, Note(status, "Wait for block " + std::to_string(slot->block)));
}

/// Uses the block for something else at once.
void Job::GiveBack(const Slot& slot, bool succeeded) {
  scene_.model->TakeBack(slot.memory);
  if (saves() && succeeded) {
    JudgeBlock(slot);
  }
  std::fill_n(slot.memory, kBlockBytes, std::byte{0xee});
}

void Job::FillBlock(const Slot& slot) {
  for (const Part& part : blocks_[slot.block]) {
    const std::uint64_t value = ValueOf(part.tensor);
    ForEachRun(part, [&](std::uint64_t offset, std::uint64_t at, std::uint64_t bytes) {
      for (std::uint64_t i = 0; i < bytes; ++i) {
        slot.memory[at + i] = ContentAt(value, offset + i);
      }
    });
  }
}

void Job::JudgeBlock(const Slot& slot) const {
  for (const Part& part : blocks_[slot.block]) {
    const std::uint64_t value = ValueOf(part.tensor);
    ForEachRun(part, [&](std::uint64_t offset, std::uint64_t at, std::uint64_t bytes) {
      for (std::uint64_t i = 0; i < bytes; ++i) {
        if (slot.memory[at + i] != ContentAt(value, offset + i)) {
          scene_.model->Blame(name_ + " does not have value " + std::to_string(value) +
                              " of the call at " + std::to_string(offset + i) + " of device " +
                              std::to_string(part.tensor->device));
          return;
        }
      }
    });
  }
}

/// Reports the save as staged, or returns from the load. What a load that failed leaves in a tensor
/// is of no use: the training writes it anew.
void Job::End() {
  scene_.devices->Unregister(memory_);
  scene_.model->JudgeThread();
  scene_.trace->Add(name_ + (failed_ ? " has failed" : " has ended"));
  for (DeviceTensor* const tensor : tensors_) {
    tensor->is_saved = tensor->is_loaded = false;
    if (saves()) {
      if (random_.OneIn(2)) {
        scene_.training->Reuse(tensor);
      }
    } else if (failed_) {
      scene_.training->Write(tensor);
    } else {
      tensor->value = ValueOf(tensor);
      scene_.training->MoveToAnyStream(tensor);
      scene_.training->Read(*tensor);
    }
  }
}

// ---- the run ----

DeviceModelOptions DrawOptions(Random* random) {
  DeviceModelOptions options;
  options.devices = random->OneIn(3) ? 2 : 1;
  options.has_batches = !random->OneIn(3);
  options.has_kernels = !random->OneIn(4);
  options.runs_one_in = random->OneIn(3) ? 0 : random->Between(1, 8);
  if (random->OneIn(2)) {
    for (std::uint64_t count = random->Between(1, 3); count > 0; --count) {
      options.fails_at.insert(random->Between(1, 400));
    }
  }
  if (random->OneIn(16)) {
    options.dies_at = random->Between(1, 600);
  }
  return options;
}

class Run {
 public:
  Run(std::uint64_t seed, Plant plant, Trace* trace)
      : random_(seed),
        options_(DrawOptions(&random_)),
        repeats_(random_.OneIn(32)),
        model_(&random_, trace, plant, options_),
        training_(&random_, &model_, options_.devices, repeats_),
        devices_(CudaDevices::MakeForTest(model_.driver())),
        scene_{&random_, trace, &model_, &training_, devices_.get(), repeats_},
        host_(kMostJobs * kJobBytes) {}

  std::string Whole();
  [[nodiscard]] std::uint64_t steps() const { return model_.steps(); }

 private:
  void AddJob();
  void StepJob();
  [[nodiscard]] bool has_jobs() const {
    return std::any_of(jobs_.begin(), jobs_.end(), [](const auto& job) { return job != nullptr; });
  }

  Random random_;
  const DeviceModelOptions options_;
  const bool repeats_;
  DeviceModel model_;
  DeviceTraining training_;
  const std::unique_ptr<CudaDevices> devices_;
  const Scene scene_;
  std::vector<std::byte> host_;
  std::array<std::unique_ptr<Job>, kMostJobs> jobs_;
  int last_job_ = 0;
};

/// Begins a save or a load of some of the tensors that are neither saved nor loaded.
void Run::AddJob() {
  std::vector<DeviceTensor*> tensors;
  for (DeviceTensor& tensor : training_.tensors()) {
    if (tensor.is_free()) {
      tensors.push_back(&tensor);
    }
  }
  const auto place = std::find(jobs_.begin(), jobs_.end(), nullptr);
  if (tensors.empty() || place == jobs_.end()) {
    return;
  }
  random_.Shuffle(&tensors);
  tensors.resize(random_.Between(1, std::min<std::size_t>(3, tensors.size())));
  const Direction direction = random_.OneIn(2) ? Direction::kToHost : Direction::kToDevice;
  std::byte* const memory =
      host_.data() + static_cast<std::size_t>(place - jobs_.begin()) * kJobBytes;
  *place = std::make_unique<Job>(scene_, direction, ++last_job_, std::move(tensors), memory);
  (void)(*place)->Step();  // The call: nothing of the training comes in between.
}

void Run::StepJob() {
  std::unique_ptr<Job>& job = jobs_[random_.Below(jobs_.size())];
  if (job != nullptr && !job->Step()) {
    job = nullptr;
  }
}

std::string Run::Whole() {
  for (std::uint64_t left = random_.Between(20, 80); left > 0 || has_jobs();) {
    model_.RunSome();
    if (random_.OneIn(3)) {
      training_.Work();
    } else if (left > 0 && random_.OneIn(6)) {
      AddJob();
    } else {
      StepJob();
    }
    left -= left > 0 ? 1 : 0;
    if (!model_.problem().empty()) {
      return model_.problem();
    }
  }
  model_.RunAll();
  training_.Judge();
  return model_.problem();
}

}  // namespace

Outcome RunDevices(std::uint64_t seed, Plant plant, bool keep_trace) {
  Trace trace(keep_trace);
  Run run(seed, plant, &trace);
  Outcome outcome;
  outcome.problem = run.Whole();
  outcome.trace = trace.lines();
  outcome.steps = run.steps();
  return outcome;
}

}  // namespace varve::sim
