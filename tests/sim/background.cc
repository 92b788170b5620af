#include "sim/background.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "agent/client.h"
#include "async/job.h"
#include "async/start.h"
#include "crash/matrix.h"
#include "crash/saves.h"
#include "sim/agents.h"
#include "sim/states.h"
#include "varve/async_save.h"
#include "varve/catalogue.h"

namespace varve::sim {
namespace {

using test::Content;
using test::Random;

constexpr const char* kFolder = "/runs";
constexpr std::uint64_t kMostSteps = 60'000;
constexpr auto kPeerTimeout = std::chrono::minutes(15);
constexpr auto kClockError = std::chrono::seconds(2);
constexpr auto kAnswerTimeout = std::chrono::seconds(30);

enum class Kind : std::uint8_t { kAsync, kDeferred };

/// One save of all ranks, and what became of it.
struct Save {
  int version = 0;
  int world = 1;
  Kind kind = Kind::kAsync;
  std::string path;
  bool waits = false;  ///< The trainers wait for its end before they go on.
  std::vector<std::optional<Status>> outcomes;
};

/// The ranks that were started together. A second job goes on where the first has ended.
struct Job {
  int world = 1;
  std::shared_ptr<Mail> mail;
  std::vector<Save*> saves;
  int over = 0;  ///< Trainers that have ended.
};

/// One rank's process.
struct Trainer {
  Trainer(const Surroundings& around, const std::string& name, Fate fate, Job* its_job,
          int its_rank)
      : process(around, name, std::move(fate)), job(*its_job), rank(its_rank) {}
  Process process;
  Job& job;
  const int rank;
  bool exited = false;
  std::vector<std::shared_ptr<Pipe>> pipes;
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
  [[nodiscard]] bool aborted() const { return scheduler_.aborted(); }

 private:
  void AddJob();
  void PlanSaves(Job* job);
  void AddTrainer(Job* job, int rank);
  void LiveTrainer(Trainer& trainer);
  void MakeSaves(Trainer& trainer, Stager& stager, Coordinator& ranks);
  void MakeSave(Trainer& trainer, Save& save, Stager& stager, Coordinator& ranks);
  Result<std::shared_ptr<AgentLink>> Reach(Trainer& trainer);
  Agent& AgentOf(int rank);
  void ForEachOf(int node, const std::function<void(Process&)>& each);
  void Watch();
  [[nodiscard]] Fate DrawSomeFate(std::uint64_t most_operations);
  [[nodiscard]] Surroundings Around() {
    return {&random_, &scheduler_, storage_.get(), plant_, &trace_};
  }
  [[nodiscard]] bool all_calm() const;
  [[nodiscard]] std::string JudgeOutcomes() const;
  [[nodiscard]] std::string JudgePath(const std::string& path, Storage& left) const;
  [[nodiscard]] std::string JudgeDeferred(Storage& left) const;
  [[nodiscard]] std::string JudgeWhatIsLeft();
  [[nodiscard]] int VersionAt(const std::string& path, Storage& left) const;
  template <class T>
  Result<T> Await(const std::shared_future<Result<T>>& future);

