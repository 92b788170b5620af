#include "agent/endpoint.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "varve/agent.h"

namespace varve {
namespace {

constexpr int kBacklog = 128;

}  // namespace

std::string DefaultAgentDirectory() {
  if (const char* const chosen = std::getenv("VARVE_AGENT_DIR");
      chosen != nullptr && *chosen != 0) {
    return chosen;
  }
  // Containers and batch jobs inherit the variable without the directory.
  if (const char* const run = std::getenv("XDG_RUNTIME_DIR");
      run != nullptr && *run == '/' && ::access(run, W_OK | X_OK) == 0) {
    return std::string(run) + "/varve";
  }
  return "/tmp/varve-" + std::to_string(::geteuid());
}

AgentEndpoint EndpointIn(const std::string& directory) {
  const std::string where = directory.empty() ? DefaultAgentDirectory() : directory;
  return {where, where + "/agent.socket", where + "/agent.lock", where + "/agent.log"};
}

Status CheckPrivate(const std::string& directory, bool make) {
  if (make && ::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    const int error = errno;
    return SystemError("make " + directory + " for the agent (VARVE_AGENT_DIR names another)",
                       error);
  }
  struct stat status{};
  if (::lstat(directory.c_str(), &status) != 0) {
    return errno == ENOENT
               ? NotFound("no agent runs: there is no " + directory)
               : SystemError("look at " + directory +
                                 ", the agent's directory (VARVE_AGENT_DIR names another)",
                             errno);
  }
  if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid() || (status.st_mode & 077) != 0) {
    std::array<char, 8> mode{};
    std::snprintf(mode.data(), mode.size(), "%04o", status.st_mode & 07777U);
    return FailedPrecondition(
        directory + " must be a directory of user " + std::to_string(::geteuid()) +
        " that no other user may enter (mode 0700), for the agent's socket; it is " +
        (S_ISDIR(status.st_mode) ? "one" : "no directory, but a file") + " of user " +
        std::to_string(status.st_uid) + " (mode " + mode.data() +
        "); set VARVE_AGENT_DIR to such a directory");
  }
  return Status::Ok();
}

Result<FileDescriptor> LockEndpoint(const AgentEndpoint& endpoint) {
  FileDescriptor lock(
      ::open(endpoint.lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock.valid()) {
    return SystemError("open " + endpoint.lock, errno);
  }
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return errno == EWOULDBLOCK ? AlreadyExists("an agent runs in " + endpoint.directory)
                                : SystemError("lock " + endpoint.lock, errno);
  }
  return lock;
}

Result<FileDescriptor> Listen(const AgentEndpoint& endpoint) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (endpoint.socket.size() >= sizeof(address.sun_path)) {
    return InvalidArgument("the name of the agent's socket is too long: " + endpoint.socket);
  }
  std::memcpy(address.sun_path, endpoint.socket.data(), endpoint.socket.size());
  FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket.valid()) {
    return SystemError("make a socket", errno);
  }
  ::unlink(endpoint.socket.c_str());
  // The directory keeps others out; the socket's own mode does too.
  const mode_t mask = ::umask(0177);
  const int bound =
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const int error = errno;
  ::umask(mask);
  if (bound != 0) {
    return SystemError("bind " + endpoint.socket, error);
  }
  if (::listen(socket.get(), kBacklog) != 0) {
    return SystemError("listen at " + endpoint.socket, errno);
  }
  return socket;
}

}  // namespace varve
