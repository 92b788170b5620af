/// A session with its threads, its trainer's connection and memory, and the files that it holds.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "agent/held_files.h"
#include "agent/link.h"
#include "agent/session.h"
#include "agent/shared_memory.h"
#include "async/serial_thread.h"
#include "varve/storage.h"

namespace varve {

class TrainerSession final : public SessionHost {
 public:
  struct Surroundings {
    std::uint64_t number = 0;  ///< Number of the session.
    int pid = 0;               ///< The trainer's process; 0 where it is not known.
    std::shared_ptr<AgentLink> trainer;
    HeldFiles* held = nullptr;
    Storage* storage = nullptr;                 ///< Where saves are written.
    std::chrono::milliseconds peer_timeout{0};  ///< AgentServerOptions::peer_timeout.
    std::function<void()> changed;              ///< Called when work of a lane has ended.
  };
  /// Throws std::system_error where the system starts no threads.
  TrainerSession(Surroundings surroundings, std::shared_ptr<PoolMemory> pool,
                 std::uint64_t first_ticket);
  TrainerSession(const TrainerSession&) = delete;
  TrainerSession& operator=(const TrainerSession&) = delete;
  /// Abandons a session that is not over, and waits for the saves that are being written.
  ~TrainerSession() override;

  AgentSession& saves() { return saves_; }
  [[nodiscard]] const AgentSession& saves() const { return saves_; }
  [[nodiscard]] const PoolMemory& memory() const { return *pool_; }
  [[nodiscard]] std::uint64_t number() const { return around_.number; }
  /// Returns true when the connection has ended, whether or not the agent has handled that yet.
  [[nodiscard]] bool connection_has_ended() const;

  void Run(Lane lane, std::function<void()> work) override;
  std::vector<const std::byte*> BlocksAt(const std::vector<std::uint64_t>& numbers) override;
  std::uint64_t blocks() override { return pool_->blocks(); }
  void Hold(std::uint64_t ticket, const Submission& save, const SubmittedFile& file,
            std::shared_ptr<ValidityPage> lease, bool orphan) override;
  void ForgetHeld() override { around_.held->ForgetAll(around_.number); }
  void OrphanHeld() override { around_.held->Orphan(around_.number); }
  void Release(std::vector<bool> wanted) override;
  void Report(std::uint64_t ticket, const Result<AsyncSaveReport>& report) override;

 private:
  const Surroundings around_;
  const std::shared_ptr<PoolMemory> pool_;
  AgentSession saves_;
  // Last: their work uses all of the above, and ends first.
  SerialThread submitted_;
  SerialThread deferred_;
  SerialThread memory_;
};

}  // namespace varve
