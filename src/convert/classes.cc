#include <utility>

#include "convert/writers.h"
#include "format/structure.h"

namespace varve {

void LeftOutClasses::AddStructure(const Value& structure, const std::string& name, bool root) {
  if (structure.kind == ValueKind::kWrapped ||
      (plain_values_ && structure.kind == ValueKind::kNamedDict)) {
    Note(structure, name);
  }
  const bool mapping = IsMapping(structure.kind);
  const std::size_t step = mapping ? 2 : 1;
  for (std::size_t i = 0; i + step <= structure.items.size(); i += step) {
    const std::string key = mapping ? KeyText(structure.items[i]) : std::to_string(i);
    AddStructure(structure.items[i + step - 1], NameBelow(name, root, key), false);
  }
}

void LeftOutClasses::AddValue(const Value& value, const std::string& name) {
  if (!plain_values_) {
    return;
  }
  if (value.kind == ValueKind::kNamed || value.kind == ValueKind::kNamedDict) {
    Note(value, name);
    return;
  }
  for (const Value& item : value.items) {
    AddValue(item, name);
  }
}

std::vector<std::string> LeftOutClasses::Describe() const {
  std::vector<std::string> lines;
  lines.reserve(by_class_.size());
  for (const auto& [name, noted] : by_class_) {
    lines.push_back(name + " of " + std::to_string(noted.count) +
                    (noted.count == 1 ? " entry, \"" : " entries, the first is \"") + noted.first +
                    "\"");
  }
  return lines;
}

void LeftOutClasses::Note(const Value& value, const std::string& name) {
  std::string of(ClassOf(value));
  if (const std::size_t colon = of.find(':'); colon != std::string::npos) {
    of[colon] = '.';
  }
  Noted& noted = by_class_[std::move(of)];
  if (noted.count++ == 0) {
    noted.first = name;
  }
}

}  // namespace varve
