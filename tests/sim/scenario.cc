#include "sim/scenario.h"

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "base/guarded.h"
#include "crash/matrix.h"
#include "crash/saves.h"
#include "sim/states.h"
#include "sim/world.h"
#include "varve/catalogue.h"

namespace varve::sim {
namespace {

using test::Content;
using test::Random;

constexpr const char* kFolder = "runs";
constexpr const char* kPath = "runs/step";
constexpr std::uint64_t kMostSteps = 20'000;

SaveOptions OptionsOf(int version, bool overwrite, bool coordinate) {
  SaveOptions options = test::SmallSave(overwrite);
  options.coordinate = coordinate;
  options.save_id = SaveId{{static_cast<std::uint8_t>(version)}};
  return options;
}

/// A job that saves one version, and what became of it.
struct Job {
  int version = 0;
  int world = 1;
  bool coordinate = true;
  bool overwrite = true;
  std::shared_ptr<Mail> mail;
  std::vector<std::unique_ptr<Process>> ranks;
  std::vector<std::optional<Status>> outcomes;
  std::optional<TimePoint> began;
  std::optional<TimePoint> succeeded;  ///< When the save was known to be durable.
  int ended = 0;
  TimePoint over;  ///< When the last rank ended.

  [[nodiscard]] bool is_over() const { return ended == world; }
};

class Run {
 public:
  Run(std::uint64_t seed, Plant plant, Trace* trace)
      : random_(seed), scheduler_(&random_), plant_(plant), trace_(*trace) {}
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  ~Run() = default;

  std::string Whole();
  [[nodiscard]] std::uint64_t steps() const { return scheduler_.steps(); }

 private:
  void AddJob(int version, const Job* after);
  void LiveRank(Job& job, int rank);
  void LiveReader(Process& process);
  void LiveCollector(Process& process);
  [[nodiscard]] bool MayBeFound(const Content& content, TimePoint since) const;
  [[nodiscard]] bool MustBeFound(TimePoint since) const;
  [[nodiscard]] std::string Judge(const Result<Content>& content, TimePoint since,
                                  bool alone) const;
  [[nodiscard]] std::string JudgeOutcomes(const Job& job) const;
  [[nodiscard]] testing::AssertionResult HoldsOnlyTheCheckpoint(Storage& left) const;
  [[nodiscard]] std::string JudgeWhatIsLeft();
  [[nodiscard]] Surroundings Around() {
    return {&random_, &scheduler_, storage_.get(), plant_, &trace_};
  }
  void Note(const std::string& line) { trace_.Add(line); }
  void Blame(std::string problem) {
    if (problem_.empty() && !problem.empty()) {
      problem_ = std::move(problem);
    }
  }

