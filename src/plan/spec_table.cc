#include "plan/spec_table.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "plan/fields.h"

namespace varve {

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, TensorSpec>& spec) {
  archive(spec.fqn, spec.dtype, spec.shape);
}

namespace {

/// The optional fields of an encoded item.
enum Flag : std::uint8_t {
  kOtherNumber = 1,  ///< Its number in the table; else the one after the item's before.
  kFingerprint = 2,
  kTied = 4,
  kPart = 8,
  kBox = 16,  ///< Else the whole tensor.
  kNotHashed = 32,
};
constexpr std::uint8_t kAllFlags = 63;
constexpr std::size_t kMostDims = 64;  // As in torch and NumPy.

void EncodeItem(const PlannedTensor& item, bool follows, std::uint32_t number, ByteWriter* out) {
  const bool whole = item.box == WholeBox(item.shape());
  const bool hashed = item.fingerprint != 0 && item.fingerprint != kUnhashed;
  out->U8(static_cast<std::uint8_t>((follows ? 0 : kOtherNumber) | (hashed ? kFingerprint : 0) |
                                    (item.tied_to ? kTied : 0) | (item.part_of ? kPart : 0) |
                                    (whole ? 0 : kBox) |
                                    (item.fingerprint == kUnhashed ? kNotHashed : 0)));
  if (!follows) {
    out->Varint(number);
  }
  if (!whole) {
    for (const std::uint64_t offset : item.box.offsets) {
      out->Varint(offset);
    }
    for (const std::uint64_t size : item.box.sizes) {
      out->Varint(size);
    }
  }
  if (hashed) {
    out->U64(item.fingerprint);
  }
  if (item.tied_to) {
    out->Varint(*item.tied_to);
  }
  if (item.part_of) {
    out->Varint(*item.part_of);
  }
}

/// Reads a number of an item or object of the same plan.
std::optional<std::uint32_t> ReadIndex(ByteReader* in, std::uint64_t count) {
  const std::uint64_t index = in->Varint();
  if (index >= count) {
    in->Fail("a tensor is tied to one, or part of a value, that the plan does not have");
    return std::nullopt;
  }
  return static_cast<std::uint32_t>(index);
}

/// Reads an item; `number` is that of the item before, and becomes its own.
PlannedTensor DecodeItem(ByteReader* in, const SpecTable& specs, std::uint64_t items,
                         std::uint64_t objects, std::uint64_t* number) {
  const std::uint8_t flags = in->U8();
  if (flags > kAllFlags) {
    in->Fail("unknown flags of a tensor");
  }
  *number = (flags & kOtherNumber) != 0 ? in->Varint() : *number + 1;
  const SharedSpec* const spec = specs.Find(*number);
  if (in->failed() || spec == nullptr) {
    in->Fail("a shard of a tensor that is not listed");
    return {};
  }
  PlannedTensor item(*spec, {});
  if ((flags & kBox) == 0) {
    item.box = WholeBox(item.shape());
  } else {
    for (Dims* const dims : {&item.box.offsets, &item.box.sizes}) {
      for (std::size_t d = 0; d < item.shape().size(); ++d) {
        dims->push_back(in->Varint());
      }
    }
  }
  item.fingerprint = (flags & kFingerprint) != 0 ? in->U64()
                     : (flags & kNotHashed) != 0 ? kUnhashed
                                                 : 0;
  if ((flags & kTied) != 0) {
    item.tied_to = ReadIndex(in, items);
  }
  if ((flags & kPart) != 0) {
    item.part_of = ReadIndex(in, objects);
  }
  return item;
}

}  // namespace

SpecTable::SpecTable(const LocalPlan& plan) { Add(plan); }

void SpecTable::Add(const LocalPlan& plan) {
  for (const PlannedTensor& item : plan.tensors) {
    if (numbers_.emplace(item.of.get(), static_cast<std::uint32_t>(specs_.size())).second) {
      specs_.push_back(item.of);
    }
  }
}

Bytes SpecTable::Encode() const {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.Varint(specs_.size());
  FieldWriter writer(&bytes);
  for (const SharedSpec& spec : specs_) {
    writer(*spec);
  }
  return bytes;
}

Result<SpecTable> SpecTable::Decode(std::string_view bytes) {
  ByteReader in(bytes);
  FieldReader reader(&in);
  SpecTable table;
  std::vector<TensorSpec> specs;
  reader(specs);
  VARVE_RETURN_IF_ERROR(in.Finish().Annotate("decode the tensors of a plan"));
  // An item of two bytes may have a shape for its box: few dimensions bound the memory of shares.
  if (std::any_of(specs.begin(), specs.end(),
                  [](const TensorSpec& spec) { return spec.shape.size() > kMostDims; })) {
    return DataLoss("decode the tensors of a plan: more than 64 dimensions");
  }
  table.specs_.reserve(specs.size());
  for (TensorSpec& spec : specs) {
    table.specs_.push_back(std::make_shared<const TensorSpec>(std::move(spec)));
    table.numbers_.emplace(table.specs_.back().get(),
                           static_cast<std::uint32_t>(table.specs_.size() - 1));
  }
  return table;
}

Bytes EncodeShares(const LocalPlan& plan, const SpecTable& specs) {
  Bytes bytes;
  FieldWriter writer(&bytes);
  writer(plan.objects);
  ByteWriter out(&bytes);
  out.Varint(plan.tensors.size());
  std::uint32_t next = 0;
  for (const PlannedTensor& item : plan.tensors) {
    const std::uint32_t number = specs.NumberOf(item.of);
    EncodeItem(item, number == next, number, &out);
    next = number + 1;
  }
  return bytes;
}

Result<LocalPlan> DecodeShares(std::string_view bytes, const SpecTable& specs) {
  ByteReader in(bytes);
  FieldReader reader(&in);
  LocalPlan plan;
  reader(plan.objects);
  const std::uint64_t count = in.Count();
  std::uint64_t number = ~std::uint64_t{0};  // The first item is expected to have number 0.
  plan.tensors.reserve(std::min<std::uint64_t>(count, specs.size()));
  for (std::uint64_t i = 0; i < count && !in.failed(); ++i) {
    plan.tensors.push_back(DecodeItem(&in, specs, count, plan.objects.size(), &number));
  }
  VARVE_RETURN_IF_ERROR(in.Finish().Annotate("decode local plan"));
  return plan;
}

}  // namespace varve
