#include "agent/report.h"

#include <utility>

namespace varve {
namespace {

void PutFiles(const std::vector<AgentReport::File>& files, ByteWriter* out) {
  out->Varint(files.size());
  for (const AgentReport::File& file : files) {
    out->String(file.path);
    out->U32(file.rank);
    out->U64(file.bytes);
    out->String(file.state);
    out->F64(file.seconds);
    out->U8(file.trainer_lives ? 1 : 0);
  }
}

void GetFiles(ByteReader* in, std::vector<AgentReport::File>* files) {
  const std::uint64_t count = in->Count();
  for (std::uint64_t i = 0; i < count && !in->failed(); ++i) {
    AgentReport::File file;
    file.path = std::string(in->String());
    file.rank = in->U32();
    file.bytes = in->U64();
    file.state = std::string(in->String());
    file.seconds = in->F64();
    file.trainer_lives = in->U8() != 0;
    files->push_back(std::move(file));
  }
}

}  // namespace

Bytes EncodeAgentReport(const AgentReport& report) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.String(report.version);
  out.U32(static_cast<std::uint32_t>(report.pid));
  out.U8(report.stopping ? 1 : 0);
  out.U64(report.trainers);
  PutFiles(report.saves, &out);
  PutFiles(report.held, &out);
  return bytes;
}

Result<AgentReport> DecodeAgentReport(std::string_view bytes) {
  ByteReader in(bytes);
  AgentReport report;
  report.version = std::string(in.String());
  report.pid = static_cast<int>(in.U32());
  report.stopping = in.U8() != 0;
  report.trainers = in.U64();
  GetFiles(&in, &report.saves);
  GetFiles(&in, &report.held);
  VARVE_RETURN_IF_ERROR(in.Finish());
  return report;
}

}  // namespace varve
