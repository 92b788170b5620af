#include "plan/spec_table.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "plan/fields.h"
#include "tensor/box.h"

namespace varve {

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, TensorSpec>& spec) {
  archive(spec.fqn, spec.dtype, spec.shape);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, Families::Link>& link) {
  archive(link.item, link.to);
}

namespace {

constexpr std::size_t kMostDims = 64;  // As in torch and NumPy.

/// The fields of a family's shards that may be missing.
enum Flag : std::uint8_t {
  kBox = 1,           ///< Else the whole tensor.
  kFingerprints = 2,  ///< One for each member.
  kNotHashed = 4,     ///< All are kUnhashed. Without either flag all are 0.
};

}  // namespace

SpecTable::SpecTable(const LocalPlan& plan) {
  for (const PlannedTensor& item : plan.tensors) {
    if (numbers_.emplace(item.of.get(), static_cast<std::uint32_t>(specs_.size())).second) {
      specs_.push_back(item.of);
    }
  }
  FindKinds();
}

void SpecTable::FindKinds() {
  std::map<std::pair<DType, Dims>, std::uint32_t> kinds;
  kinds_.reserve(specs_.size());
  for (const SharedSpec& spec : specs_) {
    const auto next = static_cast<std::uint32_t>(kinds.size());
    kinds_.push_back(kinds.try_emplace({spec->dtype, spec->shape}, next).first->second);
  }
  kind_count_ = kinds.size();
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
  // Items of no bytes may have their shapes for boxes: few dimensions bound the memory of shares.
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
  table.FindKinds();
  return table;
}

/// The families as they are encoded.
struct EncodedFamilies {
  std::uint64_t items = 0;
  std::vector<std::uint32_t> specs;  ///< Empty where item i is of the tensor with number i.
  /// By kind, where its items have several boxes: for each item the place of its box among them,
  /// which are in the order in which items have them.
  std::map<std::uint32_t, std::vector<std::uint32_t>> boxes;
  std::vector<Families::Link> tied;
  std::vector<Families::Link> parts;
};

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, EncodedFamilies>& encoded) {
  archive(encoded.items, encoded.specs, encoded.boxes, encoded.tied, encoded.parts);
}

namespace {

/// Numbers the families in the order of their kinds and, within one, of their boxes. `box_of` has
/// the place of each item's box among those of its kind.
void NumberFamilies(const SpecTable& table, const std::vector<std::uint32_t>& box_of,
                    Families* families) {
  std::vector<std::uint32_t> boxes(table.kinds(), 0);
  for (std::size_t i = 0; i < box_of.size(); ++i) {
    std::uint32_t& count = boxes[table.KindOf(families->specs[i])];
    count = std::max(count, box_of[i] + 1);
  }
  std::uint32_t next = 0;
  for (std::uint32_t& count : boxes) {
    next += std::exchange(count, next);
  }
  families->members.resize(next);
  families->family.reserve(box_of.size());
  for (std::size_t i = 0; i < box_of.size(); ++i) {
    families->family.push_back(boxes[table.KindOf(families->specs[i])] + box_of[i]);
    families->members[families->family.back()].push_back(static_cast<std::uint32_t>(i));
  }
}

Families FamiliesOf(const LocalPlan& plan, const SpecTable& table, Bytes* bytes) {
  Families families;
  EncodedFamilies encoded;
  encoded.items = plan.tensors.size();
  std::vector<std::map<std::pair<Dims, Dims>, std::uint32_t>> boxes(table.kinds());
  std::vector<std::uint32_t> box_of;
  bool in_order = plan.tensors.size() == table.size();
  for (std::uint32_t i = 0; i < plan.tensors.size(); ++i) {
    const PlannedTensor& item = plan.tensors[i];
    const std::uint32_t number = table.NumberOf(item.of);
    in_order = in_order && number == i;
    families.specs.push_back(number);
    auto& known = boxes[table.KindOf(number)];
    const auto next = static_cast<std::uint32_t>(known.size());
    box_of.push_back(known.try_emplace({item.box.offsets, item.box.sizes}, next).first->second);
    if (item.tied_to) {
      families.tied.push_back({i, *item.tied_to});
    }
    if (item.part_of) {
      families.parts.push_back({i, *item.part_of});
    }
  }
  for (std::size_t i = 0; i < box_of.size(); ++i) {
    const std::uint32_t kind = table.KindOf(families.specs[i]);
    if (boxes[kind].size() > 1) {
      encoded.boxes[kind].push_back(box_of[i]);
    }
  }
  if (!in_order) {
    encoded.specs = families.specs;
  }
  encoded.tied = families.tied;
  encoded.parts = families.parts;
  *bytes = EncodeFields(encoded);
  NumberFamilies(table, box_of, &families);
  return families;
}

bool AreItems(const std::vector<Families::Link>& links, std::size_t items) {
  return std::all_of(links.begin(), links.end(),
                     [&](const Families::Link& link) { return link.item < items; });
}

}  // namespace

