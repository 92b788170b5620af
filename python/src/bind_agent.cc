#include <chrono>
#include <string>

#include <nanobind/stl/string.h>

#include "bindings.h"
#include "bound.h"
#include "interruptible.h"
#include "varve/agent.h"

namespace varve::python {
namespace {

nb::list FilesOf(const std::vector<AgentReport::File>& files) {
  nb::list out;
  for (const AgentReport::File& file : files) {
    nb::dict made;
    made["path"] = ToPath(file.path);
    made["rank"] = file.rank;
    made["bytes"] = file.bytes;
    made["writing"] = file.writing;
    made["trainer_lives"] = file.trainer_lives;
    out.append(made);
  }
  return out;
}

nb::dict Status() {
  Result<AgentReport> report = Internal("not run");
  {
    const nb::gil_scoped_release release;
    report = AgentStatus();
  }
  RaiseIfError(report.status());
  nb::dict out;
  out["version"] = report->version;
  out["pid"] = report->pid;
  out["stopping"] = report->stopping;
  out["trainers"] = report->trainers;
  out["saves"] = FilesOf(report->saves);
  out["held"] = FilesOf(report->held);
  return out;
}

/// Drains or stops.
void Wait(varve::Status (*tell)(std::chrono::milliseconds, const std::string&),
          nb::handle timeout) {
  auto status = std::make_shared<varve::Status>();
  WaitOffMain([status, tell, limit = Argument<std::chrono::milliseconds>("timeout", timeout)] {
    *status = tell(limit, {});
  });
  RaiseIfError(*status);
}

}  // namespace

void BindAgent(nb::module_& module) {
  module.def("agent_status", &Status);
  module.def(
      "agent_drain", [](nb::handle timeout) { Wait(&DrainAgent, timeout); }, nb::arg("timeout"));
  module.def(
      "agent_stop", [](nb::handle timeout) { Wait(&StopAgent, timeout); }, nb::arg("timeout"));
}

}  // namespace varve::python
