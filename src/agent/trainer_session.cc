#include "agent/trainer_session.h"

#include <utility>

namespace varve {

TrainerSession::TrainerSession(Surroundings surroundings, std::shared_ptr<PoolMemory> pool,
                               std::uint64_t first_ticket)
    : around_(std::move(surroundings)),
      pool_(std::move(pool)),
      saves_(*this, *around_.storage, around_.peer_timeout, first_ticket, around_.pid) {}

TrainerSession::~TrainerSession() {
  if (!saves_.over()) {
    saves_.Abandon();
  }
}

bool TrainerSession::connection_has_ended() const {
  return saves_.trainer() != TrainerState::kAttached || !around_.trainer->IsOpen();
}

void TrainerSession::Run(Lane lane, std::function<void()> work) {
  SerialThread& thread = lane == Lane::kSubmitted  ? submitted_
                         : lane == Lane::kDeferred ? deferred_
                                                   : memory_;
  thread.Run(SerialThread::Task([this, work = std::move(work)] {
    work();
    around_.changed();
  }));
}

std::vector<const std::byte*> TrainerSession::BlocksAt(const std::vector<std::uint64_t>& numbers) {
  return pool_->At(numbers);
}

void TrainerSession::Hold(std::uint64_t ticket, const Submission& save, const SubmittedFile& file,
                          std::shared_ptr<ValidityPage> lease, bool orphan) {
  auto page = ValidityPage::Make();
  if (!page.ok()) {
    return;  // It is loaded from the disk.
  }
  const FileIdentity& identity = save.settled.identity;
  HeldFile held{save.path,       file.name,       identity.save_id, identity.rank,
                file.data_begin, pool_->blocks(), save.image};
  around_.held->Add({std::move(held), around_.number, ticket, std::nullopt, pool_, std::move(*page),
                     std::move(lease)});
  if (orphan) {
    OrphanHeld();
  }
}

void TrainerSession::Release(std::vector<bool> wanted) {
  around_.held->MarkBlocks(around_.number, &wanted);
  pool_->Release(wanted);
}

void TrainerSession::Report(std::uint64_t ticket, const Result<AsyncSaveReport>& report) {
  AgentMessage done{AgentVerb::kDone, ticket, {}, {}};
  if (report.ok()) {
    // In the message itself if it fits: a trainer that has no free descriptor receives it as well.
    Bytes encoded = EncodeReport(*report);
    if (encoded.size() < kMaxAgentPayload) {
      done.payload = Bytes(1, '\0') + encoded;
    } else if (auto blob = MakeBlob(encoded); blob.ok()) {
      done.fds.push_back(std::move(*blob));
    }
  } else {
    done.payload = EncodeRefusal(report.status());
  }
  (void)around_.trainer->Send(done);  // Fails when the trainer has exited.
}

}  // namespace varve
