// One job at a time has a run. On a file system it holds the storage's lock on a hidden file, which
// names the holder.
//
// In an object store nothing ends with a process, so that a lock would outlive a job that was
// killed, and keep out the one that is to go on. The job that came last has the run.
//  1. List RUN/.varve-run/. Each claim there is an object with a number and its holder.
//  2. Write a claim with the next number, on condition that there is none. Of two jobs that begin
//     at once one gets AlreadyExists, looks again and takes a higher number: it came last.
//     Then list again: where a higher claim has come since step 1, this job did not come last, or
//     the number had been used before. It gives its claim back and begins anew.
//  3. Remove the claims below. A crash before leaves them, below one that counts.
//  4. A job that has the run asks after each save, and before it removes a step, whether its claim
//     is still the highest. One that lives on unseen (a host that was cut off) so learns that a
//     later job has the run, and ends. Until then it may finish one save: its steps count as older
//     than those of the later job, whatever their numbers (StepNote::attempt, which is at least the
//     claim's number), and replace none of them (save/coordinated.cc).
// A claim stays when its job has ended: the highest number is not used again, so that a job that
// was cut off cannot take a later claim for its own.

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <optional>

#include "base/retry_time.h"
#include "catalogue/family.h"
#include "catalogue/names.h"
#include "publish/claim.h"
#include "publish/save_id.h"
#include "varve/manage.h"

