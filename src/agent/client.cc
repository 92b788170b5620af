#include "agent/client.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/endpoint.h"
#include "agent/shared_memory.h"
#include "base/guarded.h"

extern char** environ;  // NOLINT(readability-identifier-naming): the system's

namespace varve {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kGreeting = std::chrono::seconds(10);
constexpr auto kStarting = std::chrono::seconds(20);
constexpr auto kPause = std::chrono::milliseconds(20);

/// Returns now plus `timeout`, or the latest deadline where the sum overflows.
Deadline After(std::chrono::milliseconds timeout) {
  const auto now = Clock::now();
  const auto most = std::chrono::floor<std::chrono::milliseconds>(Deadline::max() - now);
  return timeout < most ? now + timeout : Deadline::max();
}

std::string ProgramOf(const AgentOptions& options) {
  const char* const chosen = std::getenv("VARVE_AGENT");
  return !options.program.empty() ? options.program
                                  : std::string(chosen != nullptr ? chosen : "varve-agent");
}

/// Returns the error of a program that the system does not start.
Status NotStarted(const std::string& program, int error) {
  std::string message = "start the agent \"" + program + "\": " + std::strerror(error);
  switch (error) {
    case EAGAIN:
      return Unavailable(message +
                         "; the system starts no more processes for this user: end some, or raise "
                         "the limit (ulimit -u, or that of its container)")
          .With({.system_error = error});
    case ENOMEM:
      return Status(StatusCode::kOutOfSpace, message + "; free some memory, or raise its limit")
          .With({.system_error = error});
    case EMFILE:
    case ENFILE: return SystemError("start the agent \"" + program + "\"", error);
    default: return FailedPrecondition(message + "; set VARVE_AGENT to where it is");
  }
}

/// Returns the first lines that a program has written, without its name in front of them.
std::string TextIn(const FileDescriptor& output) {
  constexpr std::size_t kMostBytes = 4096;
  constexpr std::string_view kName = "varve-agent: ";
  std::string text(kMostBytes, '\0');
  const ssize_t got = ::pread(output.get(), text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  text.resize(text.find_last_not_of(" \n") + 1);  // npos + 1 is 0.
  return text.starts_with(kName) ? text.substr(kName.size()) : text;
}

/// Runs the program, which returns as soon as its agent or another one listens.
Status Start(const std::string& program, const std::string& directory) {
  const FileDescriptor errors(::memfd_create("varve-agent-errors", MFD_CLOEXEC));
  if (!errors.valid()) {
    return SystemError("make a file in memory", errno);
  }
  std::array<std::string, 4> words{program, "--directory", directory, "--detach"};
  std::array<char*, 5> arguments{};
  for (std::size_t i = 0; i < words.size(); ++i) {
    arguments[i] = words[i].data();
  }
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t signals;
  sigemptyset(&signals);
  ::posix_spawnattr_setsigmask(&attributes, &signals);  // A launcher may block some.
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_adddup2(&files, errors.get(), STDERR_FILENO);
  pid_t child = 0;
  const int error =
      ::posix_spawnp(&child, program.c_str(), &files, &attributes, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&files);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    return NotStarted(program, error);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0) {
    const std::string how = WIFEXITED(status) ? "exit status " + std::to_string(WEXITSTATUS(status))
                                              : "signal " + std::to_string(WTERMSIG(status));
    const std::string text = TextIn(errors);
    return FailedPrecondition("start the agent \"" + program + "\": it ended with " + how +
                              (text.empty() ? ", and without a message" : ": " + text));
  }
  return Status::Ok();  // The next attempt to connect tells whether one listens.
}

}  // namespace

Result<AgentMessage> Ask(AgentLink& agent, const AgentMessage& question, Deadline deadline) {
  const Status sent = agent.Send(question);
  auto received = agent.Receive(sent.ok() ? deadline : Clock::now());
  if (!sent.ok() && (!received.ok() || received->verb != AgentVerb::kRefused)) {
    return CopyOf(sent);  // Else the agent has sent why it has closed the connection.
  }
  VARVE_RETURN_IF_ERROR(received.status());
  AgentMessage answer = std::move(*received);
  if (answer.verb == AgentVerb::kRefused) {
    return DecodeRefusal(answer.payload);
  }
  if (answer.verb != AgentVerb::kOk) {
    return DataLoss("the agent answers something else than it was asked");
  }
  return answer;
}

