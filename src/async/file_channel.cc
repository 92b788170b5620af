#include "async/file_channel.h"

#include <map>
#include <memory>
#include <utility>

#include "catalogue/names.h"
#include "coordinate/directory.h"
#include "publish/claim.h"
#include "varve/storage.h"

namespace varve {
namespace {

constexpr std::uint64_t kMaxWordsBytes = 65536;

/// Returns the name of the file that a rank writes when it withdraws. It holds the rank's error.
std::string WithdrawalPath(const std::string& path, const SaveId& id) {
  return ChannelPath(path, id) + "-gone";
}

Status ReadWithdrawal(const std::string& withdrawal_path) {
  const auto words = ReadWholeFile(PosixStorage(), withdrawal_path, kMaxWordsBytes);
  return words.ok() ? Unavailable(*words) : Status::Ok();
}

/// Counts the ranks that have sent a message.
class FileChannel final : public Coordinator {
 public:
  FileChannel(const FileIdentity& me, const std::string& path, std::function<Status()> give_up)
      : withdrawal_path_(WithdrawalPath(path, me.save_id)),
        awaited_(me.rank == 0 ? me.world_size - 1 : 1),
        give_up_(std::move(give_up)) {
    // Best effort: the first message fails with the cause.
    (void)MakeDirectories(PosixStorage(), ParentPath(path));
    DirectoryCoordinatorOptions options;
    options.rank = static_cast<int>(me.rank);
    options.size = static_cast<int>(me.world_size);
    options.check = [this] { return Check(); };
    ranks_ =
        MakeDirectoryCoordinator(PosixStorage(), ChannelPath(path, me.save_id), std::move(options));
  }
  FileChannel(const FileChannel&) = delete;
  FileChannel& operator=(const FileChannel&) = delete;
  ~FileChannel() override {
    const bool last_to_go = rank() == 0;
    ranks_.reset();  // Waits until the others have received the last messages.
    if (last_to_go) {
      (void)PosixStorage().Remove(withdrawal_path_);
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
    if (message.ok()) {
      ++received_;
    } else {
      missing_[from] = message.status();
    }
    return message;
  }

 private:
  Status Check() {
    VARVE_RETURN_IF_ERROR(ReadWithdrawal(withdrawal_path_));
    return give_up_ && received_ < awaited_ ? give_up_() : Status::Ok();
  }

  const std::string withdrawal_path_;
  const std::uint64_t awaited_;
  const std::function<Status()> give_up_;
  std::uint64_t received_ = 0;
  std::map<int, Status> missing_;  // Ranks that did not answer once; they are not waited for again.
  std::unique_ptr<Coordinator> ranks_;
};

bool HasPeers(const SettledSave& save) {
  return save.identity.coordinated && save.identity.world_size > 1;
}

}  // namespace

std::unique_ptr<Coordinator> MakeFileChannel(const SettledSave& save, const std::string& path,
                                             std::function<Status()> give_up) {
  if (!HasPeers(save)) {
    return MakeSingleProcessCoordinator();
  }
  return std::make_unique<FileChannel>(save.identity, path, std::move(give_up));
}

void Withdraw(const SettledSave& save, const std::string& path, const Status& why) {
  if (HasPeers(save)) {
    const std::string words =
        "rank " + std::to_string(save.identity.rank) + ": " + why.message().substr(0, 4096);
    // Best effort. Where the file exists, another rank has withdrawn before.
    const std::string withdrawal = WithdrawalPath(path, save.identity.save_id);
    const std::string part = withdrawal + "-" + std::to_string(save.identity.rank);
    if (WriteWholeFile(PosixStorage(), part, words, /*exclusive=*/false).ok()) {
      (void)PosixStorage().Rename(part, withdrawal, RenameMode::kReplace);
    }
  }
}

}  // namespace varve
