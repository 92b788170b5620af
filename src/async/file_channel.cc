#include "async/file_channel.h"

#include <map>
#include <memory>
#include <utility>

#include "catalogue/names.h"
#include "catalogue/open.h"
#include "coordinate/directory.h"
#include "publish/claim.h"
#include "publish/publisher.h"
#include "varve/storage.h"

namespace varve {
namespace {

constexpr std::uint64_t kMaxWordsBytes = 65536;

/// Returns the name of the file that a rank writes when it withdraws. It holds the rank's error.
std::string WithdrawalPath(const std::string& path, const SaveId& id) {
  return ChannelPath(path, id) + "-gone";
}

Status ReadWithdrawal(Storage& storage, const std::string& withdrawal_path) {
  const auto words = ReadWholeFile(storage, withdrawal_path, kMaxWordsBytes);
  return words.ok() ? Unavailable(*words) : Status::Ok();
}

/// Counts the ranks that have sent a message.
class FileChannel final : public Coordinator {
 public:
  FileChannel(const MeetingPlace& place, std::function<Status()> give_up)
      : storage_(place.storage),
        withdrawal_path_(WithdrawalPath(place.path, place.identity.save_id)),
        awaited_(place.identity.rank == 0 ? place.identity.world_size - 1 : 1),
        give_up_(std::move(give_up)) {
    // Best effort: the first message fails with the cause.
    (void)MakeDirectories(storage_, ParentPath(place.path));
    DirectoryCoordinatorOptions options;
    options.rank = static_cast<int>(place.identity.rank);
    options.size = static_cast<int>(place.identity.world_size);
    options.check = [this] { return Check(); };
    ranks_ = MakeDirectoryCoordinator(storage_, ChannelPath(place.path, place.identity.save_id),
                                      std::move(options));
  }
  FileChannel(const FileChannel&) = delete;
  FileChannel& operator=(const FileChannel&) = delete;
  ~FileChannel() override {
    const bool last_to_go = rank() == 0;
    ranks_.reset();  // Waits until the others have received the last messages.
    if (last_to_go) {
      (void)storage_.Remove(withdrawal_path_);
    }
  }

  [[nodiscard]] int rank() const override { return ranks_->rank(); }
  [[nodiscard]] int size() const override { return ranks_->size(); }
  Status Send(int to, std::string_view message, Deadline deadline) override {
    return ranks_->Send(to, message, deadline);
  }
  Result<std::string> Receive(int from, Deadline deadline) override {
    if (const auto found = missing_.find(from); found != missing_.end()) {
      return found->second;
    }
    auto message = ranks_->Receive(from, deadline);
    if (!message.ok()) {
      missing_[from] = message.status();
      return message;
    }
    ++received_;
    // Messages that are there at once are not waited for, and nobody looks meanwhile: rank 0 looks
    // before it acts upon the last of an exchange.
    if (rank() == 0 && received_ % static_cast<std::uint64_t>(size() - 1) == 0) {
      VARVE_RETURN_IF_ERROR(ReadWithdrawal(storage_, withdrawal_path_));
    }
    return message;
  }

 private:
  Status Check() {
    VARVE_RETURN_IF_ERROR(ReadWithdrawal(storage_, withdrawal_path_));
    return give_up_ && received_ < awaited_ ? give_up_() : Status::Ok();
  }

  Storage& storage_;
  const std::string withdrawal_path_;
  const std::uint64_t awaited_;
  const std::function<Status()> give_up_;
  std::uint64_t received_ = 0;
  std::map<int, Status> missing_;  // Ranks that did not answer once; they are not waited for again.
  std::unique_ptr<Coordinator> ranks_;
};

bool HasPeers(const FileIdentity& identity) {
  return identity.coordinated && identity.world_size > 1;
}

}  // namespace

std::unique_ptr<Coordinator> MakeFileChannel(const MeetingPlace& place,
                                             std::function<Status()> give_up) {
  if (!HasPeers(place.identity)) {
    return MakeSingleProcessCoordinator();
  }
  return std::make_unique<FileChannel>(place, std::move(give_up));
}

void Withdraw(const MeetingPlace& place, const Status& why) {
  if (!HasPeers(place.identity)) {
    return;
  }
  const std::string rank = std::to_string(place.identity.rank);
  const std::string words = "rank " + rank + ": " + why.message().substr(0, 4096);
  // Best effort. Where the file exists, another rank has withdrawn before. This may be the first
  // that is written in the directory.
  (void)MakeDirectories(place.storage, ParentPath(place.path));
  const std::string withdrawal = WithdrawalPath(place.path, place.identity.save_id);
  (void)PublisherOf(place.storage, place.path)
      ->PublishFile(withdrawal, {.replaces = true, .part = withdrawal + "-" + rank},
                    [&](const std::string& file) {
                      return WriteWholeFile(place.storage, file, words, /*exclusive=*/false);
                    });
}

}  // namespace varve
