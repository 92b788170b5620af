/// A rank of a trainer that a test drives step by step, up to the submission of its copy.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "agent/client.h"
#include "agent/connection.h"
#include "async/submission.h"
#include "pipeline/staged_file.h"
#include "pipeline/staging_pool.h"
#include "save/session.h"
#include "support/agent.h"
#include "support/ranks.h"
#include "support/status_matchers.h"
#include "varve/coordinator.h"

namespace varve::test {

/// The end of its connection, or of its scope, is all that the agent sees of a trainer's death.
class Trainer {
 public:
  explicit Trainer(AgentHere& agent) : executor_(agent.Connect()) {
    pool_ = std::move(*StagingPool::Make(std::uint64_t{64} << 20, /*shared=*/true));
    EXPECT_TRUE(IsOk(executor_->Attach(pool_->fd(), pool_->block_count())));
  }

  /// Makes a copy and its submission.
  Result<Submission> Describe(const State& state, const std::string& path, Coordinator& rank) {
    const SaveOptions options;
    const auto session = MakeSaveSession(state, path, options, Claim::kApart, PosixStorage());
    VARVE_RETURN_IF_ERROR(session->Plan(rank, Status::Ok()));
    const FileWork& work = session->work();
    VARVE_ASSIGN_OR_RETURN(
        auto memory, pool_->Reserve(StagedFile::BlocksFor(work.segments, work.block_bytes), {}));
    auto& staged = staged_.emplace_back(
        std::make_unique<StagedFile>(work.segments, work.block_bytes, std::move(memory)));
    VARVE_RETURN_IF_ERROR(staged->Fill(2, {}));
    Submission save;
    save.path = path;
    save.settled = session->settled();
    save.options.retries = 0;
    save.image = staged->Describe();
    return save;
  }

  Status Submit(std::uint64_t ticket, const State& state, const std::string& path,
                Coordinator& rank, bool deferred = false) {
    VARVE_ASSIGN_OR_RETURN(Submission save, Describe(state, path, rank));
    if (deferred) {
      constexpr std::uint8_t kGroup = 1;
      save.deferred = {std::string(ParentPath(path)) + "/deferred", SaveId{{kGroup}}};
    }
    bool sent = false;
    return executor_->Submit(ticket, save, &sent);
  }

  Status Submit(std::uint64_t ticket, const State& state, const std::string& path) {
    return Submit(ticket, state, path, *MakeSingleProcessCoordinator());
  }

  /// Returns a connection with the same memory, beside the executor's; null where there is none.
  std::shared_ptr<AgentConnection> ConnectAgain(const AgentHere& agent) {
    auto connection = ConnectAndGreet(agent.directory(), LongDeadline());
    EXPECT_TRUE(IsOk(connection));
    if (!connection.ok()) {
      return nullptr;
    }
    AgentMessage attach{AgentVerb::kAttach, 0, {}, {}};
    ByteWriter out(&attach.payload);
    out.U64(pool_->block_count());
    out.U64(0);
    attach.fds.emplace_back(::dup(pool_->fd()));
    EXPECT_TRUE(IsOk(Ask(**connection, attach, LongDeadline())));
    return std::move(*connection);
  }

  SaveExecutor& executor() { return *executor_; }
  [[nodiscard]] const StagingPool& pool() const { return *pool_; }

 private:
  std::shared_ptr<SaveExecutor> executor_;
  std::unique_ptr<StagingPool> pool_;
  std::vector<std::unique_ptr<StagedFile>> staged_;
};

}  // namespace varve::test
