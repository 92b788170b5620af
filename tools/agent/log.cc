#include "log.h"

#include <cstdio>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace varve {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 20;

}  // namespace

AgentLog::~AgentLog() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

void AgentLog::Open() {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
  struct stat status{};
  size_ = fd_ >= 0 && ::fstat(fd_, &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
}

void AgentLog::Write(std::string_view line) {
  if (fd_ < 0) {
    Open();
  }
  if (size_ > kMostBytes) {
    (void)std::rename(path_.c_str(), (path_ + ".1").c_str());
    ::close(std::exchange(fd_, -1));
    Open();
  }
  const std::string text = std::string(line) + '\n';
  if (fd_ >= 0 && ::write(fd_, text.data(), text.size()) > 0) {
    size_ += text.size();
  }
}

}  // namespace varve
