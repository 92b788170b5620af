// The agent of a node: see include/varve/agent.h. Started by trainers when first needed; people use
// `varve agent`.

#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "log.h"
#include "varve/agent.h"
#include "varve/events.h"
#include "varve/metadata.h"

namespace {

constexpr const char* kHelp =
    "varve-agent [--directory DIR] [--idle SECONDS] [--peer-timeout SECONDS] [--detach]\n"
    "\n"
    "Writes the checkpoints that trainers on this node submit to it, also when they are killed.\n"
    "Trainers start it when they need it; `varve agent` says what it does.\n"
    "\n"
    "  --directory DIR           where it listens; must be the user's alone\n"
    "  --idle SECONDS            ends after so long without trainers and work ($VARVE_AGENT_IDLE, "
    "or "
    "600)\n"
    "  --peer-timeout SECONDS    how long a dead trainer's save waits for ranks that sent nothing (900)\n"
    "  --detach                  return as soon as it listens, and go on in the background\n"
    "  --version                 print the version\n";

std::optional<std::chrono::milliseconds> Seconds(std::string_view text) {
  int seconds = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || seconds < 1) {
    return std::nullopt;
  }
  return std::chrono::seconds(seconds);
}

/// Closes all inherited descriptors: the agent must not keep the trainer's ports, files and devices
/// open.
void CloseInherited() {
  if (::syscall(SYS_close_range, 3U, ~0U, 0U) != 0) {
    for (int fd = 3; fd < static_cast<int>(::sysconf(_SC_OPEN_MAX)); ++fd) {
      ::close(fd);
    }
  }
}

/// Leaves the trainer's session, so that signals that end it do not end the agent. The parent
/// process returns to its caller once the agent listens.
bool Detach(const std::string& log) {
  const pid_t child = ::fork();
  if (child < 0) {
    std::fprintf(stderr,
                 "varve-agent: start a process: %s; end some of this user's, or raise the limit "
                 "(ulimit -u, or that of its container)\n",
                 std::strerror(errno));
    ::_exit(2);
  }
  if (child > 0) {
    ::_exit(0);
  }
  ::setsid();
  const int null = ::open("/dev/null", O_RDONLY);
  const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0600);
  ::dup2(null, STDIN_FILENO);
  ::dup2(out >= 0 ? out : null, STDOUT_FILENO);
  ::dup2(out >= 0 ? out : null, STDERR_FILENO);
  ::close(null);
  ::close(out);
  return ::chdir("/") == 0;
}

/// Raises the limit of open files to the most that is allowed: the trainer may have lowered it for
/// itself, and each of a node's trainers needs some here.
void RaiseFileLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    (void)::setrlimit(RLIMIT_NOFILE, &limit);
  }
}

}  // namespace

int main(int argc, char** argv) {
  varve::AgentServerOptions options;
  if (const char* const idle = std::getenv("VARVE_AGENT_IDLE"); idle != nullptr) {
    options.idle = Seconds(idle).value_or(options.idle);
  }
  bool detach = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const char* const value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (word == "--detach") {
      detach = true;
    } else if (word == "--version" || word == "--help") {
      std::printf("%s\n", word == "--help" ? kHelp : varve::Version().data());
      return 0;
    } else if (word == "--directory" && value != nullptr) {
      options.directory = argv[++i];
    } else if ((word == "--idle" || word == "--peer-timeout") && value != nullptr &&
               Seconds(value)) {
      (word == "--idle" ? options.idle : options.peer_timeout) = *Seconds(argv[++i]);
    } else {
      std::fprintf(stderr, "varve-agent: what is \"%s\"?\n\n%s", argv[i], kHelp);
      return 2;
    }
  }
  if (options.directory.empty()) {
    options.directory = varve::DefaultAgentDirectory();
  }
  // The agent leaves the directory that it was started in.
  options.directory = std::filesystem::absolute(options.directory).string();
  CloseInherited();
  RaiseFileLimit();
  std::signal(SIGHUP, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // A log above `ulimit -f` is an error of write.
  const std::string log = options.directory + "/agent.log";
  options.listening = [&] {
    if (detach && !Detach(log)) {
      return false;
    }
    varve::SetEventFunction([to = std::make_shared<varve::AgentLog>(log)](
                                const varve::Event& event) { to->Write(ToLine(event)); });
    return true;
  };
  const varve::Status status = varve::RunAgent(options);
  varve::SetEventFunction({});
  if (status.code() == varve::StatusCode::kAlreadyExists && detach) {
    return 0;  // An agent runs, as the caller wanted.
  }
  if (!status.ok()) {
    std::fprintf(stderr, "varve-agent: %s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
