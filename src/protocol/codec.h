/// The parts that plans and metadata are encoded from. Every reader leaves its mark in the
/// ByteReader when the bytes make no sense; callers look once, at the end.
#pragma once

#include <cstdint>
#include <optional>

#include "base/bytes.h"
#include "varve/dtype.h"
#include "varve/protocol/metadata.h"

namespace varve::protocol {

inline void PutBox(const Box& box, ByteWriter* out) {
  out->VarintList(box.offsets);
  out->VarintList(box.sizes);
}

inline Box GetBox(ByteReader* in) {
  Box box;
  in->VarintList(&box.offsets);
  in->VarintList(&box.sizes);
  return box;
}

inline void PutDType(DType dtype, ByteWriter* out) { out->U8(static_cast<std::uint8_t>(dtype)); }

inline DType GetDType(ByteReader* in) {
  const std::uint8_t number = in->U8();
  if (number >= kDTypeCount) {
    in->Fail("unknown dtype");
    return DType::kUInt8;
  }
  return static_cast<DType>(number);
}

/// A byte that is 0 or 1.
inline bool GetFlag(ByteReader* in) {
  const std::uint8_t flag = in->U8();
  if (flag > 1) {
    in->Fail("a flag that is neither 0 nor 1");
  }
  return flag == 1;
}

inline void PutIndex(const MetadataIndex& index, ByteWriter* out) {
  out->String(index.fqn);
  out->U8(index.offset ? 1 : 0);
  if (index.offset) {
    out->VarintList(*index.offset);
  }
  out->U8(index.index ? 1 : 0);
  if (index.index) {
    out->Varint(*index.index);
  }
}

inline MetadataIndex GetIndex(ByteReader* in) {
  MetadataIndex index;
  index.fqn = in->String();
  if (GetFlag(in)) {
    in->VarintList(&index.offset.emplace());
  }
  if (GetFlag(in)) {
    index.index = in->Varint();
  }
  return index;
}

}  // namespace varve::protocol