Result<Families> Families::Decode(std::string_view bytes, const SpecTable& table) {
  const auto malformed = [](const char* why) {
    return DataLoss(std::string("decode which shards of a plan are alike: ") + why);
  };
  VARVE_ASSIGN_OR_RETURN(EncodedFamilies encoded, DecodeFields<EncodedFamilies>(bytes));
  Families families;
  if (encoded.specs.empty() && encoded.items > 0) {
    for (std::uint32_t i = 0; i < std::min<std::uint64_t>(encoded.items, table.size()); ++i) {
      encoded.specs.push_back(i);
    }
  }
  if (encoded.items != encoded.specs.size() ||
      std::any_of(encoded.specs.begin(), encoded.specs.end(),
                  [&](std::uint32_t number) { return number >= table.size(); })) {
    return malformed("a shard of a tensor that is not listed");
  }
  families.specs = std::move(encoded.specs);
  std::vector<std::size_t> seen(table.kinds(), 0);     // Items of a kind.
  std::vector<std::uint32_t> boxes(table.kinds(), 0);  // Boxes of a kind.
  std::vector<std::uint32_t> box_of;
  box_of.reserve(families.specs.size());
  for (const std::uint32_t number : families.specs) {
    const std::uint32_t kind = table.KindOf(number);
    const auto places = encoded.boxes.find(kind);
    const std::size_t at = seen[kind]++;
    std::uint32_t place = 0;
    if (places != encoded.boxes.end()) {
      place = at < places->second.size() ? places->second[at] : ~0U;
    }
    if (place > boxes[kind]) {
      return malformed("a box of no shard");
    }
    boxes[kind] = std::max(boxes[kind], place + 1);
    box_of.push_back(place);
  }
  for (const auto& [kind, places] : encoded.boxes) {
    if (kind >= seen.size() || places.size() != seen[kind]) {
      return malformed("boxes of other shards than there are");
    }
  }
  families.tied = std::move(encoded.tied);
  families.parts = std::move(encoded.parts);
  const std::size_t items = families.specs.size();
  if (!AreItems(families.tied, items) || !AreItems(families.parts, items) ||
      std::any_of(families.tied.begin(), families.tied.end(),
                  [&](const Link& link) { return link.to >= items; })) {
    return malformed("a tensor is tied to one that the plan does not have");
  }
  NumberFamilies(table, box_of, &families);
  return families;
}

namespace {

/// Returns the fingerprint of each of a family's items.
std::vector<std::uint64_t> FingerprintsOf(const LocalPlan& plan,
                                          const std::vector<std::uint32_t>& members) {
  std::vector<std::uint64_t> prints;
  prints.reserve(members.size());
  for (const std::uint32_t item : members) {
    prints.push_back(plan.tensors[item].fingerprint);
  }
  return prints;
}

void EncodeFamilyShards(const PlannedTensor& first, const std::vector<std::uint64_t>& prints,
                        ByteWriter* out) {
  const auto all_are = [&](std::uint64_t wanted) {
    return std::all_of(prints.begin(), prints.end(),
                       [&](std::uint64_t print) { return print == wanted; });
  };
  const bool whole = first.box == WholeBox(first.shape());
  const bool unhashed = all_are(kUnhashed);
  const bool listed = !unhashed && !all_are(0);
  out->U8(static_cast<std::uint8_t>((whole ? 0 : kBox) | (listed ? kFingerprints : 0) |
                                    (unhashed ? kNotHashed : 0)));
  if (!whole) {
    for (const Dims* const dims : {&first.box.offsets, &first.box.sizes}) {
      for (const std::uint64_t number : *dims) {
        out->Varint(number);
      }
    }
  }
  if (listed) {
    for (const std::uint64_t print : prints) {
      out->U64(print);
    }
  }
}

}  // namespace

