/// The state that a rank of a save as hfai's parts gives the engine.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "interop/hfai/names.h"
#include "varve/checkpoint.h"
#include "varve/value.h"

namespace varve::test {

/// Returns the leaf that stands for the tensor of this number.
inline Value HfaiLeaf(int number) {
  return {.kind = ValueKind::kTensorLeaf, .text = std::to_string(number)};
}

/// Returns the object of a part: a model with these entries, names and leaves in turn.
inline SourceObject HfaiPart(int rank, int world, std::vector<Value> entries) {
  const Value small{.kind = ValueKind::kOrderedDict, .items = std::move(entries)};
  const Value pair{.kind = ValueKind::kTuple, .items = {small, {.kind = ValueKind::kDict}}};
  const Value whole{.kind = ValueKind::kDict,
                    .items = {Value::Str("__nshards__"),
                              Value::Int(world),
                              Value::Str("__version__"),
                              Value::Str("2.0.0"),
                              Value::Str("model"),
                              {.kind = ValueKind::kList, .items = {pair}},
                              Value::Str("optimizer"),
                              {.kind = ValueKind::kList}}};
  return {HfaiPartName(static_cast<std::uint64_t>(rank)), EncodeValue(whole)};
}

}  // namespace varve::test
