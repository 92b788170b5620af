// Both checkpoints are streamed tensor by tensor; equal bytes need only a comparison of memory, and
// only tensors that differ are compared number by number.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "base/stop.h"
#include "load/tensor_stream.h"
#include "tensor/box.h"
#include "tensor/cast.h"
#include "varve/convert.h"
#include "varve/storage.h"

namespace varve {
namespace {

// Bytes held of each side. Elements are compared in steps that both sides have whole.
constexpr std::uint64_t kStreamBytes = std::uint64_t{256} << 20;
constexpr std::uint64_t kStepElements = std::uint64_t{256} << 10;

std::string Describe(const TensorMetadata& tensor) {
  return std::string(DTypeName(tensor.dtype)) + ToString(tensor.shape);
}

bool IsInteger(DType dtype) {
  switch (dtype) {
    case DType::kUInt8:
    case DType::kInt8:
    case DType::kUInt16:
    case DType::kInt16:
    case DType::kUInt32:
    case DType::kInt32:
    case DType::kUInt64:
    case DType::kInt64: return true;
    default: return false;
  }
}

/// Folds one pair of numbers into a difference; returns true when they differ.
bool Compare(double a, double b, Difference* difference) {
  if (a == b || (std::isnan(a) && std::isnan(b))) {
    return false;
  }
  const double infinity = std::numeric_limits<double>::infinity();
  const bool finite = std::isfinite(a) && std::isfinite(b);
  const double error = finite ? std::fabs(a - b) : infinity;
  const double scale = std::max(std::fabs(a), std::fabs(b));
  difference->max_abs_error = std::max(difference->max_abs_error, error);
  difference->max_rel_error =
      std::max(difference->max_rel_error, finite ? error / scale : infinity);
  return true;
}

class Differ {
 public:
  Differ(CheckpointReader& a, CheckpointReader& b, const ProgressFunction& progress,
         const std::stop_token& stop)
      : a_(a), b_(b), progress_(progress), stop_(stop) {}

  Result<DiffReport> Run() {
    VARVE_RETURN_IF_ERROR(Objects());
    VARVE_RETURN_IF_ERROR(CheckStop(stop_));
    Pair();
    VARVE_RETURN_IF_ERROR(Tensors());
    std::sort(report_.differences.begin(), report_.differences.end(),
              [](const Difference& x, const Difference& y) { return x.fqn < y.fqn; });
    return std::move(report_);
  }

 private:
  using Kind = Difference::Kind;

  void Add(const std::string& fqn, Kind kind, std::string detail) {
    report_.differences.push_back({.fqn = fqn, .kind = kind, .detail = std::move(detail)});
  }

  /// Sorts the names of both sides into those to compare and those that differ by themselves.
  void Pair() {
    const Metadata& a = a_.metadata();
    const Metadata& b = b_.metadata();
    for (const TensorMetadata& tensor : a.tensors) {
      const TensorMetadata* other = b.FindTensor(tensor.fqn);
      if (other == nullptr) {
        if (b.FindObject(tensor.fqn) == nullptr) {
          Add(tensor.fqn, Kind::kOnlyInA, Describe(tensor));
        } else {
          Add(tensor.fqn, Kind::kShape, Describe(tensor) + " and a plain value");
        }
      } else if (other->shape != tensor.shape) {
        Add(tensor.fqn, Kind::kShape, Describe(tensor) + " and " + Describe(*other));
      } else {
        pairs_.emplace_back(&tensor, other);
      }
    }
    for (const TensorMetadata& tensor : b.tensors) {
      if (a.FindTensor(tensor.fqn) == nullptr && a.FindObject(tensor.fqn) == nullptr) {
        Add(tensor.fqn, Kind::kOnlyInB, Describe(tensor));
      }
    }
  }

  Status Objects() {
    VARVE_ASSIGN_OR_RETURN(const auto a, Values(a_, stop_));
    VARVE_ASSIGN_OR_RETURN(const auto b, Values(b_, stop_));
    for (const auto& [fqn, value] : a) {
      const auto other = b.find(fqn);
      if (other != b.end()) {
        if (value == other->second) {
          ++report_.equal_objects;
        } else {
          Add(fqn, Kind::kValues, ToString(value) + " and " + ToString(other->second));
        }
      } else if (const TensorMetadata* tensor = b_.metadata().FindTensor(fqn)) {
        Add(fqn, Kind::kShape, "a plain value and " + Describe(*tensor));
      } else {
        Add(fqn, Kind::kOnlyInA, ToString(value));
      }
    }
    for (const auto& [fqn, value] : b) {
      if (!a.contains(fqn) && a_.metadata().FindTensor(fqn) == nullptr) {
        Add(fqn, Kind::kOnlyInB, ToString(value));
      }
    }
    return Status::Ok();
  }

  static Result<std::map<std::string, Value>> Values(CheckpointReader& reader,
                                                     const std::stop_token& stop) {
    std::vector<std::string> names;
    for (const ObjectMetadata& object : reader.metadata().objects) {
      names.push_back(object.fqn);
    }
    VARVE_ASSIGN_OR_RETURN(auto values, reader.ReadObjects(names, stop));
    std::map<std::string, Value> by_name;
    for (std::size_t i = 0; i < names.size(); ++i) {
      by_name.emplace(names[i], std::move(values[i]));
    }
    return by_name;
  }