Bytes EncodeShares(const LocalPlan& plan, const SpecTable& specs) {
  Bytes encoded;
  const Families families = FamiliesOf(plan, specs, &encoded);
  Bytes bytes;
  FieldWriter writer(&bytes);
  writer(plan.objects, encoded);
  ByteWriter out(&bytes);
  for (const std::vector<std::uint32_t>& members : families.members) {
    EncodeFamilyShards(plan.tensors[members[0]], FingerprintsOf(plan, members), &out);
  }
  return bytes;
}

Result<SharesParts> SplitShares(std::string_view bytes) {
  ByteReader in(bytes);
  FieldReader reader(&in);
  SharesParts parts;
  reader(parts.objects, parts.families);
  parts.shards = in.Raw(in.remaining());
  VARVE_RETURN_IF_ERROR(in.Finish().Annotate("decode local plan"));
  return parts;
}

Result<std::vector<FamilyShards>> DecodeFamilyShards(const SharesParts& parts,
                                                     const Families& families,
                                                     const SpecTable& specs) {
  if (std::any_of(families.parts.begin(), families.parts.end(),
                  [&](const Families::Link& link) { return link.to >= parts.objects.size(); })) {
    return DataLoss("decode local plan: a tensor is part of a value that the plan does not have");
  }
  ByteReader in(parts.shards);
  std::vector<FamilyShards> decoded;
  decoded.reserve(families.members.size());
  for (const std::vector<std::uint32_t>& members : families.members) {
    const Dims& shape = specs[families.specs[members[0]]]->shape;
    const std::uint8_t flags = in.U8();
    FamilyShards family;
    if ((flags & kBox) == 0) {
      family.box = WholeBox(shape);
    } else {
      for (Dims* const dims : {&family.box.offsets, &family.box.sizes}) {
        for (std::size_t d = 0; d < shape.size(); ++d) {
          dims->push_back(in.Varint());
        }
      }
    }
    if ((flags & kFingerprints) == 0) {
      family.fingerprints = {(flags & kNotHashed) != 0 ? kUnhashed : 0};
    } else {
      for (std::size_t i = 0; i < members.size() && !in.failed(); ++i) {
        family.fingerprints.push_back(in.U64());
      }
    }
    if (flags > (kBox | kFingerprints | kNotHashed) ||
        (flags & (kFingerprints | kNotHashed)) == (kFingerprints | kNotHashed)) {
      in.Fail("unknown flags of a shard");
    }
    if (in.failed()) {
      break;
    }
    if (!CheckBox(shape, family.box, ItemSize(specs[families.specs[members[0]]]->dtype)).ok()) {
      in.Fail("a shard that reaches outside of its tensor");
      break;
    }
    decoded.push_back(std::move(family));
  }
  VARVE_RETURN_IF_ERROR(in.Finish().Annotate("decode local plan"));
  return decoded;
}

Result<LocalPlan> DecodeShares(std::string_view bytes, const SpecTable& specs) {
  VARVE_ASSIGN_OR_RETURN(SharesParts parts, SplitShares(bytes));
  VARVE_ASSIGN_OR_RETURN(const Families families, Families::Decode(parts.families, specs));
  VARVE_ASSIGN_OR_RETURN(const auto shards, DecodeFamilyShards(parts, families, specs));
  LocalPlan plan;
  plan.objects = std::move(parts.objects);
  plan.tensors.reserve(families.specs.size());
  for (std::size_t i = 0; i < families.specs.size(); ++i) {
    plan.tensors.emplace_back(specs[families.specs[i]], shards[families.family[i]].box);
  }
  for (std::size_t family = 0; family < shards.size(); ++family) {
    const std::vector<std::uint32_t>& members = families.members[family];
    for (std::size_t i = 0; i < members.size(); ++i) {
      plan.tensors[members[i]].fingerprint = shards[family].FingerprintOf(i);
    }
  }
  for (const Families::Link& link : families.tied) {
    plan.tensors[link.item].tied_to = link.to;
  }
  for (const Families::Link& link : families.parts) {
    plan.tensors[link.item].part_of = link.to;
  }
  return plan;
}

}  // namespace varve
