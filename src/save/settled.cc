#include "save/settled.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/octets.h"
#include "save/written_format.h"

namespace varve {
namespace {

constexpr std::uint32_t kMostRanks = 1 << 20;  // What there is for each is made when a save begins.

void PutIdentity(const FileIdentity& identity, ByteWriter* out) {
  PutOctets(identity.save_id.bytes, out);
  out->U32(identity.rank);
  out->U32(identity.world_size);
  out->U8(identity.coordinated ? 1 : 0);
  out->U64(identity.created_ns);
  out->U64(identity.block_bytes);
}

FileIdentity GetIdentity(ByteReader* in) {
  FileIdentity identity;
  GetOctets(in, &identity.save_id.bytes);
  identity.rank = in->U32();
  identity.world_size = in->U32();
  identity.coordinated = in->U8() != 0;
  identity.created_ns = in->U64();
  identity.block_bytes = in->U64();
  return identity;
}

}  // namespace

Bytes EncodeSettledSave(const SettledSave& save) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.U8(static_cast<std::uint8_t>(save.format));
  PutIdentity(save.identity, &out);
  out.String(EncodeLocalPlan(save.plan));
  out.String(EncodeAssignment(save.assignment));
  out.String(save.layout);
  out.Varint(save.plans.size());
  for (const LocalPlan& plan : save.plans) {
    out.String(EncodeLocalPlan(plan));
  }
  out.Varint(save.settled.ranks.size());
  for (const RankAssignment& rank : save.settled.ranks) {
    out.String(EncodeAssignment(rank));
  }
  out.StringList(save.settled.differing_objects);
  out.StringList(save.settled.differing_tensors);
  out.Varint(save.side_files.size());
  for (const SideFile& file : save.side_files) {
    out.String(file.name);
    out.String(file.content);
  }
  return bytes;
}

Result<SettledSave> DecodeSettledSave(std::string_view bytes) {
  ByteReader in(bytes);
  SettledSave save;
  save.format = static_cast<Format>(in.U8());
  if (FindWrittenFormat(save.format) == nullptr) {
    in.Fail("a format that is not written");
  }
  save.identity = GetIdentity(&in);
  if (save.identity.rank >= save.identity.world_size || save.identity.world_size > kMostRanks) {
    in.Fail("a rank of a world that there is not");
  }
  VARVE_ASSIGN_OR_RETURN(save.plan, DecodeLocalPlan(in.String()));
  VARVE_ASSIGN_OR_RETURN(save.assignment, DecodeAssignment(in.String()));
  save.layout = std::string(in.String());
  const std::uint64_t plans = in.Count();
  for (std::uint64_t i = 0; i < plans && !in.failed(); ++i) {
    VARVE_ASSIGN_OR_RETURN(LocalPlan plan, DecodeLocalPlan(in.String()));
    save.plans.push_back(std::move(plan));
  }
  const std::uint64_t ranks = in.Count();
  for (std::uint64_t i = 0; i < ranks && !in.failed(); ++i) {
    VARVE_ASSIGN_OR_RETURN(RankAssignment rank, DecodeAssignment(in.String()));
    save.settled.ranks.push_back(std::move(rank));
  }
  in.StringList(&save.settled.differing_objects);
  in.StringList(&save.settled.differing_tensors);
  const std::uint64_t files = in.Count(2);
  for (std::uint64_t i = 0; i < files && !in.failed(); ++i) {
    std::string name(in.String());
    save.side_files.push_back({std::move(name), std::string(in.String())});
  }
  VARVE_RETURN_IF_ERROR(in.Finish());
  return save;
}

}  // namespace varve
