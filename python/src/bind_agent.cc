#include <chrono>
#include <memory>
#include <string>

#include "bindings.h"
#include "bound.h"
#include "interruptible.h"
#include "varve/agent.h"

namespace varve::python {
namespace {

constexpr const char* kFileDoc =
    R"(A data file that the agent writes, is going to write, or keeps in memory.

Attributes:
    path: The checkpoint.
    rank: The rank whose file it is.
    bytes: Of its data.
    state: "queued" (saves before it are written first), "kept" (deferred: written if the trainer
        ends), "chosen" (deferred: written if a newer one fails), "writing" or "held" (written).
    seconds: For so long.
    trainer_lives: The process that submitted it is still there.
)";

constexpr const char* kReportDoc = R"(The state of an agent.

Attributes:
    version: The version of Varve.
    pid: The agent's process id.
    stopping: The agent takes nothing more.
    trainers: Number of stagers that are connected.
    saves: Files that are not written yet.
    held: Files that are written, and in memory.
)";

AgentReport StatusPython() {
  Result<AgentReport> report = Internal("not run");
  {
    const GilReleased release;
    report = AgentStatus();
  }
  return ValueOrRaise(std::move(report));
}

/// Drains or stops the agent.
void Wait(Status (*tell)(std::chrono::milliseconds, const std::string&), nb::handle timeout) {
  auto status = std::make_shared<Status>();
  WaitOffMain([status, tell, limit = Argument<std::chrono::milliseconds>("timeout", timeout)] {
    *status = tell(limit, {});
  });
  RaiseIfError(*status);
}

}  // namespace

void BindAgent(nb::module_& module) {
  Bound<AgentReport::File>(module, "AgentFile", kFileDoc)
      .Field<AsPath>("path", &AgentReport::File::path)
      .Field("rank", &AgentReport::File::rank)
      .Field("bytes", &AgentReport::File::bytes)
      .Field("state", &AgentReport::File::state)
      .Field("seconds", &AgentReport::File::seconds)
      .Field("trainer_lives", &AgentReport::File::trainer_lives)
      .Public("varve.agent");
  Bound<AgentReport>(module, "AgentReport", kReportDoc)
      .Field("version", &AgentReport::version)
      .Field("pid", &AgentReport::pid)
      .Field("stopping", &AgentReport::stopping)
      .Field("trainers", &AgentReport::trainers)
      .Field("saves", &AgentReport::saves)
      .Field("held", &AgentReport::held)
      .Public("varve.agent");
  module.def("agent_status", &StatusPython);
  module.def(
      "agent_drain", [](nb::handle timeout) { Wait(&DrainAgent, timeout); }, nb::arg("timeout"));
  module.def(
      "agent_stop", [](nb::handle timeout) { Wait(&StopAgent, timeout); }, nb::arg("timeout"));
}

}  // namespace varve::python
