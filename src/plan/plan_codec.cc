#include <algorithm>
#include <cstddef>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/name_set.h"
#include "format/data_file.h"
#include "format/json_writer.h"
#include "plan/fields.h"
#include "plan/save_plan.h"
#include "plan/ties.h"
#include "tensor/box.h"

namespace varve {
namespace {

Status CheckName(std::string_view kind, const std::string& fqn) {
  if (!IsUtf8(fqn)) {
    return InvalidArgument(std::string(kind) + " name is not valid UTF-8");
  }
  if (IsReservedName(fqn)) {
    return InvalidArgument(std::string(kind) + " name \"" + fqn + "\" is reserved; rename it");
  }
  return Status::Ok();
}

/// Checks that no shard appears twice. Many tensors are one shard each, of which there is nothing
/// to check.
Status CheckParts(const LocalPlan& plan) {
  std::set<std::pair<std::string_view, Dims>> shards;
  for (const PlannedTensor& item : plan.tensors) {
    if (!IsEmpty(item.box) && !shards.insert({item.fqn(), item.box.offsets}).second) {
      return InvalidArgument("tensor \"" + item.fqn() + "\" appears twice at offsets " +
                             ToString(item.box.offsets));
    }
  }
  return Status::Ok();
}

}  // namespace

Bytes EncodeAssignment(const RankAssignment& assignment) { return EncodeFields(assignment); }
Result<RankAssignment> DecodeAssignment(std::string_view bytes) {
  return DecodeFields<RankAssignment>(bytes).Annotate("decode assignment");
}

Status CheckLocalPlan(const LocalPlan& plan) {
  std::set<std::string_view> objects;
  for (const ObjectItem& item : plan.objects) {
    VARVE_RETURN_IF_ERROR(CheckName("object", item.fqn));
    if (!objects.insert(item.fqn).second) {
      return InvalidArgument("object \"" + item.fqn + "\" appears twice");
    }
  }
  NameSet names(plan.tensors.size());
  bool in_parts = false;
  for (const PlannedTensor& item : plan.tensors) {
    VARVE_RETURN_IF_ERROR(CheckName("tensor", item.fqn()));
    if (Status status = CheckBox(item.shape(), item.box, ItemSize(item.dtype())); !status.ok()) {
      return status.Annotate("tensor \"" + item.fqn() + "\"");
    }
    if (objects.contains(item.fqn())) {
      return InvalidArgument("\"" + item.fqn() + "\" names both a tensor and an object");
    }
    in_parts = !names.Insert(item.fqn()) || in_parts;
  }
  return in_parts ? CheckParts(plan) : Status::Ok();
}

ChunkAssignment Assigned(const LocalPlan& plan, std::uint32_t item, const Box& box) {
  if (box == plan.tensors[item].box) {
    return {item};
  }
  return {item, std::make_shared<const Box>(box)};
}

RankAssignment AssignEverything(const LocalPlan& plan) {
  RankAssignment assignment;
  const Aliases aliases = SettleTies(std::span(&plan, 1));
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const PlannedTensor& item = plan.tensors[i];
    if (aliases.contains(item.fqn())) {
      continue;
    }
    if (!IsEmpty(item.box) || Volume(item.shape()) == 0) {
      assignment.chunks.push_back({static_cast<std::uint32_t>(i)});
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
