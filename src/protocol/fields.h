/// The fields that plans and metadata share, see base/fields.h.
#pragma once

#include "base/fields.h"
#include "tensor/fields.h"
#include "varve/protocol/metadata.h"

namespace varve::protocol {

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, MetadataIndex>& index) {
  archive(index.fqn, index.offset, index.index);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, TensorProperties>& properties) {
  archive(properties.dtype);
}

}  // namespace varve::protocol
