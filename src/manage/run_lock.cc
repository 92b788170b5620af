// The lock of a run: the storage's lock on a hidden file, and in the file who has it.

#include "catalogue/family.h"
#include "manage/run_claim.h"
#include "publish/claim.h"
#include "varve/manage.h"

namespace varve {
namespace {

constexpr std::string_view kRunLockName = ".varve-run-lock";
constexpr std::uint64_t kMaxHolderBytes = 4096;

class HeldRunLock final : public RunLock {
 public:
  explicit HeldRunLock(std::unique_ptr<StorageLock> lock) : lock_(std::move(lock)) {}
  Status CheckHeld() override { return Status::Ok(); }

 private:
  std::unique_ptr<StorageLock> lock_;
};

}  // namespace

Result<std::unique_ptr<RunLock>> LockRun(const std::string& given, std::string_view holder,
                                         Storage& storage) {
  VARVE_ASSIGN_OR_RETURN(const std::string run, ResolveTarget(given, storage));
  if (ConditionalWrites* const writes = ConditionalWritesOf(storage, run); writes != nullptr) {
    return ClaimRun(storage, *writes, run, holder);
  }
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
  return std::unique_ptr<RunLock>(std::make_unique<HeldRunLock>(std::move(*lock)));
}

}  // namespace varve
