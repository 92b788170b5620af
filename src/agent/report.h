/// The encoding of an AgentReport.
#pragma once

#include <string_view>

#include "base/bytes.h"
#include "varve/agent.h"

namespace varve {

Bytes EncodeAgentReport(const AgentReport& report);
/// Decodes a report. Errors: DataLoss.
Result<AgentReport> DecodeAgentReport(std::string_view bytes);

}  // namespace varve