namespace {

Result<std::shared_ptr<AgentConnection>> Connect(const std::string& directory, Deadline deadline) {
  const AgentEndpoint endpoint = EndpointIn(directory);
  VARVE_RETURN_IF_ERROR(CheckPrivate(endpoint.directory, /*make=*/false));
  VARVE_ASSIGN_OR_RETURN(FileDescriptor socket, ConnectToSocket(endpoint.socket, deadline));
  return std::make_shared<AgentConnection>(std::move(socket));
}

}  // namespace

Result<std::shared_ptr<AgentConnection>> ConnectAndGreet(const std::string& directory,
                                                         Deadline deadline) {
  VARVE_ASSIGN_OR_RETURN(auto agent, Connect(directory, deadline));
  const AgentMessage hello{AgentVerb::kHello, 0, AgentVersion(), {}};
  VARVE_RETURN_IF_ERROR(Ask(*agent, hello, deadline).status());
  return agent;
}

Result<std::shared_ptr<AgentConnection>> ConnectOrStart(const AgentOptions& options) {
  const std::string directory = EndpointIn(options.directory).directory;
  VARVE_RETURN_IF_ERROR(CheckPrivate(directory, /*make=*/true));
  const auto give_up =
      Clock::now() + std::min<Clock::duration>(kStarting, 2 * options.answer_timeout);
  while (true) {
    auto agent = ConnectAndGreet(
        directory, Clock::now() + std::min<Clock::duration>(kGreeting, options.answer_timeout));
    // An agent that is about to end may close the connection before it has answered.
    const StatusCode code = agent.status().code();
    if (code != StatusCode::kNotFound && code != StatusCode::kUnavailable) {
      return agent;
    }
    if (Clock::now() > give_up) {
      return FailedPrecondition("the agent was started, but does not answer: " +
                                agent.status().message());
    }
    VARVE_RETURN_IF_ERROR(Start(ProgramOf(options), directory));
    std::this_thread::sleep_for(kPause);
  }
}

namespace {

/// Sends `verb` and waits for the answer. An agent that is ending or was killed may still take
/// connections: the next attempt tells. The agent may be of another version. After a kStop, returns
/// when the agent has closed the connection. A directory that cannot be used is an error at once.
Status AskForTheEnd(AgentVerb verb, std::chrono::milliseconds timeout,
                    const std::string& directory) {
  const Deadline deadline = After(timeout);
  VARVE_RETURN_IF_ERROR(CheckPrivate(EndpointIn(directory).directory, /*make=*/false));
  while (true) {
    const auto agent = Connect(directory, deadline);
    Status status =
        agent.ok() ? Ask(**agent, {verb, 0, {}, {}}, deadline).status() : agent.status();
    if (status.ok() && verb == AgentVerb::kStop) {
      (void)(*agent)->Receive(deadline);  // The agent sends nothing more.
    }
    if (status.code() != StatusCode::kUnavailable || deadline - Clock::now() < kPause) {
      return status;
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

Result<AgentReport> AgentStatus(const std::string& directory, std::chrono::milliseconds timeout) {
  const auto deadline = After(timeout);
  VARVE_ASSIGN_OR_RETURN(const auto agent, ConnectAndGreet(directory, deadline));
  VARVE_ASSIGN_OR_RETURN(const AgentMessage answer,
                         Ask(*agent, {AgentVerb::kStatus, 0, {}, {}}, deadline));
  if (answer.fds.size() != 1) {
    return DataLoss("the agent's status without its text");
  }
  VARVE_ASSIGN_OR_RETURN(const Bytes report, ReadBlob(answer.fds[0]));
  return DecodeAgentReport(report);
}

Status DrainAgent(std::chrono::milliseconds timeout, const std::string& directory) {
  return AskForTheEnd(AgentVerb::kDrain, timeout, directory);
}

Status StopAgent(std::chrono::milliseconds timeout, const std::string& directory) {
  return AskForTheEnd(AgentVerb::kStop, timeout, directory);
}

}  // namespace varve