  Status Tensors() {
    std::vector<StreamItem> items_a;
    std::vector<StreamItem> items_b;
    for (const auto& [a, b] : pairs_) {
      items_a.push_back({a, a->dtype});
      items_b.push_back({b, b->dtype});
      total_ += items_a.back().bytes();
    }
    TensorStream stream_a(a_, std::move(items_a), kStreamBytes, stop_);
    TensorStream stream_b(b_, std::move(items_b), kStreamBytes, stop_);
    for (std::size_t i = 0; i < pairs_.size(); ++i) {
      VARVE_RETURN_IF_ERROR(Tensor(i, &stream_a, &stream_b));
    }
    return Status::Ok();
  }

  Status Tensor(std::size_t i, TensorStream* stream_a, TensorStream* stream_b) {
    const TensorMetadata& a = *pairs_[i].first;
    const TensorMetadata& b = *pairs_[i].second;
    Difference difference{.fqn = a.fqn, .elements = Volume(a.shape)};
    std::vector<std::byte> bytes_a;
    std::vector<std::byte> bytes_b;
    bool same = a.dtype == b.dtype;
    for (std::uint64_t at = 0; at < difference.elements; at += kStepElements) {
      const std::uint64_t count = std::min(kStepElements, difference.elements - at);
      VARVE_RETURN_IF_ERROR(CheckStop(stop_));
      bytes_a.resize(count * ItemSize(a.dtype));
      bytes_b.resize(count * ItemSize(b.dtype));
      VARVE_RETURN_IF_ERROR(stream_a->Read(i, at * ItemSize(a.dtype), bytes_a));
      VARVE_RETURN_IF_ERROR(stream_b->Read(i, at * ItemSize(b.dtype), bytes_b));
      done_ += bytes_a.size();
      if (progress_) {
        progress_(done_, total_);
      }
      if (a.dtype == b.dtype && bytes_a == bytes_b) {
        continue;
      }
      same = false;
      CompareNumbers(a.dtype, bytes_a, b.dtype, bytes_b, &difference);
    }
    if (same || (a.dtype == b.dtype && difference.differing == 0)) {  // Or only NaNs and zeros do.
      ++report_.equal_tensors;
      return Status::Ok();
    }
    difference.kind = a.dtype == b.dtype ? Kind::kValues : Kind::kDType;
    difference.detail = a.dtype == b.dtype ? Describe(a) : Describe(a) + " and " + Describe(b);
    report_.differences.push_back(std::move(difference));
    return Status::Ok();
  }

  static void CompareNumbers(DType dtype_a, const std::vector<std::byte>& a, DType dtype_b,
                             const std::vector<std::byte>& b, Difference* difference) {
    const std::size_t parts = DoublesPerElement(dtype_a);
    if (parts !=
        DoublesPerElement(dtype_b)) {  // A complex against a real tensor: no common measure.
      difference->differing += a.size() / ItemSize(dtype_a);
      difference->max_abs_error = std::numeric_limits<double>::infinity();
      difference->max_rel_error = std::numeric_limits<double>::infinity();
      return;
    }
    std::vector<double> numbers_a(a.size() / ItemSize(dtype_a) * parts);
    std::vector<double> numbers_b(numbers_a.size());
    const bool integers = dtype_a == dtype_b && IsInteger(dtype_a);
    ToDoubles(dtype_a, a, numbers_a);
    ToDoubles(dtype_b, b, numbers_b);
    for (std::size_t i = 0; i < numbers_a.size(); i += parts) {
      bool differs = false;
      for (std::size_t part = i; part < i + parts; ++part) {
        differs = Compare(numbers_a[part], numbers_b[part], difference) || differs;
      }
      if (integers) {  // Those beyond 2^53 look alike as doubles.
        const std::size_t size = ItemSize(dtype_a);
        differs = differs || std::memcmp(a.data() + i * size, b.data() + i * size, size) != 0;
      }
      difference->differing += differs ? 1 : 0;
    }
  }

  CheckpointReader& a_;
  CheckpointReader& b_;
  const ProgressFunction& progress_;
  const std::stop_token& stop_;
  std::vector<std::pair<const TensorMetadata*, const TensorMetadata*>> pairs_;
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
  DiffReport report_;
};

}  // namespace

Result<DiffReport> Diff(const std::string& path_a, const std::string& path_b, Storage& storage,
                        const ProgressFunction& progress, const std::stop_token& stop) {
  VARVE_ASSIGN_OR_RETURN(const std::string a, ResolvePath(path_a, storage));
  VARVE_ASSIGN_OR_RETURN(const std::string b, ResolvePath(path_b, storage));
  VARVE_ASSIGN_OR_RETURN(const auto reader_a, CheckpointReader::Open(a, storage, stop));
  VARVE_ASSIGN_OR_RETURN(const auto reader_b, CheckpointReader::Open(b, storage, stop));
  auto report = Differ(*reader_a, *reader_b, progress, stop).Run();
  if (!report.ok() && stop.stop_requested()) {
    report = CheckStop(stop);  // The cause of any error of the reads.
  }
  return std::move(report).Annotate("diff " + a + " " + b);
}

}  // namespace varve