  Random random_;
  Scheduler scheduler_;
  const Plant plant_;
  Trace& trace_;
  std::unique_ptr<MemoryStorage> storage_;
  bool has_first_ = false;
  bool has_locks_ = true;
  bool has_exchange_ = true;
  bool has_rival_ = false;
  bool collects_ = false;
  std::vector<std::unique_ptr<Job>> jobs_;
  std::vector<std::unique_ptr<Process>> others_;
  std::string problem_;
};

// ---- the actors ----

void Run::AddJob(int version, const Job* after) {
  auto job = std::make_unique<Job>();
  job->version = version;
  job->world = static_cast<int>(random_.Between(1, kMostRanks));
  job->coordinate = !random_.OneIn(4);
  if (!jobs_.empty() && has_rival_ && !has_exchange_) {
    job->coordinate = jobs_[0]->coordinate;
  }
  job->overwrite = has_first_ || after != nullptr || !random_.OneIn(2);
  job->mail = std::make_shared<Mail>(job->world);
  job->outcomes.resize(static_cast<std::size_t>(job->world));
  const std::string name = "job" + std::to_string(version);
  for (int rank = 0; rank < job->world; ++rank) {
    job->ranks.push_back(std::make_unique<Process>(Around(), name + ".rank" + std::to_string(rank),
                                                   DrawFate(&random_)));
    scheduler_.Add(name + ".rank" + std::to_string(rank), [this, made = job.get(), after, rank] {
      if (after == nullptr ||
          scheduler_.WaitFor(TimePoint::max(), [after] { return after->is_over(); })) {
        LiveRank(*made, rank);
      }
    });
  }
  Note(name + ": world " + std::to_string(job->world) +
       (job->coordinate ? ", coordinated" : ", each rank apart") +
       (job->overwrite ? ", overwrites" : ""));
  jobs_.push_back(std::move(job));
}

void Run::LiveRank(Job& job, int rank) {
  const auto at = static_cast<std::size_t>(rank);
  Process& process = *job.ranks[at];
  if (!job.began) {
    job.began = scheduler_.Now();
  }
  {
    MailCoordinator mail(job.mail, rank, &process);
    test::SilentCoordinator silent(rank, job.world);
    Coordinator& coordinator = job.coordinate ? static_cast<Coordinator&>(mail) : silent;
    const Status outcome =
        Save(StateOf(job.version, job.world).rank(rank), kPath,
             OptionsOf(job.version, job.overwrite, job.coordinate), coordinator, process.storage())
            .status();
    if (!process.killed()) {
      job.outcomes[at] = CopyOf(outcome);
      Note("job" + std::to_string(job.version) + ".rank" + std::to_string(rank) +
           " reports: " + outcome.ToString());
    }
  }
  const auto is_ok = [](const auto& each) { return each && each->ok(); };
  const auto& all = job.outcomes;
  const bool durable = job.coordinate ? std::any_of(all.begin(), all.end(), is_ok)
                                      : std::all_of(all.begin(), all.end(), is_ok);
  if (durable && !job.succeeded) {
    job.succeeded = scheduler_.Now();
  }
  if (++job.ended == job.world) {
    job.over = scheduler_.Now();
  }
}

void Run::LiveReader(Process& process) {
  const auto saves_are_over = [&] {
    return std::all_of(jobs_.begin(), jobs_.end(), [](const auto& job) { return job->is_over(); });
  };
  for (int i = 0; i < 8 && !process.killed(); ++i) {
    const TimePoint since = scheduler_.Now();
    const bool alone = saves_are_over();
    const auto content = test::ReadContent(kPath, process.storage());
    if (process.killed()) {
      return;
    }
    Note("reader: " + (content.ok() ? "loads" : content.status().ToString()));
    Blame(Judge(content, since, alone));
    scheduler_.SleepFor(std::chrono::milliseconds(random_.Below(60)));
  }
}

void Run::LiveCollector(Process& process) {
  scheduler_.SleepFor(std::chrono::milliseconds(random_.Below(200)));
  const auto report = CollectGarbage(kFolder, DryRun::kNo, process.storage());
  Note("gc: " + report.status().ToString());
}

// ---- what must hold ----

/// Returns the version that a content is, for messages.
std::string Describe(const Content& content) {
  for (int version = 1; version <= kVersions; ++version) {
    for (int world = 1; world <= kMostRanks; ++world) {
      if (content == StateOf(version, world).content()) {
        return "version " + std::to_string(version) + " of " + std::to_string(world) + " ranks";
      }
    }
  }
  std::string mix = "a mix:";
  for (const auto& [name, tensor] : content.tensors) {
    mix += " " + name;
    for (int version = 1; version <= kVersions; ++version) {
      for (int world = 1; world <= kMostRanks; ++world) {
        const auto& tensors = StateOf(version, world).content().tensors;
        const auto found = tensors.find(name);
        if (found != tensors.end() && found->second == tensor) {
          mix += " " + std::to_string(version) + "/" + std::to_string(world);
        }
      }
    }
  }
  return mix;
}

bool Run::MayBeFound(const Content& content, TimePoint since) const {
  std::optional<TimePoint> newest;  // The beginning of the last save that was over by `since`.
  for (const auto& job : jobs_) {
    if (job->succeeded && *job->succeeded <= since) {
      newest = std::max(newest.value_or(*job->began), *job->began);
    }
  }
  if (has_first_ && !newest && content == StateOf(1, 1).content()) {
    return true;
  }
  for (const auto& job : jobs_) {
    if (job->began && content == StateOf(job->version, job->world).content()) {
      return !(newest && job->is_over() && job->over < *newest);
    }
  }
  return false;
}

bool Run::MustBeFound(TimePoint since) const {
  return has_first_ || std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& job) {
           return job->succeeded && *job->succeeded <= since;
         });
}

