/// Pickles put together by hand: each function gives the opcodes that push one object, so they nest
/// as the objects do. And torch.save archives with such pickles.
#pragma once

#include <bit>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "support/archives.h"

namespace varve::test::pickled {

inline const std::string kNone = "N";
inline const std::string kTrue = "\x88";
inline const std::string kFalse = "\x89";

inline std::string Int(std::int64_t value) {
  return "\x8a\x08" + Le(static_cast<std::uint64_t>(value), 8);
}
inline std::string Float(double value) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  std::string out = "G";
  for (int shift = 56; shift >= 0; shift -= 8) {
    out += static_cast<char>(bits >> shift);
  }
  return out;
}
inline std::string Str(std::string_view utf8) {
  return "X" + Le(utf8.size(), 4) + std::string(utf8);
}
inline std::string Bytes(std::string_view bytes) {
  return "B" + Le(bytes.size(), 4) + std::string(bytes);
}

inline std::string All(const std::vector<std::string>& items) {
  std::string out;
  for (const std::string& item : items) {
    out += item;
  }
  return out;
}
inline std::string Tuple(const std::vector<std::string>& items) { return "(" + All(items) + "t"; }
inline std::string List(const std::vector<std::string>& items) { return "](" + All(items) + "e"; }
/// Keys and values in turn.
inline std::string Dict(const std::vector<std::string>& pairs) { return "}(" + All(pairs) + "u"; }
inline std::string Ints(const std::vector<std::int64_t>& values) {
  std::vector<std::string> items;
  items.reserve(values.size());
  for (const std::int64_t value : values) {
    items.push_back(Int(value));
  }
  return Tuple(items);
}

inline std::string Global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}
inline std::string Call(const std::string& callee, const std::vector<std::string>& arguments) {
  return callee + Tuple(arguments) + "R";
}
inline std::string OrderedDict() { return Call(Global("collections", "OrderedDict"), {}); }
inline std::string Build(const std::string& object, const std::string& state) {
  return object + state + "b";
}

inline std::string Storage(const std::string& type, std::string_view key, std::int64_t count,
                           std::string_view location = "cpu") {
  return Tuple({Str("storage"), Global("torch", type), Str(key), Str(location), Int(count)}) + "Q";
}
/// _rebuild_tensor_v2; `more` are arguments behind the usual ones.
inline std::string Tensor(const std::string& storage, std::int64_t offset,
                          const std::vector<std::int64_t>& sizes,
                          const std::vector<std::int64_t>& strides,
                          const std::vector<std::string>& more = {}) {
  return Call(Global("torch._utils", "_rebuild_tensor_v2"),
              {storage, Int(offset), Ints(sizes), Ints(strides), kFalse, OrderedDict(), All(more)});
}

/// Returns a whole pickle.
inline std::string Pickle(const std::string& object) { return "\x80\x02" + object + "."; }

/// Returns an archive of this pickle whose storages are "0", "1", ...; without checksums.
inline std::string Archive(const std::string& object,
                           const std::vector<std::string>& storages = {}) {
  std::vector<ZipPart> parts{{.name = "a/data.pkl", .content = Pickle(object)},
                             {.name = "a/byteorder", .content = "little"}};
  for (const std::string& storage : storages) {
    parts.push_back({.name = "a/data/" + std::to_string(parts.size() - 2), .content = storage});
  }
  return ZipOf(parts);
}

}  // namespace varve::test::pickled
