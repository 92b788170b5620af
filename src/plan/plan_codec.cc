#include <algorithm>
#include <cstddef>
#include <set>
#include <span>

#include "base/checksum.h"
#include "base/octets.h"
#include "format/data_file.h"
#include "format/json_writer.h"
#include "plan/save_plan.h"
#include "plan/ties.h"
#include "tensor/box.h"

namespace varve {
namespace {

void PutBox(const Box& box, ByteWriter* out) {
  out->VarintList(box.offsets);
  out->VarintList(box.sizes);
}

Box GetBox(ByteReader* in) {
  Box box;
  in->VarintList(&box.offsets);
  in->VarintList(&box.sizes);
  if (box.offsets.size() != box.sizes.size()) {
    in->Fail("a box that has not as many offsets as sizes");
  }
  return box;
}

void PutHash(const Hash128& hash, ByteWriter* out) { PutOctets(hash.bytes, out); }

Hash128 GetHash(ByteReader* in) {
  Hash128 hash;
  GetOctets(in, &hash.bytes);
  return hash;
}

Status CheckName(std::string_view kind, const std::string& fqn) {
  if (!IsUtf8(fqn)) {
    return InvalidArgument(std::string(kind) + " name is not valid UTF-8");
  }
  if (IsReservedName(fqn)) {
    return InvalidArgument(std::string(kind) + " name \"" + fqn + "\" is reserved; rename it");
  }
  return Status::Ok();
}

}  // namespace

Bytes EncodeLocalPlan(const LocalPlan& plan) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.Varint(plan.tensors.size());
  for (const WriteItem& item : plan.tensors) {
    out.String(item.fqn);
    out.U8(static_cast<std::uint8_t>(item.dtype));
    out.VarintList(item.shape);
    PutBox(item.box, &out);
    out.U64(item.fingerprint);
    out.Varint(item.tied_to ? std::uint64_t{*item.tied_to} + 1 : 0);
  }
  out.Varint(plan.objects.size());
  for (const ObjectItem& item : plan.objects) {
    out.String(item.fqn);
    out.Varint(item.bytes);
    PutHash(item.content, &out);
  }
  out.String(plan.structure);
  return bytes;
}

Result<LocalPlan> DecodeLocalPlan(std::string_view bytes) {
  ByteReader in(bytes);
  LocalPlan plan;
  const std::uint64_t tensors = in.Count(14);
  plan.tensors.reserve(tensors);
  for (std::uint64_t i = 0; i < tensors && !in.failed(); ++i) {
    WriteItem item;
    item.fqn = std::string(in.String());
    const std::uint8_t dtype = in.U8();
    if (dtype >= kDTypeCount) {
      in.Fail("unknown dtype");
      break;
    }
    item.dtype = static_cast<DType>(dtype);
    in.VarintList(&item.shape);
    item.box = GetBox(&in);
    item.fingerprint = in.U64();
    if (const std::uint64_t tied = in.Varint(); tied > tensors) {
      in.Fail("a tie to an item that there is not");
    } else if (tied != 0) {
      item.tied_to = static_cast<std::uint32_t>(tied - 1);
    }
    plan.tensors.push_back(std::move(item));
  }
  const std::uint64_t objects = in.Count(18);
  for (std::uint64_t i = 0; i < objects && !in.failed(); ++i) {
    ObjectItem item;
    item.fqn = std::string(in.String());
    item.bytes = in.Varint();
    item.content = GetHash(&in);
    plan.objects.push_back(std::move(item));
  }
  plan.structure = std::string(in.String());
  if (Status status = in.Finish(); !status.ok()) {
    return status.Annotate("decode local plan");
  }
  return plan;
}

Bytes EncodeAssignment(const RankAssignment& assignment) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.Varint(assignment.chunks.size());
  for (const ChunkAssignment& chunk : assignment.chunks) {
    out.Varint(chunk.item);
    PutBox(chunk.box, &out);
  }
  out.VarintList(assignment.objects);
  out.String(assignment.structure);
  out.VarintList(assignment.aliases);
  return bytes;
}

Result<RankAssignment> DecodeAssignment(std::string_view bytes) {
  ByteReader in(bytes);
  RankAssignment assignment;
  const std::uint64_t chunks = in.Count(3);
  assignment.chunks.reserve(chunks);
  for (std::uint64_t i = 0; i < chunks && !in.failed(); ++i) {
    ChunkAssignment chunk;
    chunk.item = static_cast<std::uint32_t>(in.Varint());
    chunk.box = GetBox(&in);
    assignment.chunks.push_back(std::move(chunk));
  }
  in.VarintList(&assignment.objects);
  assignment.structure = std::string(in.String());
  in.VarintList(&assignment.aliases);
  if (Status status = in.Finish(); !status.ok()) {
    return status.Annotate("decode assignment");
  }
  return assignment;
}

Hash128 Digest(const SettledPlan& plan) {
  Bytes bytes;
  ByteWriter out(&bytes);
  for (const RankAssignment& rank : plan.ranks) {
    out.String(EncodeAssignment(rank));
  }
  return Xxh3(AsByteSpan(bytes));
}

Status CheckLocalPlan(const LocalPlan& plan) {
  std::set<std::string_view> objects;
  for (const ObjectItem& item : plan.objects) {
    VARVE_RETURN_IF_ERROR(CheckName("object", item.fqn));
    if (!objects.insert(item.fqn).second) {
      return InvalidArgument("object \"" + item.fqn + "\" appears twice");
    }
  }
  std::set<std::pair<std::string_view, Dims>> shards;
  for (const WriteItem& item : plan.tensors) {
    VARVE_RETURN_IF_ERROR(CheckName("tensor", item.fqn));
    if (Status status = CheckBox(item.shape, item.box, ItemSize(item.dtype)); !status.ok()) {
      return status.Annotate("tensor \"" + item.fqn + "\"");
    }
    if (objects.contains(item.fqn)) {
      return InvalidArgument("\"" + item.fqn + "\" names both a tensor and an object");
    }
    if (!IsEmpty(item.box) && !shards.insert({item.fqn, item.box.offsets}).second) {
      return InvalidArgument("tensor \"" + item.fqn + "\" appears twice at offsets " +
                             ToString(item.box.offsets));
    }
  }
  return Status::Ok();
}

RankAssignment AssignEverything(const LocalPlan& plan) {
  RankAssignment assignment;
  const Aliases aliases = SettleTies(std::span(&plan, 1));
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const WriteItem& item = plan.tensors[i];
    if (aliases.contains(item.fqn)) {
      continue;
    }
    if (!IsEmpty(item.box) || Volume(item.shape) == 0) {
      assignment.chunks.push_back({static_cast<std::uint32_t>(i), item.box});
    }
  }
  for (std::size_t i = 0; i < plan.objects.size(); ++i) {
    assignment.objects.push_back(static_cast<std::uint32_t>(i));
  }
  assignment.structure = plan.structure;
  AssignAliases(plan, aliases, &assignment);
  return assignment;
}

}  // namespace varve
