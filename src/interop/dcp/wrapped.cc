#include "interop/dcp/wrapped.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include "interop/torch/encode_parts.h"
#include "varve/value.h"

namespace varve {
namespace {

bool Encloses(const Extent& outer, const Extent& inner) {
  return outer.file == inner.file && outer.begin <= inner.begin && inner.end <= outer.end;
}

/// Returns the value whose item an inner tensor lies in, or null.
const ObjectMetadata* ValueAround(const Metadata& metadata, std::string_view fqn,
                                  const Extent& extent) {
  for (std::size_t dot = fqn.rfind('.'); dot != std::string_view::npos && dot > 0;
       dot = fqn.rfind('.', dot - 1)) {
    const ObjectMetadata* const object = metadata.FindObject(std::string(fqn.substr(0, dot)));
    if (object != nullptr && Encloses(object->extent, extent)) {
      return object;
    }
  }
  const auto found =
      std::find_if(metadata.objects.begin(), metadata.objects.end(),
                   [&](const ObjectMetadata& each) { return Encloses(each.extent, extent); });
  return found == metadata.objects.end() ? nullptr : &*found;
}

Value ListOf(std::vector<Value> items) {
  return {.kind = ValueKind::kTuple, .items = std::move(items)};
}

Result<DcpInner> ReadInner(const Value& value) {
  if (value.kind != ValueKind::kTuple || value.items.size() != 4 ||
      value.items[0].kind != ValueKind::kStr || value.items[1].kind != ValueKind::kStr) {
    return DataLoss("an inner tensor is no tuple of name, dtype, shape and place");
  }
  DcpInner inner{.fqn = value.items[0].text};
  const auto dtype = DTypeFromName(value.items[1].text);
  auto shape = ShapeOf(value.items[2], "the shape");
  const auto begin = IntOf(value.items[3], "the place");
  if (!dtype || !shape.ok() || !begin.ok() || *begin < 0) {
    return DataLoss("the inner tensor \"" + inner.fqn + "\" is malformed");
  }
  inner.dtype = *dtype;
  inner.shape = *std::move(shape);
  inner.begin = static_cast<std::uint64_t>(*begin);
  return inner;
}

}  // namespace

std::vector<DcpWrapped> FindDcpWrapped(const Metadata& metadata) {
  std::map<std::string_view, DcpWrapped> found;
  for (const TensorMetadata& tensor : metadata.tensors) {
    if (tensor.chunks.size() != 1 || tensor.chunks[0].extent.encoding != Encoding::kPlain) {
      continue;
    }
    const Extent& extent = tensor.chunks[0].extent;
    const ObjectMetadata* const value = ValueAround(metadata, tensor.fqn, extent);
    if (value != nullptr) {
      DcpWrapped& wrapped = found[value->fqn];
      wrapped.fqn = value->fqn;
      wrapped.inner.push_back(
          {tensor.fqn, tensor.dtype, tensor.shape, extent.begin - value->extent.begin});
    }
  }
  std::vector<DcpWrapped> all;
  all.reserve(found.size());
  for (auto& [fqn, wrapped] : found) {
    all.push_back(std::move(wrapped));
  }
  return all;
}

std::string EncodeDcpWrapped(const std::vector<DcpWrapped>& wrapped) {
  Value all{.kind = ValueKind::kDict};
  for (const DcpWrapped& each : wrapped) {
    std::vector<Value> inner;
    for (const DcpInner& tensor : each.inner) {
      std::vector<Value> shape;
      for (const std::uint64_t size : tensor.shape) {
        shape.push_back(Value::Int(static_cast<std::int64_t>(size)));
      }
      inner.push_back(
          ListOf({Value::Str(tensor.fqn), Value::Str(std::string(DTypeName(tensor.dtype))),
                  ListOf(std::move(shape)), Value::Int(static_cast<std::int64_t>(tensor.begin))}));
    }
    all.items.push_back(Value::Str(each.fqn));
    all.items.push_back(ListOf(std::move(inner)));
  }
  return EncodeValue(all);
}

Result<std::vector<DcpWrapped>> DecodeDcpWrapped(std::string_view encoded) {
  VARVE_ASSIGN_OR_RETURN(const Value all, DecodeValue(encoded));
  if (all.kind != ValueKind::kDict) {
    return DataLoss("no dict");
  }
  std::vector<DcpWrapped> wrapped;
  std::set<std::string_view> names;
  for (std::size_t i = 0; i + 1 < all.items.size(); i += 2) {
    const Value& name = all.items[i];
    const Value& inner = all.items[i + 1];
    if (name.kind != ValueKind::kStr || inner.kind != ValueKind::kTuple) {
      return DataLoss("an item is no name with inner tensors");
    }
    DcpWrapped& added = wrapped.emplace_back();
    added.fqn = name.text;
    bool is_new = names.insert(name.text).second;
    for (const Value& each : inner.items) {
      VARVE_ASSIGN_OR_RETURN(DcpInner tensor, ReadInner(each));
      is_new = names.insert(each.items[0].text).second && is_new;
      added.inner.push_back(std::move(tensor));
    }
    if (!is_new) {
      return DataLoss("a name of \"" + name.text + "\" is there twice");
    }
  }
  return wrapped;
}

}  // namespace varve
