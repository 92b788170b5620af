/// Plain values for tests.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "varve/value.h"

namespace varve::test {

inline Value Make(ValueKind kind) { return {.kind = kind}; }
inline Value Make(ValueKind kind, std::string text) {
  return {.kind = kind, .text = std::move(text)};
}
inline Value Make(ValueKind kind, std::vector<Value> items) {
  return {.kind = kind, .items = std::move(items)};
}
inline Value Make(ValueKind kind, std::string text, std::vector<Value> items) {
  return {.kind = kind, .text = std::move(text), .items = std::move(items)};
}
inline Value List(std::vector<Value> items) { return Make(ValueKind::kList, std::move(items)); }
inline Value Dict(std::vector<Value> items) { return Make(ValueKind::kDict, std::move(items)); }

/// Returns at least one value of every kind, by kind.
std::vector<Value> ValuesOfEveryKind();

}  // namespace varve::test