std::string Run::Judge(const Result<Content>& content, TimePoint since, bool alone) const {
  if (content.ok()) {
    return MayBeFound(*content, since)
               ? ""
               : "a load found " + Describe(*content) + ", which is a mix or too old";
  }
  const StatusCode code = content.status().code();
  if (code == StatusCode::kNotFound && !MustBeFound(since)) {
    return "";
  }
  if (code == StatusCode::kFailedPrecondition && (!alone || !MustBeFound(since))) {
    return "";  // It was replaced while it was read; or there is an unfinished save only.
  }
  return "a load failed: " + content.status().ToString();
}

std::string Run::JudgeOutcomes(const Job& job) const {
  const bool calm = std::all_of(job.ranks.begin(), job.ranks.end(), [](const auto& rank) {
    return !rank->fate().killed_at && !rank->fate().stands_at;
  });
  const std::string name = "job" + std::to_string(job.version);
  for (std::size_t rank = 0; calm && job.coordinate && rank < job.outcomes.size(); ++rank) {
    if (!job.outcomes[rank]) {
      return name + ": rank " + std::to_string(rank) + " reports nothing";
    }
    if (job.outcomes[rank]->code() != job.outcomes[0]->code()) {
      return name + ": rank 0 reports " + job.outcomes[0]->ToString() + ", rank " +
             std::to_string(rank) + " " + job.outcomes[rank]->ToString();
    }
  }
  const bool at_peace = jobs_.size() == 1 && !collects_ &&
                        job.ranks.size() == job.outcomes.size() &&
                        std::all_of(job.ranks.begin(), job.ranks.end(),
                                    [](const auto& rank) { return rank->fate().is_calm(); });
  // Ranks apart cannot replace what ranks together have saved.
  if (at_peace && job.outcomes[0] && (job.coordinate || !has_first_) && !job.succeeded) {
    return name + " failed, and nothing was in its way: " + job.outcomes[0]->ToString();
  }
  return "";
}

/// Ranks that save apart remove the files of older saves when theirs are complete; until a later
/// save does, both may be there.
testing::AssertionResult Run::HoldsOnlyTheCheckpoint(Storage& left) const {
  std::vector<std::string> older;
  const auto reader = CheckpointReader::Open(kPath, left);
  const bool apart = std::any_of(jobs_.begin(), jobs_.end(),
                                 [](const auto& job) { return job->began && !job->coordinate; });
  const auto entries = left.List(kPath);
  if (apart && reader.ok() && entries.ok()) {
    const auto& files = (*reader)->metadata().files;
    for (const DirectoryEntry& entry : *entries) {
      if (entry.name.starts_with("data-") &&
          std::none_of(files.begin(), files.end(),
                       [&](const DataFile& file) { return file.name == entry.name; })) {
        older.push_back(JoinPath(kPath, entry.name));
      }
    }
  }
  return test::HoldsNothingBut({kPath}, left, older);
}