namespace varve {
namespace {

constexpr std::string_view kClaim = "claim-";
constexpr std::uint64_t kMaxClaimBytes = 4096;
/// Jobs that begin in the same moment.
constexpr int kTries = 16;

std::string ClaimName(std::uint64_t number) {
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "claim-%08llu", static_cast<unsigned long long>(number));
  return name.data();
}

std::optional<std::uint64_t> ClaimNumber(const DirectoryEntry& entry) {
  std::uint64_t number = 0;
  if (entry.is_directory || !entry.name.starts_with(kClaim)) {
    return std::nullopt;
  }
  const char* const end = entry.name.data() + entry.name.size();
  const auto parsed = std::from_chars(entry.name.data() + kClaim.size(), end, number);
  return parsed.ec == std::errc() && parsed.ptr == end ? std::optional(number) : std::nullopt;
}

/// Returns the numbers of the claims in a directory, sorted.
Result<std::vector<std::uint64_t>> Claims(Storage& storage, const std::string& directory) {
  const auto entries = storage.List(directory);
  if (entries.status().code() == StatusCode::kNotFound) {
    return std::vector<std::uint64_t>{};
  }
  VARVE_RETURN_IF_ERROR(entries.status());
  std::vector<std::uint64_t> numbers;
  for (const DirectoryEntry& entry : *entries) {
    if (const auto number = ClaimNumber(entry)) {
      numbers.push_back(*number);
    }
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

class Claim final : public RunLock {
 public:
  Claim(Storage& storage, std::string run, std::string directory, std::uint64_t number)
      : storage_(storage),
        run_(std::move(run)),
        directory_(std::move(directory)),
        number_(number) {}

  Status CheckHeld() override {
    const auto found = Claims(storage_, directory_);
    if (!found.ok() || found->empty()) {
      return NotKnown(found.status());
    }
    const std::uint64_t highest = found->back();
    if (highest == number_) {
      return Status::Ok();
    }
    const auto text =
        ReadWholeFile(storage_, JoinPath(directory_, ClaimName(highest)), kMaxClaimBytes);
    const std::string who = text.ok() ? ": " + text->substr(0, text->find('\n')) : "";
    return FailedPrecondition("another job has taken over the run " + run_ + who +
                              ". In an object store the job that began last has it; this one ends, "
                              "and removes nothing");
  }

  [[nodiscard]] std::uint64_t number() const override { return number_; }

 private:
  /// Returns the error of a look that has seen no job: the server gave no answer, the keys may not
  /// look there any more, or all claims were removed.
  [[nodiscard]] Status NotKnown(const Status& look) const {
    return Status(StatusCode::kUnavailable,
                  "whether this job has the run " + run_ + " is not known: " +
                      (look.ok() ? "its claim in " + directory_ + " was removed" : look.message()))
        .With(look.details());
  }

  Storage& storage_;
  const std::string run_;
  const std::string directory_;
  const std::uint64_t number_;
};

/// Takes the run, from the job that has it. See LockRun.
Result<std::unique_ptr<RunLock>> ClaimRun(Storage& storage, ConditionalWrites& writes,
                                          const std::string& run, std::string_view holder) {
  const std::string directory = JoinPath(run, kRunClaims);
  const std::string what = "claim the run " + run;
  VARVE_RETURN_IF_ERROR(writes.Prepare(run).status().Annotate(what));
  VARVE_ASSIGN_OR_RETURN(const SaveId id, RandomSaveId());
  const std::string text = std::string(holder) + "\n" + ToString(id) + "\n";
  for (int tries = 0; tries < kTries; ++tries) {
    VARVE_ASSIGN_OR_RETURN(const auto numbers, Claims(storage, directory));  // Step 1.
    const std::uint64_t mine = numbers.empty() ? 1 : numbers.back() + 1;
    const Status written = writes.WriteIfAbsent(JoinPath(directory, ClaimName(mine)), text);
    if (written.code() == StatusCode::kAlreadyExists) {  // Step 2.
      continue;
    }
    VARVE_RETURN_IF_ERROR(written.Annotate(what));
    VARVE_ASSIGN_OR_RETURN(const auto now, Claims(storage, directory));
    if (!now.empty() && now.back() > mine) {
      VARVE_RETURN_IF_ERROR(storage.Remove(JoinPath(directory, ClaimName(mine))));
      continue;
    }
    BestEffort([&] {  // Step 3. No job reads an older claim that stays.
      for (const std::uint64_t number : numbers) {
        (void)storage.Remove(JoinPath(directory, ClaimName(number)));
      }
      return Status::Ok();
    });
    return std::unique_ptr<RunLock>(std::make_unique<Claim>(storage, run, directory, mine));
  }
  return Unavailable(what + ": other jobs begin all the time");
}

constexpr std::string_view kRunLockName = ".varve-run-lock";
constexpr std::uint64_t kMaxHolderBytes = 4096;

/// Locks the directory of a run, which is made if need be. Errors: FailedPrecondition naming the
/// holder.
Result<std::unique_ptr<StorageLock>> LockDirectory(Storage& storage, const std::string& run,
                                                   std::string_view holder) {
  VARVE_RETURN_IF_ERROR(MakeDirectories(storage, run));
  const std::string name = JoinPath(run, kRunLockName);
  auto lock = storage.Lock(name);
  if (lock.status().code() == StatusCode::kFailedPrecondition) {
    auto other = ReadWholeFile(storage, name, kMaxHolderBytes);
    while (other.ok() && !other->empty() && other->back() == '\n') {
      other->pop_back();
    }
    return FailedPrecondition(
        "another job has the run " + run + (other.ok() && !other->empty() ? ": " + *other : "") +
        ". Two jobs would overwrite and remove each other's steps: end one of them, or give each "
        "a directory of its own");
  }
  VARVE_RETURN_IF_ERROR(lock.status().Annotate("lock the run " + run));
  // The text is for people. The run is locked without it too.
  (void)WriteWholeFile(storage, name, std::string(holder) + "\n", false);
  return lock;
}

class HeldRunLock final : public RunLock {
 public:
  HeldRunLock(Storage& storage, std::string run, std::string holder,
              std::unique_ptr<StorageLock> lock)
      : storage_(storage),
        run_(std::move(run)),
        holder_(std::move(holder)),
        lock_(std::move(lock)) {}

  /// The run's directory may have been removed, renamed, or another one linked there. The job then
  /// takes the one that is there now, if no other job has it.
  Status CheckHeld() override {
    if (lock_->HasName()) {
      return Status::Ok();
    }
    auto lock = LockDirectory(storage_, run_, holder_);
    if (!lock.ok()) {
      // Renamed back meanwhile, it is locked by this job.
      return lock_->HasName() ? Status::Ok() : lock.status();
    }
    lock_ = *std::move(lock);
    return Unavailable("the directory of the run " + run_ +
                       " was removed or renamed; this job goes on in the one that is there now");
  }

 private:
  Storage& storage_;
  const std::string run_;
  const std::string holder_;
  std::unique_ptr<StorageLock> lock_;
};

}  // namespace

Result<std::unique_ptr<RunLock>> LockRun(const std::string& given, std::string_view holder,
                                         Storage& storage) {
  VARVE_ASSIGN_OR_RETURN(const std::string run, ResolveTarget(given, storage));
  if (ConditionalWrites* const writes = ConditionalWritesOf(storage, run); writes != nullptr) {
    return ClaimRun(storage, *writes, run, holder);
  }
  VARVE_ASSIGN_OR_RETURN(auto lock, LockDirectory(storage, run, holder));
  return std::unique_ptr<RunLock>(
      std::make_unique<HeldRunLock>(storage, run, std::string(holder), std::move(lock)));
}

}  // namespace varve
