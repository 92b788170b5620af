/// The agent's log: agent.log in its directory, beside its predecessor agent.log.1.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace varve {

/// Appends lines to a file that only this user may read. A file of 1 MiB becomes PATH.1, in the
/// place of an older one, and another one begins. Where the file cannot be written, the lines are
/// lost: the agent goes on. Threads: one.
class AgentLog {
 public:
  explicit AgentLog(std::string path) : path_(std::move(path)) {}
  AgentLog(const AgentLog&) = delete;
  AgentLog& operator=(const AgentLog&) = delete;
  ~AgentLog();

  void Write(std::string_view line);

 private:
  void Open();

  const std::string path_;
  int fd_ = -1;
  std::uint64_t size_ = 0;
};

}  // namespace varve
