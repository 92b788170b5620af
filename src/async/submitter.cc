// A save that another process writes, and what becomes of it when somebody dies:
//  1. The copy is made in memory that the other process has mapped as well. A trainer that is
//     killed until here leaves nothing: its save is not listed anywhere.
//  2. Submit: the other process is told where in that memory the file lies, what its checksums
//     are and what the ranks have settled, and says that it has understood. From here on the save
//     does not need us. The caller hears that the copy has been made only after that.
//  3. The other process does what the writing thread does otherwise: claim, write, publish. The
//     ranks then exchange messages through a directory beside the checkpoint, because what connects
//     trainers ends with them. A rank that has no copy to submit says so there, from here: silence
//     would cost the others their deadline.
//  4. We wait for the outcome, which is the same on all ranks. If the other process is killed, this
//     rank's file is incomplete or has not been counted, and nothing becomes visible; or it has
//     been, and the checkpoint tells. Step 3's peers learn of it from us; if we are killed too,
//     from their deadline. One that we have lost may live, and go on writing from memory that we
//     use again: the lease of that memory is revoked first, and a file written from it since does
//     not count.
//  5. Of a save that has ended well the copy is kept: a trainer that is started again on this node
//     loads from it. It is given up when the next one takes its place, or when memory is short. The
//     other process is asked to forget it first, and its blocks are free only when it has, or its
//     lease has been revoked because it did not answer: whoever reads them meanwhile learns that
//     they are no longer what they were.
// A save that is to be written at the end stops after step 2: the other process does step 3 when we
// are gone, be it killed. It takes two of them to be safe at any time: while ranks submit the
// newer one, some may have it and some not, and if they are killed then it is the older one that is
// whole. So before the next one is planned the ranks tell each other whether they have submitted
// the last: if all have, what is older is given up; if not, the last is.

#include "async/submitter.h"

#include <utility>

#include "async/file_channel.h"
#include "catalogue/open.h"

namespace varve {
namespace {

/// What a save has come to whose writer was killed before it could say. Nothing where it cannot be
/// known, or has come to nothing yet.
std::optional<SaveReport> VisibleAfterAll(const SaveSession& session, const std::string& path) {
  const auto record = ReadCommitRecord(PosixStorage(), path);
  const SaveId& id = session.settled().identity.save_id;
  if (!record.ok() || record->save_id != id) {
    return std::nullopt;
  }
  SaveReport report;
  report.save_id = id;
  report.bytes_written = session.work().size;
  return report;
}

}  // namespace

Result<std::unique_ptr<Submitter>> Submitter::Make(std::shared_ptr<SaveExecutor> executor,
                                                   StagingPool& pool) {
  VARVE_RETURN_IF_ERROR(executor->Attach(pool.fd(), pool.block_count()));
  auto submitter = std::unique_ptr<Submitter>(new Submitter(std::move(executor), pool));
  pool.SetReclaim([made = submitter.get()] { made->GiveUpOne(); });
  return submitter;
}

Status Submitter::Submit(std::uint64_t turn, const std::string& path, const SaveSession& session,
                         StagedFile* staged, const AsyncSaveOptions& options) {
  Submission save;
  VARVE_ASSIGN_OR_RETURN(save.path, AbsolutePath(path));
  save.settled = session.settled();
  if (staged != nullptr) {
    save.image = staged->Describe();
  } else {
    save.image.checksum_block_bytes = session.work().block_bytes;
  }
  save.options = options.save;
  save.retries = options.retries;
  save.retry_delay = options.retry_delay;
  save.deferred = options.deferred;
  return executor_->Submit(turn, save);
}

Result<SaveReport> Submitter::Await(std::uint64_t turn, const std::stop_token& stop, bool* lost) {
  const std::stop_callback cancel(stop, [&] { executor_->Cancel(turn); });
  return executor_->Wait(turn, lost);
}

Result<SaveReport> Submitter::Write(std::optional<std::uint64_t> turn, SaveSession& session,
                                    std::unique_ptr<StagedFile>* staged,
                                    const WriteAttempts& attempts, const Status& ready) {
  // A name that cannot be made absolute was not submitted either.
  const auto absolute = AbsolutePath(std::string(attempts.path));
  const std::string path = absolute.ok() ? *absolute : std::string(attempts.path);
  if (!turn) {
    const auto channel = MakeFileChannel(session.settled(), path);
    return WriteWithRetries(session, staged->get(), *channel, attempts, ready);
  }
  bool lost = false;
  Result<SaveReport> result = Await(*turn, attempts.stop, &lost);
  if (lost) {
    if (const auto report = VisibleAfterAll(session, path)) {
      return *report;
    }
    SayGone(session.settled(), path, result.status());
    return result;
  }
  if (result.ok()) {
    GiveUp(0, *turn);
    Keep(*turn, std::move(*staged));
  } else {
    executor_->Forget(*turn);
  }
  return result;
}

SaveReport Submitter::KeepBack(std::uint64_t turn, const SaveSession& session,
                               std::unique_ptr<StagedFile> staged) {
  SaveReport report;
  report.save_id = session.settled().identity.save_id;
  report.deferred = true;
  Keep(turn, std::move(staged));
  return report;
}

bool Submitter::Keeps(std::uint64_t turn) {
  {
    const std::scoped_lock lock(mutex_);
    if (!kept_.contains(turn)) {
      return false;
    }
  }
  return executor_->Holds(turn);
}

void Submitter::DeferredIs(std::uint64_t turn, bool whole) {
  whole ? GiveUp(0, turn) : GiveUp(turn, turn + 1);
}

void Submitter::Keep(std::uint64_t turn, std::unique_ptr<StagedFile> staged) {
  {
    const std::scoped_lock lock(mutex_);
    kept_[turn] = staged == nullptr ? StagingPool::Reservation() : staged->TakeMemory();
  }
  pool_.Poke();
}

void Submitter::GiveUp(std::uint64_t first, std::uint64_t end) {
  Kept old;
  {
    const std::scoped_lock lock(mutex_);
    for (auto at = kept_.lower_bound(first); at != kept_.end() && at->first < end;) {
      old.insert(kept_.extract(at++));
    }
  }
  for (const auto& [turn, memory] : old) {
    executor_->Forget(turn);
  }
}

void Submitter::GiveUpOne() {
  Kept old;
  {
    const std::scoped_lock lock(mutex_);
    if (kept_.empty()) {
      return;
    }
    old.insert(kept_.extract(kept_.begin()));
  }
  executor_->Forget(old.begin()->first);
  old.clear();
  pool_.Poke();  // It may not have been enough.
}

}  // namespace varve
