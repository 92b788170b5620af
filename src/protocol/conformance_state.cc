#include "protocol/conformance_state.h"

#include "protocol/strided.h"
#include "tensor/box.h"

namespace varve::protocol {
namespace {

constexpr char kUntouched = '\x5A';

char PatternByte(std::uint64_t element, std::uint64_t byte, std::uint8_t salt) {
  return static_cast<char>((element * 31 + byte * 7 + std::uint64_t{salt} * 101 + 3) & 0xFF);
}

/// Returns the sizes of the memory around a box.
Dims WithMargin(const Dims& sizes, std::uint64_t margin) {
  Dims padded = sizes;
  for (std::uint64_t& size : padded) {
    size += 2 * margin;
  }
  return padded;
}

/// Returns the content of a box of a tensor, row-major. Every byte depends on where its element
/// lies in the whole tensor, on where it lies in the element and on `salt`.
std::string PatternOf(const SampleTensor& spec, std::uint8_t salt) {
  std::string bytes;
  ForEachElement(spec.box.sizes, [&](const Dims& position) {
    std::uint64_t element = 0;
    for (std::size_t d = 0; d < position.size(); ++d) {
      element = element * spec.shape[d] + spec.box.offsets[d] + position[d];
    }
    for (std::uint64_t byte = 0; byte < ItemSize(spec.dtype); ++byte) {
      bytes.push_back(PatternByte(element, byte, salt));
    }
  });
  return bytes;
}

}  // namespace

void Holding::Add(const SampleTensor& spec) {
  SourceTensor tensor;
  tensor.fqn = spec.fqn;
  tensor.dtype = spec.dtype;
  tensor.shape = spec.shape;
  tensor.box = spec.box;
  tensor.source = HostMemory{memory_.emplace_back(PatternOf(spec, salt_)).data()};
  state_.tensors.push_back(std::move(tensor));
}

void Holding::Add(const std::string& fqn, const Value& value) {
  state_.objects.push_back({fqn, EncodeValue(value)});
}

void Wanting::Add(const SampleTensor& spec) {
  const Dims padded = WithMargin(spec.box.sizes, margin_);
  std::string& memory = memory_.emplace_back(Volume(padded) * ItemSize(spec.dtype), kUntouched);
  TargetTensor target;
  target.fqn = spec.fqn;
  target.dtype = spec.dtype;
  target.shape = spec.shape;
  target.box = spec.box;
  target.strides = RowMajorStrides(padded);
  const Dims first(padded.size(), margin_);
  target.data = memory.data() + ByteOffset(WholeBox(padded), target.strides, first, spec.dtype);
  state_.tensors.push_back(std::move(target));
  tensors_.push_back(spec);
}

void Wanting::Add(const std::string& fqn, const Value& value) {
  state_.objects.push_back({fqn, {}});
  values_.push_back(EncodeValue(value));
}

/// Returns the pattern with its untouched margin.
std::string Wanting::Expected(const SampleTensor& spec) const {
  const std::uint64_t item_size = ItemSize(spec.dtype);
  const std::string inner = PatternOf(spec, salt_);
  const Box box{Dims(spec.box.sizes.size(), margin_), spec.box.sizes};
  std::string bytes;
  std::uint64_t next = 0;
  ForEachElement(WithMargin(spec.box.sizes, margin_), [&](const Dims& position) {
    if (Contains(box, {position, Dims(position.size(), 1)})) {
      bytes += inner.substr(next, item_size);
      next += item_size;
    } else {
      bytes.append(item_size, kUntouched);
    }
  });
  return bytes;
}

Status Wanting::Check() const {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (memory_[i] != Expected(tensors_[i])) {
      return DataLoss("tensor \"" + tensors_[i].fqn + "\" " + varve::ToString(tensors_[i].box) +
                      " or the memory around it is not what it should be");
    }
  }
  for (std::size_t i = 0; i < values_.size(); ++i) {
    if (state_.objects[i].encoded != values_[i]) {
      return DataLoss("value \"" + state_.objects[i].fqn + "\" is not what was saved");
    }
  }
  return Status::Ok();
}

}  // namespace varve::protocol