  Random random_;
  Scheduler scheduler_;
  const Plant plant_;
  Trace& trace_;
  std::unique_ptr<MemoryStorage> storage_;
  int nodes_ = 1;
  bool one_name_ = false;
  bool troubled_ = false;
  bool clocks_differ_ = false;
  bool power_is_cut_ = false;
  std::list<Job> jobs_;
  std::list<Save> saves_;
  std::vector<std::unique_ptr<Trainer>> trainers_;
  std::vector<std::vector<std::unique_ptr<Agent>>> agents_;  // Of each node, one after the other.
};

// ---- the actors ----

Fate Run::DrawSomeFate(std::uint64_t most_operations) {
  Fate fate;
  if (!troubled_) {
    return fate;
  }
  if (random_.OneIn(4)) {
    fate.killed_at = random_.Below(most_operations);
  } else if (random_.OneIn(3)) {
    fate.stands_at = random_.Below(most_operations);
  } else if (random_.OneIn(6)) {
    fate.stuck_at = random_.Below(most_operations);
  }
  fate.with_node = random_.OneIn(4);
  if (clocks_differ_) {
    fate.clock_jumps = kClockError;
  }
  return fate;
}

void Run::AddJob() {
  Job& job = jobs_.emplace_back();
  job.world = static_cast<int>(random_.Between(1, kMostRanks));
  job.mail = std::make_shared<Mail>(job.world);
  PlanSaves(&job);
  for (int rank = 0; rank < job.world; ++rank) {
    AddTrainer(&job, rank);
  }
}

void Run::PlanSaves(Job* job) {
  const int before = static_cast<int>(saves_.size());
  const int count = static_cast<int>(random_.Between(before == 0 ? 2 : 1, before == 0 ? 4 : 3));
  const bool mixed = random_.OneIn(2);
  Kind kind = random_.OneIn(2) ? Kind::kAsync : Kind::kDeferred;
  for (int version = before + 1; version <= before + count; ++version) {
    if (mixed && random_.OneIn(2)) {
      kind = kind == Kind::kAsync ? Kind::kDeferred : Kind::kAsync;
    }
    Save save;
    save.version = version;
    save.world = job->world;
    save.kind = kind;
    save.path = JoinPath(kFolder, one_name_ ? "step" : "step-" + std::to_string(version));
    save.waits = random_.OneIn(3);
    save.outcomes.resize(static_cast<std::size_t>(job->world));
    trace_.Add("save " + save.path + ": version " + std::to_string(version) + " of " +
               std::to_string(job->world) + " ranks" +
               (kind == Kind::kDeferred ? ", deferred" : ""));
    job->saves.push_back(&saves_.emplace_back(std::move(save)));
  }
}

void Run::AddTrainer(Job* job, int rank) {
  const std::string name =
      (job == &jobs_.front() ? "trainer" : "later.trainer") + std::to_string(rank);
  auto trainer = std::make_unique<Trainer>(Around(), name, DrawSomeFate(60), job, rank);
  Trainer* const made = trainer.get();
  made->process.SetNumber(scheduler_.Add(name, [this, made] { LiveTrainer(*made); }));
  const auto ends = [made] {
    made->exited = true;
    made->job.mail->Ends(made->rank);
    for (const auto& pipe : made->pipes) {
      pipe->Close();
    }
    ++made->job.over;
  };
  made->process.AtDeath(ends);
  made->process.SetNode([this, node = rank % nodes_](const auto& each) { ForEachOf(node, each); });
  trainers_.push_back(std::move(trainer));
}

/// Calls a function for each process of a node.
void Run::ForEachOf(int node, const std::function<void(Process&)>& each) {
  for (const auto& trainer : trainers_) {
    if (trainer->rank % nodes_ == node && !trainer->exited) {
      each(trainer->process);
    }
  }
  for (const auto& agent : agents_[static_cast<std::size_t>(node)]) {
    if (!agent->ended()) {
      each(agent->process());
    }
  }
}

Agent& Run::AgentOf(int rank) {
  const std::size_t node = static_cast<std::size_t>(rank % nodes_);
  auto& agents = agents_[node];
  if (agents.empty() || agents.back()->ended()) {
    const std::string name = "agent" + std::to_string(node) +
                             (agents.empty() ? "" : "." + std::to_string(agents.size()));
    Fate fate = DrawSomeFate(80);
    if (troubled_ && random_.OneIn(6)) {
      fate.fault = DrawFate(&random_).fault;
    }
    if (troubled_ && random_.OneIn(4)) {
      fate.stands_at_write = random_.Below(4);
    }
    fate.slow = random_.OneIn(2);
    agents.push_back(std::make_unique<Agent>(Around(), name, std::move(fate), kPeerTimeout));
    agents.back()->process().SetNode(
        [this, at = rank % nodes_](const auto& each) { ForEachOf(at, each); });
  }
  return *agents.back();
}

Result<std::shared_ptr<AgentLink>> Run::Reach(Trainer& trainer) {
  if (trainer.process.killed() || !IsSimulated()) {
    return Unavailable("killed");
  }
  auto pipe = std::make_shared<Pipe>(Around());
  if (troubled_ && random_.OneIn(3)) {
    pipe->CloseAfter(random_.Between(3, 9));
  }
  trainer.pipes.push_back(pipe);
  AgentOf(trainer.rank).Accept(pipe, [made = &trainer] { return made->exited; });
  auto link = Pipe::End(pipe, /*of_agent=*/false);
  const AgentMessage hello{AgentVerb::kHello, 0, AgentVersion(), {}};
  VARVE_RETURN_IF_ERROR(Ask(*link, hello, Now() + kAnswerTimeout).status());
  return link;
}

void Run::LiveTrainer(Trainer& trainer) {
  {
    MailCoordinator ranks(trainer.job.mail, trainer.rank, &trainer.process);
    const auto reach = [this, &trainer] { return Reach(trainer); };
    auto link = reach();
    if (link.ok()) {
      auto executor = MakeAgentExecutor(kAnswerTimeout, reach, std::move(*link));
      StagerOptions options{.budget_bytes = 6 * kPoolBlockBytes, .copy_threads = 1};
      auto stager = MakeStager(options, nullptr, std::move(executor), trainer.process.storage());
      if (stager.ok()) {
        MakeSaves(trainer, **stager, ranks);
      } else if (IsSimulated()) {
        trace_.Add("no stager: " + stager.status().ToString());
      }
    }
  }
  if (!trainer.exited && IsSimulated()) {
    trainer.exited = true;
    ++trainer.job.over;
    trace_.Add("trainer" + std::to_string(trainer.rank) + " exits");
  }
}

void Run::MakeSaves(Trainer& trainer, Stager& stager, Coordinator& ranks) {
  for (Save* const save : trainer.job.saves) {
    MakeSave(trainer, *save, stager, ranks);
    if (trainer.process.killed() || !IsSimulated()) {
      return;
    }
    scheduler_.SleepFor(std::chrono::milliseconds(random_.Below(50)));
  }
}

template <class T>
Result<T> Run::Await(const std::shared_future<Result<T>>& future) {
  const auto ready = [&] {
    return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  (void)scheduler_.WaitFor(TimePoint::max(), ready);
  return ready() ? future.get() : Result<T>(Unavailable("it was let go"));
}

void Run::MakeSave(Trainer& trainer, Save& save, Stager& stager, Coordinator& ranks) {
  Storage& storage = trainer.process.storage();
  const State state = StateOf(save.version, save.world).rank(trainer.rank);
  SaveOptions options = test::SmallSave(one_name_);
  options.timeout = std::chrono::minutes(10);
  options.save_id = SaveId{{static_cast<std::uint8_t>(save.version)}};
  const auto at = static_cast<std::size_t>(trainer.rank);
  const auto note = [this, &save, &trainer, at](const Status& outcome) {
    if (!trainer.process.killed() && IsSimulated()) {
      save.outcomes[at] = CopyOf(outcome);
      trace_.Add("trainer" + std::to_string(at) + ": version " + std::to_string(save.version) +
                 ": " + outcome.ToString());
    }
  };
  AsyncSaveOptions async;
  async.save = options;
  async.on_done = [note](const Result<AsyncSaveReport>& report) { note(report.status()); };
  const WriteWhen when = save.kind == Kind::kAsync ? WriteWhen::kNow : WriteWhen::kDeferred;
  const AsyncSaveHandle handle =
      StartSave(state, save.path, std::move(async), when, stager, ranks, storage, Status::Ok());
  if (save.waits) {
    (void)Await(handle.done());
  }
}

/// Starts another job when all trainers have ended, perhaps, and then lets the agents end.
void Run::Watch() {
  const auto over = [this] { return jobs_.back().over == jobs_.back().world; };
  (void)scheduler_.WaitFor(TimePoint::max(), over);
  if (random_.OneIn(2)) {
    // An order that neither clocks nor what a trainer has seen can tell is none.
    scheduler_.SleepFor(clocks_differ_ ? 2 * kClockError : std::chrono::seconds(0));
    scheduler_.SleepFor(std::chrono::milliseconds(random_.Below(300)));
    AddJob();
    (void)scheduler_.WaitFor(TimePoint::max(), over);
  }
  for (const auto& node : agents_) {
    for (const auto& agent : node) {
      agent->MayEnd();
    }
  }
}

// ---- what must hold ----

bool Run::all_calm() const { return !troubled_; }

std::string Run::JudgeOutcomes() const {
  for (const Save& save : saves_) {
    const std::string name = "version " + std::to_string(save.version);
    // What the agents write for the first job may be in the way of the second one's name.
    const auto& first = jobs_.front().saves;
    const bool in_the_way =
        one_name_ && std::find(first.begin(), first.end(), &save) == first.end();
    for (std::size_t rank = 0; all_calm() && !in_the_way && rank < save.outcomes.size(); ++rank) {
      if (!save.outcomes[rank]) {
        return name + ": rank " + std::to_string(rank) + " reports nothing";
      }
      if (!save.outcomes[rank]->ok()) {
        return name + " failed on rank " + std::to_string(rank) +
               ", and nothing was in its way: " + save.outcomes[rank]->ToString();
      }
    }
  }
  return "";
}

/// Returns the version at `path`; 0 for none, -1 for what is none of them.
int Run::VersionAt(const std::string& path, Storage& left) const {
  const auto content = test::ReadContent(path, left);
  if (!content.ok()) {
    const StatusCode code = content.status().code();
    return code == StatusCode::kNotFound || code == StatusCode::kFailedPrecondition ? 0 : -1;
  }
  for (const Save& save : saves_) {
    if (save.path == path && *content == StateOf(save.version, save.world).content()) {
      return save.version;
    }
  }
  return -1;
}

std::string Run::JudgePath(const std::string& path, Storage& left) const {
  const int found = VersionAt(path, left);
  if (found < 0) {
    return "a load of " + path +
           " found a mix or damage: " + test::ReadContent(path, left).status().ToString();
  }
  for (const Save& save : saves_) {
    const bool done = save.kind == Kind::kAsync &&
                      std::any_of(save.outcomes.begin(), save.outcomes.end(),
                                  [](const auto& each) { return each && each->ok(); });
    if (save.path == path && done && found < save.version) {
      return "a load of " + path + " found version " + std::to_string(found) + ", and version " +
             std::to_string(save.version) + " was reported as done";
    }
  }
  return "";
}

/// Judges rule 5.
std::string Run::JudgeDeferred(Storage& left) const {
  for (const auto& node : agents_) {
    for (const auto& agent : node) {
      if (!agent->process().fate().is_calm()) {
        return "";
      }
    }
  }
  for (const auto& trainer : trainers_) {
    const bool cut_off = std::any_of(trainer->pipes.begin(), trainer->pipes.end(),
                                     [](const auto& pipe) { return pipe->was_cut(); });
    const Fate& fate = trainer->process.fate();
    if (fate.stands_at || fate.stuck_at || (fate.killed_at && fate.with_node) || cut_off) {
      return "";  // The agent may have died with its node.
    }
  }
  int newest = 0;
  for (const Save& save : saves_) {
    const bool held = save.kind == Kind::kDeferred &&
                      std::all_of(save.outcomes.begin(), save.outcomes.end(),
                                  [](const auto& each) { return each && each->ok(); });
    newest = held ? save.version : newest;
  }
  int found = 0;
  for (const Save& save : saves_) {
    found = std::max(found, VersionAt(save.path, left));
  }
  return found >= newest ? ""
                         : "all ranks had deferred version " + std::to_string(newest) +
                               ", and a load found " + std::to_string(found);
}

std::string Run::JudgeWhatIsLeft() {
  const auto left =
      power_is_cut_ ? storage_->AfterPowerCut(PowerCut::kKeepSynced) : storage_->AfterKill();
  for (const Save& save : saves_) {
    if (std::string problem = JudgePath(save.path, *left); !problem.empty()) {
      return problem;
    }
  }
  if (std::string problem = JudgeDeferred(*left); !problem.empty()) {
    return problem;
  }
  const auto collected = CollectGarbage(kFolder, DryRun::kNo, *left);
  if (!collected.ok() && collected.status().code() != StatusCode::kNotFound) {
    return "at the end gc failed: " + collected.status().ToString();
  }
  std::vector<std::string> paths;
  for (const Save& save : saves_) {
    if (std::string problem = JudgePath(save.path, *left); !problem.empty()) {
      return "after gc " + problem;
    }
    if (VersionAt(save.path, *left) > 0 &&
        std::find(paths.begin(), paths.end(), save.path) == paths.end()) {
      paths.push_back(save.path);
    }
  }
  if (paths.empty()) {
    const auto entries = left->List(kFolder);
    return !entries.ok() || entries->empty() ? "" : "gc left " + entries->front().name;
  }
  const auto tree = test::HoldsNothingBut(paths, *left);
  return tree ? "" : std::string("gc left files: ") + tree.message();
}

std::string Run::Whole() {
  storage_ = std::make_unique<MemoryStorage>(MemoryStorageOptions{});
  nodes_ = static_cast<int>(random_.Between(1, 2));
  one_name_ = random_.OneIn(3);
  troubled_ = !random_.OneIn(4);
  clocks_differ_ = random_.OneIn(2);
  power_is_cut_ = random_.OneIn(4);
  agents_.resize(static_cast<std::size_t>(nodes_));
  AddJob();
  scheduler_.Add("watch", [this] { Watch(); });
  scheduler_.StandWhenAborted();
  std::string problem = scheduler_.Run(kMostSteps);
  if (problem.empty()) {
    problem = JudgeOutcomes();
  }
  return problem.empty() ? JudgeWhatIsLeft() : problem;
}

}  // namespace

Outcome RunBackground(std::uint64_t seed, Plant plant, bool keep_trace) {
  auto trace = std::make_unique<Trace>(keep_trace);
  auto run = std::make_unique<Run>(seed, plant, trace.get());
  Outcome outcome;
  outcome.problem = run->Whole();
  outcome.trace = trace->lines();
  outcome.steps = run->steps();
  if (run->aborted()) {  // Its threads stand where they were, and use it.
    (void)run.release();
    (void)trace.release();
  }
  return outcome;
}

}  // namespace varve::sim
