#include "sim/uploads.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <set>
#include <utility>

#include "base/bytes.h"
#include "sim/network.h"
#include "sim/world.h"
#include "storage/s3/s3_storage.h"

namespace varve::sim {
namespace {

using test::Random;

constexpr std::uint64_t kPartBytes = 64;
constexpr std::uint64_t kMostParts = 6;
constexpr std::uint64_t kMostSteps = 100'000;

/// An object that a process writes, and what became of it.
struct Written {
  std::string name;  ///< "bucket/key"
  std::string content;
  bool gives_up = false;
  std::uint64_t threads = 1;
  bool sync_called = false;
  bool synced = false;
  Status outcome;
};

struct Client {
  std::unique_ptr<Process> process;
  std::vector<Written> objects;
  bool is_patient = true;
  bool ended = false;
};

class Run {
 public:
  Run(std::uint64_t seed, Plant plant, Trace* trace)
      : random_(seed),
        scheduler_(&random_),
        around_{&random_, &scheduler_, &unused_, plant, trace} {}
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  ~Run() = default;

  std::string Whole();
  [[nodiscard]] std::uint64_t steps() const { return scheduler_.steps(); }

 private:
  void AddClient(int number);
  void Live(Client& client);
  void WriteObject(Client& client, s3::S3Storage& storage, Written& object);
  Status WritePieces(WritableFile& file, const Written& object);
  std::unique_ptr<s3::S3Storage> Open(Process* process, std::chrono::milliseconds time);
  [[nodiscard]] bool MayHold(const std::string& name, const std::string* content) const;
  [[nodiscard]] std::string Held(const std::string& name);
  void JudgeSynced(const Written& object, const char* when);
  void JudgeAll();
  void JudgeSweep();
  void Blame(std::string problem) {
    if (problem_.empty()) {
      problem_ = std::move(problem);
    }
  }
  std::string Text(std::uint64_t size);

