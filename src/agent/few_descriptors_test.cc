// A process without free file descriptors gets an error that says so, and not one that the agent
// was lost.

#include <cstdlib>
#include <optional>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/connection.h"
#include "agent/shared_memory.h"
#include "support/agent.h"
#include "support/exhaustion.h"
#include "support/ranks.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "support/training.h"
#include "varve/agent.h"
#include "varve/async_save.h"

namespace varve::few_descriptors_test {
namespace {

using test::FailsWith;
using test::IsOk;
using test::LongDeadline;
using test::TempDir;
using test::Training;

/// Takes all descriptors that the process may still have.
class NoDescriptors {
 public:
  NoDescriptors() {
    for (int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC); fd >= 0; fd = ::dup(fd)) {
      taken_.emplace_back(fd);
    }
  }

 private:
  std::vector<FileDescriptor> taken_;
};

TEST(AgentConnection, SaysThatThereIsNoDescriptorForWhatIsSent) {
  int ends[2] = {};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  AgentConnection trainer{FileDescriptor(ends[0])};
  AgentConnection agent{FileDescriptor(ends[1])};
  AgentMessage message{AgentVerb::kDone, 7, {}, {}};
  message.fds.push_back(std::move(*MakeBlob("a long report")));
  ASSERT_TRUE(IsOk(agent.Send(message)));
  const NoDescriptors none;
  EXPECT_TRUE(FailsWith(trainer.Receive(LongDeadline()), StatusCode::kFailedPrecondition,
                        {"descriptor", "ulimit -n"}));
}

TEST(AgentConnection, SaysThatThereIsNoDescriptorForASocket) {
  const TempDir dir;
  const NoDescriptors none;
  EXPECT_TRUE(FailsWith(ConnectToSocket(dir / "socket", Deadline::max()),
                        StatusCode::kFailedPrecondition, {"make a socket", "ulimit -n"}));
}

TEST(AgentExecutor, DoesNotCallTheAgentLostWhenATrainerHasNoDescriptors) {
  if (!test::CanRefuse()) {
    GTEST_SKIP() << "a sanitizer opens a file for each thread that starts";
  }
  test::AgentHere agent;
  const TempDir dir;
  const auto stager = agent.MakeStager(std::uint64_t{32} << 20);
  const Training training(1 << 20);
  {
    const NoDescriptors none;
    const auto done = AsyncSave(training.state(), dir / "one", {}, *stager).done().get();
    EXPECT_FALSE(done.ok());
    EXPECT_NE(done.status().message().find("open files"), std::string::npos)
        << done.status().ToString();
    EXPECT_EQ(done.status().message().find("died"), std::string::npos);
  }
  EXPECT_TRUE(IsOk(AsyncSave(training.state(), dir / "two", {}, *stager).done().get()));
}

/// Sets a variable of the environment until it is destroyed.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* const before = std::getenv(name)) {
      before_ = before;
    }
    value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() { before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_); }

 private:
  const char* const name_;
  std::optional<std::string> before_;
};

TEST(DefaultAgentDirectory, IsInTheRuntimeDirectoryOnlyIfThatIsThere) {
  const TempDir dir;
  const Variable chosen("VARVE_AGENT_DIR", nullptr);
  {
    const Variable runtime("XDG_RUNTIME_DIR", dir.path().c_str());
    EXPECT_EQ(DefaultAgentDirectory(), dir / "varve");
  }
  const std::string elsewhere = "/tmp/varve-" + std::to_string(::geteuid());
  for (const std::string& absent : {dir / "absent", std::string("relative"), std::string()}) {
    const Variable runtime("XDG_RUNTIME_DIR", absent.c_str());
    EXPECT_EQ(DefaultAgentDirectory(), elsewhere) << absent;
  }
}

}  // namespace
}  // namespace varve::few_descriptors_test
