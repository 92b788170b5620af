/// The agent: a process, one for each user and node, that writes the staged copies of trainers, and
/// goes on when they are killed. It is started when first needed and ends itself when idle.
///
///   auto agent = varve::ConnectToAgent();                              // Starts it if need be.
///   auto stager = varve::Stager::Make({}, std::move(background), *agent);
///
/// A trainer that is started again on the node loads from the agent's memory (OpenAgentMemory) its
/// last save, as long as the agent has it. Linux only, local and mounted file systems only.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "varve/async_save.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// Returns the directory in which an agent listens, which only its user may enter. By default
/// $VARVE_AGENT_DIR, or $XDG_RUNTIME_DIR/varve if that directory is there, or /tmp/varve-UID.
std::string DefaultAgentDirectory();

struct AgentOptions {
  std::string directory;  ///< Empty: DefaultAgentDirectory().
  /// The program that is started where no agent runs. Empty: $VARVE_AGENT, or "varve-agent" from
  /// the PATH.
  std::string program;
  /// Timeout for requests that the agent answers at once (to take a save, to give up memory that it
  /// keeps); after it the agent counts as lost. > 0. The wait for the outcome of a save has no
  /// limit.
  std::chrono::milliseconds answer_timeout = std::chrono::seconds(30);
};

/// Connects to the agent of this node, and starts one if needed. The result is for one Stager::Make
/// only. Errors: FailedPrecondition when none can be started, it is of another version or stopping,
/// or its directory is open to others.
Result<std::shared_ptr<SaveExecutor>> ConnectToAgent(const AgentOptions& options = {});

/// A report of an agent's work.
struct AgentReport {
  /// A data file that it writes, is going to write, or keeps in memory.
  struct File {
    std::string path;  ///< Path of the checkpoint.
    std::uint32_t rank = 0;
    std::uint64_t bytes = 0;
    /// "queued" (saves before it are written first), "kept" (deferred: written if the trainer
    /// ends), "chosen" (deferred: written if a newer one fails), "writing" or "held" (written).
    std::string state;
    double seconds = 0;          ///< For so long.
    bool trainer_lives = false;  ///< The process that submitted it is alive.
    friend bool operator==(const File&, const File&) = default;
  };
  std::string version;
  int pid = 0;
  bool stopping = false;
  std::uint64_t trainers = 0;  ///< Stagers that are connected.
  std::vector<File> saves;     ///< Not yet ended.
  std::vector<File> held;      ///< Written, and in memory.
  friend bool operator==(const AgentReport&, const AgentReport&) = default;
};

/// Returns the agent's report. Errors: NotFound when none runs; Unavailable when it does not answer
/// in time.
Result<AgentReport> AgentStatus(const std::string& directory = {},
                                std::chrono::milliseconds timeout = std::chrono::seconds(10));

/// Waits until the agent has written everything that was submitted to it, at most for `timeout`.
/// Errors: NotFound when none runs; Unavailable.
Status DrainAgent(std::chrono::milliseconds timeout, const std::string& directory = {});

/// Waits likewise; then the agent takes no more saves, gives up all memory that it keeps, and ends.
Status StopAgent(std::chrono::milliseconds timeout, const std::string& directory = {});

/// Returns a storage like `base` in which the data files of the checkpoint at `path` are read from
/// the agent's memory, as far as it has them. Any thread of a load calls `bytes_from_memory` with
/// the number of bytes. Null when the agent has none of them, or no agent runs. Reads compare the
/// checksums of the checkpoint as for any other storage. An agent that does not answer within a
/// second is left out. `base` must outlive it.
std::unique_ptr<Storage> OpenAgentMemory(const std::string& path, Storage& base,
                                         std::function<void(std::uint64_t)> bytes_from_memory = {},
                                         const std::string& directory = {});

struct AgentServerOptions {
  std::string directory;  ///< Empty: DefaultAgentDirectory().
  /// The agent ends when no trainer was connected and no save was left to write for so long, and
  /// gives up all memory that it keeps. Copies of trainers that exited so long ago are given up
  /// when others save.
  std::chrono::milliseconds idle = std::chrono::minutes(10);
  /// Time for which saves of a killed trainer wait for ranks that have sent nothing, and a trainer
  /// that lives and has lost its connection is waited for before its saves are given up. Minutes: a
  /// rank may notice late that another has died, and end because of that.
  std::chrono::milliseconds peer_timeout = std::chrono::minutes(15);
  /// Called once connections are taken. False ends it.
  std::function<bool()> listening;
};

/// Runs the agent; returns when it has ended. Errors: AlreadyExists when one runs for the
/// directory; FailedPrecondition; Unavailable.
Status RunAgent(const AgentServerOptions& options);

}  // namespace varve