  Random random_;
  Scheduler scheduler_;
  MemoryStorage unused_;
  const Surroundings around_;
  std::unique_ptr<Network> network_;
  std::map<std::string, std::string> before_;  // By name.
  std::set<std::string> shared_;
  std::vector<std::unique_ptr<Client>> clients_;
  bool calm_ = false;
  bool ends_uploads_ = false;
  std::string problem_;
};

std::string Run::Text(std::uint64_t size) {
  std::string text(size, '\0');
  std::generate(text.begin(), text.end(), [&] { return static_cast<char>(random_.Below(256)); });
  return text;
}

std::unique_ptr<s3::S3Storage> Run::Open(Process* process, std::chrono::milliseconds time) {
  s3::Settings settings;
  settings.endpoint = "http://server";
  settings.part_bytes = kPartBytes;
  settings.retry.time_limit = time;
  return std::make_unique<s3::S3Storage>(
      settings, [] { return s3::Credentials{"key", "secret", ""}; }, nullptr,
      [this, process](const s3::HttpRequest& request) { return network_->Send(process, request); });
}

void Run::AddClient(int number) {
  auto client = std::make_unique<Client>();
  client->is_patient = !random_.OneIn(4);
  Fate fate;
  if (!calm_ && random_.OneIn(4)) {
    fate.killed_at = random_.Below(30);
  }
  const std::string label = "client" + std::to_string(number);
  client->process = std::make_unique<Process>(around_, label, std::move(fate));
  const std::uint64_t count = random_.Between(1, 3);
  for (std::uint64_t i = 0; i < count; ++i) {
    Written object;
    const bool shared = i == 0 && random_.OneIn(3);
    object.name = shared ? "b/shared" : "b/" + label + "-" + std::to_string(i);
    object.content = Text(random_.Below(kMostParts * kPartBytes));
    object.gives_up = random_.OneIn(6);
    object.threads = random_.Between(1, 3);
    if (shared && std::any_of(clients_.begin(), clients_.end(), [](const auto& other) {
          return other->objects[0].name == "b/shared";
        })) {
      shared_.insert(object.name);
    }
    if (random_.OneIn(3) && !before_.contains(object.name)) {
      before_[object.name] = Text(object.content.size());
      network_->server().Put(object.name, before_[object.name]);
    }
    client->objects.push_back(std::move(object));
  }
  scheduler_.Add(label, [this, made = client.get()] { Live(*made); });
  clients_.push_back(std::move(client));
}

/// Writes the object in pieces of any size, in any order, by its threads.
Status Run::WritePieces(WritableFile& file, const Written& object) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> pieces;
  for (std::uint64_t at = 0; at < object.content.size();) {
    const std::uint64_t most = std::min<std::uint64_t>(object.content.size() - at, 2 * kPartBytes);
    const std::uint64_t size = random_.Between(1, most);
    pieces.emplace_back(at, size);
    at += size;
  }
  for (std::size_t i = pieces.size(); i > 1; --i) {
    std::swap(pieces[i - 1], pieces[random_.Below(i)]);
  }
  std::vector<Status> outcomes(object.threads);
  const auto write = [&](std::size_t thread) {
    for (std::size_t i = thread; i < pieces.size() && outcomes[thread].ok(); i += object.threads) {
      const auto [at, size] = pieces[i];
      outcomes[thread] = file.WriteAt(at, AsByteSpan(object.content).subspan(at, size));
    }
  };
  {
    std::vector<Thread> threads;
    for (std::size_t thread = 1; thread < object.threads; ++thread) {
      threads.emplace_back([&write, thread] { write(thread); });
    }
    write(0);
  }
  const auto failed = std::find_if(outcomes.begin(), outcomes.end(),
                                   [](const Status& status) { return !status.ok(); });
  return failed == outcomes.end() ? Status::Ok() : std::move(*failed);
}

void Run::WriteObject(Client& client, s3::S3Storage& storage, Written& object) {
  auto file = storage.OpenForWrite("s3://" + object.name,
                                   {.size = object.content.size(), .exclusive = false});
  if (!file.ok()) {
    object.outcome = file.status();
    return;
  }
  object.outcome = WritePieces(**file, object);
  if (object.outcome.ok() && !object.gives_up) {
    object.sync_called = true;
    object.outcome = (*file)->Sync(object.content.size());
    object.synced = object.outcome.ok() && !client.process->killed();
  }
  around_.trace->Add(object.name + (object.gives_up ? " is given up: " : ": ") +
                     object.outcome.ToString());
  if (object.synced) {
    JudgeSynced(object, "when Sync returned");
  }
}

void Run::Live(Client& client) {
  constexpr std::chrono::milliseconds kPatient{180'000};
  constexpr std::chrono::milliseconds kHasty{1'000};
  const auto storage = Open(client.process.get(), client.is_patient ? kPatient : kHasty);
  for (Written& object : client.objects) {
    if (!client.process->killed()) {
      WriteObject(client, *storage, object);
    }
  }
  client.ended = true;
}

// ---- what must hold ----

std::string Run::Held(const std::string& name) {
  const auto& objects = network_->server().objects();
  const auto found = objects.find(name);
  return found == objects.end() ? "nothing" : std::to_string(found->second.size()) + " bytes";
}

/// `content` null: the name holds nothing.
bool Run::MayHold(const std::string& name, const std::string* content) const {
  const auto before = before_.find(name);
  if (content == nullptr ? before == before_.end()
                         : before != before_.end() && before->second == *content) {
    return true;
  }
  return content != nullptr &&
         std::any_of(clients_.begin(), clients_.end(), [&](const auto& client) {
           return std::any_of(
               client->objects.begin(), client->objects.end(), [&](const Written& object) {
                 return object.name == name && object.sync_called && object.content == *content;
               });
         });
}

void Run::JudgeSynced(const Written& object, const char* when) {
  const auto& objects = network_->server().objects();
  const auto found = objects.find(object.name);
  const bool there = found != objects.end() && found->second == object.content;
  const bool another = shared_.contains(object.name) && found != objects.end() &&
                       MayHold(object.name, &found->second) &&
                       !(before_.contains(object.name) && before_[object.name] == found->second);
  if (!there && !another) {
    Blame("Sync of " + object.name + " (" + std::to_string(object.content.size()) +
          " bytes) succeeded, and " + when + " the name held " + Held(object.name) + ", not these");
  }
}

void Run::JudgeAll() {
  for (const auto& client : clients_) {
    for (const Written& object : client->objects) {
      const auto& objects = network_->server().objects();
      const auto found = objects.find(object.name);
      if (!MayHold(object.name, found == objects.end() ? nullptr : &found->second)) {
        Blame("at the end " + object.name + " held " + Held(object.name) +
              ", which nobody has written whole");
      }
      if (object.synced) {
        JudgeSynced(object, "at the end");
      }
      const bool in_peace = !client->process->killed() && client->is_patient && !ends_uploads_ &&
                            !shared_.contains(object.name);
      if (in_peace && !object.outcome.ok()) {
        Blame(object.name + " failed, and its process was patient: " + object.outcome.ToString());
      }
    }
  }
}

void Run::JudgeSweep() {
  if (calm_ && !ends_uploads_ && network_->server().open_uploads() > 0) {
    Blame("nothing happened, and uploads are open");
  }
  const auto objects = network_->server().objects();
  const auto storage = Open(nullptr, std::chrono::milliseconds(0));
  ConditionalWrites* const sweeper = storage->extras().conditional_writes;
  const auto unfinished = sweeper->ListUnfinished("s3://b");
  if (!unfinished.ok()) {
    Blame("the sweep failed: " + unfinished.status().ToString());
    return;
  }
  for (const auto& file : *unfinished) {
    (void)sweeper->RemoveUnfinished(file);
  }
  if (network_->server().open_uploads() > 0) {
    Blame("after a sweep " + std::to_string(network_->server().open_uploads()) +
          " uploads are open");
  }
  if (network_->server().objects() != objects) {
    Blame("the sweep has changed objects");
  }
}

std::string Run::Whole() {
  calm_ = random_.OneIn(4);
  ends_uploads_ = !calm_ && random_.OneIn(4);
  network_ = std::make_unique<Network>(around_, calm_ ? 0 : random_.Between(2, 12));
  const auto count = static_cast<int>(random_.Between(1, 3));
  for (int number = 0; number < count; ++number) {
    AddClient(number);
  }
  if (ends_uploads_) {
    scheduler_.Add("rule", [this] {
      scheduler_.SleepFor(std::chrono::milliseconds(random_.Below(200)));
      network_->server().EndUploads();
      around_.trace->Add("the server ends all open uploads");
    });
  }
  Blame(scheduler_.Run(kMostSteps));
  if (problem_.empty()) {
    network_->DeliverLate();
    JudgeAll();
    JudgeSweep();
  }
  return problem_;
}

}  // namespace

Outcome RunUploads(std::uint64_t seed, Plant plant, bool keep_trace) {
  Trace trace(keep_trace);
  Run run(seed, plant, &trace);
  Outcome outcome;
  outcome.problem = run.Whole();
  outcome.trace = trace.lines();
  outcome.steps = run.steps();
  return outcome;
}

}  // namespace varve::sim