std::string Run::JudgeWhatIsLeft() {
  const TimePoint end = scheduler_.Now();
  std::unique_ptr<MemoryStorage> left;
  if (random_.OneIn(2)) {
    left = storage_->AfterKill();
    Note("all processes have ended");
  } else {
    constexpr std::array kCuts = {
        PowerCut::kKeepAll,  PowerCut::kKeepSynced,    PowerCut::kZeroData, PowerCut::kTruncateData,
        PowerCut::kKeepData, PowerCut::kRandomOrdered, PowerCut::kRandom};
    const std::size_t cut = random_.Below(kCuts.size());
    left = storage_->AfterPowerCut(kCuts[cut], random_.Below(1000));
    Note("the power is cut: kind " + std::to_string(cut));
  }
  std::string problem = Judge(test::ReadContent(kPath, *left), end, true);
  if (!problem.empty()) {
    return "at the end " + problem;
  }
  FaultyStorage planted(*left);
  planted.SetSkipped([this](Operation operation, const std::string& name, bool fails) {
    return Skips(plant_, "gc", operation, name, fails);
  });
  const auto collected = CollectGarbage(kFolder, DryRun::kNo, planted);
  if (!collected.ok() && collected.status().code() != StatusCode::kNotFound) {
    return "at the end gc failed: " + collected.status().ToString();
  }
  const auto content = test::ReadContent(kPath, *left);
  problem = Judge(content, end, true);
  if (!problem.empty()) {
    return "after gc " + problem;
  }
  if (const auto tree = content.ok() ? HoldsOnlyTheCheckpoint(*left) : testing::AssertionSuccess();
      has_locks_ && !tree) {
    return std::string("gc left files: ") + tree.message();
  }
  const auto saved = Save(StateOf(kVersions, 1).rank(0), kPath, OptionsOf(kVersions, true, true),
                          *MakeSingleProcessCoordinator(), *left);
  if (!saved.ok()) {
    return "the next save failed: " + saved.status().ToString();
  }
  const auto tree = HoldsOnlyTheCheckpoint(*left);
  return has_locks_ && !tree ? std::string("the next save left files: ") + tree.message() : "";
}

std::string Run::Whole() {
  has_first_ = !random_.OneIn(4);
  has_locks_ = !random_.OneIn(8);
  has_exchange_ = !random_.OneIn(4);
  has_rival_ = has_locks_ && random_.OneIn(3);
  storage_ = std::make_unique<MemoryStorage>(
      MemoryStorageOptions{.exchange = has_exchange_, .locks = has_locks_});
  if (has_first_) {
    const auto saved = Save(StateOf(1, 1).rank(0), kPath, OptionsOf(1, false, true),
                            *MakeSingleProcessCoordinator(), *storage_);
    if (!saved.ok()) {
      return "the first save failed: " + saved.status().ToString();
    }
  }
  AddJob(2, nullptr);
  const Job* const first = jobs_[0].get();
  if (has_rival_) {
    AddJob(3, nullptr);
  }
  if (random_.OneIn(2)) {
    AddJob(4, first);
  }
  if (random_.OneIn(2)) {
    others_.push_back(std::make_unique<Process>(Around(), "reader", Fate{}));
    scheduler_.Add("reader", [this, process = others_.back().get()] { LiveReader(*process); });
  }
  collects_ = has_locks_ && random_.OneIn(3);
  if (collects_) {
    Fate fate = DrawFate(&random_);
    fate.stands_at.reset();
    others_.push_back(std::make_unique<Process>(Around(), "gc", std::move(fate)));
    scheduler_.Add("gc", [this, process = others_.back().get()] { LiveCollector(*process); });
  }
  Blame(scheduler_.Run(kMostSteps));
  for (const auto& job : jobs_) {
    Blame(JudgeOutcomes(*job));
  }
  if (problem_.empty()) {
    Blame(JudgeWhatIsLeft());
  }
  return problem_;
}

}  // namespace

Outcome RunScenario(std::uint64_t seed, Plant plant, bool keep_trace) {
  Trace trace(keep_trace);
  Run run(seed, plant, &trace);
  Outcome outcome;
  outcome.problem = run.Whole();
  outcome.trace = trace.lines();
  outcome.steps = run.steps();
  return outcome;
}

}  // namespace varve::sim
