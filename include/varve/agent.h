/// The agent: a process, one for each user and node, that writes the staged copies of trainers, and
/// goes on when they are killed. It is started when first needed and ends itself when idle.
///
///   auto agent = varve::ConnectToAgent();                              // Starts it if need be.
///   auto stager = varve::Stager::Make({}, std::move(background), *agent);
///
/// A trainer that is started again on the node loads from the agent's memory (OpenAgentMemory) what
/// it had saved last, as long as the agent has it. Linux only, local and mounted file systems only.
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

/// Where an agent listens: a directory that only its user may enter. By default $VARVE_AGENT_DIR,
/// or $XDG_RUNTIME_DIR/varve if that directory is there, or /tmp/varve-UID.
std::string DefaultAgentDirectory();

struct AgentOptions {
  std::string directory;  ///< Empty: DefaultAgentDirectory().
  /// What is started where no agent runs. Empty: $VARVE_AGENT, or "varve-agent" from the PATH.
  std::string program;
  /// How long it may take to answer what takes it no time (to take a save, to give up memory that
  /// it keeps); then it counts as lost. More than 0. The outcome of a save is waited for without
  /// limit.
  std::chrono::milliseconds answer_timeout = std::chrono::seconds(30);
};

/// The agent of this node, to be given to Stager::Make; to one stager only. Errors:
/// FailedPrecondition when none can be started, it is of another version or stopping, or its
/// directory is open to others.
Result<std::shared_ptr<SaveExecutor>> ConnectToAgent(const AgentOptions& options = {});

/// What an agent does.
struct AgentReport {
  /// A data file that it writes, is going to write, or keeps in memory.
  struct File {
    std::string path;  ///< Of the checkpoint.
    std::uint32_t rank = 0;
    std::uint64_t bytes = 0;
    bool writing = false;        ///< It is this save's turn.
    bool trainer_lives = false;  ///< The process that handed it over.
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

/// Errors: NotFound when none runs.
Result<AgentReport> AgentStatus(const std::string& directory = {});

/// Waits until the agent has written everything that was submitted to it, at most for `timeout`.
/// Errors: NotFound when none runs; Unavailable.
Status DrainAgent(std::chrono::milliseconds timeout, const std::string& directory = {});

/// The same; then it takes nothing more, gives up what it keeps in memory, and ends.
Status StopAgent(std::chrono::milliseconds timeout, const std::string& directory = {});

/// A storage like `base` in which the data files of the checkpoint at `path` are read from the
/// agent's memory, as far as it has them; `bytes_from_memory` is told what was, by any
/// thread of a load. Null when it has none of them, or no agent runs. What is read is what was
/// written: the checksums of the checkpoint are compared as for any other storage. An agent that
/// does not answer within a second is left out. `base` must outlive it.
std::unique_ptr<Storage> OpenAgentMemory(const std::string& path, Storage& base,
                                         std::function<void(std::uint64_t)> bytes_from_memory = {},
                                         const std::string& directory = {});

struct AgentServerOptions {
  std::string directory;  ///< Empty: DefaultAgentDirectory().
  /// The agent ends when no trainer was connected and nothing was left to write for so long, and
  /// gives up what it keeps in memory. Copies of trainers that exited so long ago are given up when
  /// others save.
  std::chrono::milliseconds idle = std::chrono::minutes(10);
  /// How long the saves of a trainer that was killed wait for ranks that have sent nothing;
  /// deferred saves wait 15 times as long. A trainer that lives and is silent is waited for five
  /// times as long before its saves are given up.
  std::chrono::milliseconds peer_timeout = std::chrono::minutes(1);
  /// Called once connections are taken. False ends it.
  std::function<bool()> listening;
};

/// Is the agent; returns when it has ended. Errors: AlreadyExists when one runs for the directory;
/// FailedPrecondition; Unavailable.
Status RunAgent(const AgentServerOptions& options);

}  // namespace varve
