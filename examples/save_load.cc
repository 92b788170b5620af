// Saves a small training state from C++ and loads it into another layout.
//
//   save_load FOLDER      writes FOLDER/step-00000010
//
// The weight is held as two blocks of rows, as two devices might; it is loaded as two blocks of
// columns, one of them into the middle of a larger array. Exits with 1 when anything differs.

#include <array>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "varve/catalogue.h"
#include "varve/checkpoint.h"

namespace {

constexpr std::uint64_t kRows = 6;
constexpr std::uint64_t kColumns = 8;

/// Returns element (row, column) of the weight.
float Weight(std::uint64_t row, std::uint64_t column) {
  return static_cast<float>(row) + static_cast<float>(column) / 100;
}

/// The caller keeps the memory of all tensors until Save returns.
struct Model {
  std::vector<float> upper;  // Rows [0, 2) of the weight.
  std::vector<float> lower;  // Rows [2, 6).
  std::array<std::int64_t, 3> tokens = {7, -1, std::int64_t{1} << 40};
};

Model MakeModel() {
  Model model;
  for (std::uint64_t row = 0; row < kRows; ++row) {
    for (std::uint64_t column = 0; column < kColumns; ++column) {
      (row < 2 ? model.upper : model.lower).push_back(Weight(row, column));
    }
  }
  return model;
}

varve::Status SaveModel(const Model& model, const std::string& path) {
  const varve::Dims shape = {kRows, kColumns};
  varve::State state;
  state.tensors = {
      {.fqn = "layer.weight",
       .dtype = varve::DType::kFloat32,
       .shape = shape,
       .box = {{0, 0}, {2, kColumns}},
       .source = varve::HostMemory{model.upper.data()}},
      {.fqn = "layer.weight",
       .dtype = varve::DType::kFloat32,
       .shape = shape,
       .box = {{2, 0}, {4, kColumns}},
       .source = varve::HostMemory{model.lower.data()}},
      {.fqn = "tokens",
       .dtype = varve::DType::kInt64,
       .shape = {3},
       .box = varve::WholeBox({3}),
       .source = varve::HostMemory{model.tokens.data()}},
  };
  state.objects = {
      {"step", varve::EncodeValue(varve::Value::Int(10))},
      {"optimizer.lr", varve::EncodeValue(varve::Value::Float(3e-4))},
      {"note", varve::EncodeValue(varve::Value::Str("saved from C++"))},
  };
  VARVE_ASSIGN_OR_RETURN(const varve::SaveReport report, varve::Save(state, path));
  std::printf("saved %s: %llu bytes in %.3f s\n", path.c_str(),
              static_cast<unsigned long long>(report.bytes_written), report.seconds);
  return varve::Status::Ok();
}

/// Loads the left half of the weight's columns into an array of its own, the right half into rows
/// that are 10 elements apart, and the tokens. Returns how many elements differ.
varve::Result<int> LoadModel(const std::string& path) {
  constexpr std::uint64_t kHalf = kColumns / 2;
  constexpr std::int64_t kPitch = 10;
  std::vector<float> left(kRows * kHalf);
  std::vector<float> right(kRows * kPitch, -1);
  std::array<std::int64_t, 3> tokens{};

  const varve::Dims shape = {kRows, kColumns};
  varve::LoadRequest request;
  request.targets = {
      {.fqn = "layer.weight",
       .dtype = varve::DType::kFloat32,
       .shape = shape,
       .box = {{0, 0}, {kRows, kHalf}},
       .data = left.data()},
      {.fqn = "layer.weight",
       .dtype = varve::DType::kFloat32,
       .shape = shape,
       .box = {{0, kHalf}, {kRows, kHalf}},
       .data = right.data(),
       .strides = {kPitch, 1}},
      {.fqn = "tokens",
       .dtype = varve::DType::kInt64,
       .shape = {3},
       .box = varve::WholeBox({3}),
       .data = tokens.data()},
  };
  request.objects = {"step", "optimizer.lr", "note"};
  VARVE_ASSIGN_OR_RETURN(const auto reader, varve::CheckpointReader::Open(path));
  VARVE_ASSIGN_OR_RETURN(const varve::LoadReport report, varve::Load(*reader, request));
  std::printf("loaded another layout: %llu bytes read and checked\n",
              static_cast<unsigned long long>(report.bytes_read));

  int differences = 0;
  for (std::uint64_t row = 0; row < kRows; ++row) {
    for (std::uint64_t column = 0; column < static_cast<std::uint64_t>(kPitch); ++column) {
      const float got = right[row * static_cast<std::uint64_t>(kPitch) + column];
      // Beyond the box nothing may have been touched.
      differences += got != (column < kHalf ? Weight(row, kHalf + column) : -1) ? 1 : 0;
    }
    for (std::uint64_t column = 0; column < kHalf; ++column) {
      differences += left[row * kHalf + column] != Weight(row, column) ? 1 : 0;
    }
  }
  differences += tokens != Model().tokens ? 1 : 0;

  VARVE_ASSIGN_OR_RETURN(const auto values, reader->ReadObjects(request.objects));
  const std::vector<varve::Value> expected = {varve::Value::Int(10), varve::Value::Float(3e-4),
                                              varve::Value::Str("saved from C++")};
  differences += values != expected ? 1 : 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::printf("  %s = %s\n", request.objects[i].c_str(), varve::ToString(values[i]).c_str());
  }
  return differences;
}

/// Lists the folder and re-reads every byte of the checkpoint.
varve::Status LookAround(const std::string& folder, const std::string& path) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, varve::ListCheckpoints(folder));
  for (const varve::CheckpointEntry& entry : entries) {
    const std::string state(varve::StateName(entry.state));
    std::printf("listed %s: %s\n", entry.name.c_str(), state.c_str());
  }
  VARVE_ASSIGN_OR_RETURN(const varve::VerifyReport report, varve::Verify(path));
  std::printf("verified %llu bytes: %s\n", static_cast<unsigned long long>(report.bytes_checked),
              report.clean() ? "clean" : "damaged");
  return report.clean() ? varve::Status::Ok() : varve::DataLoss(path + " is damaged");
}

varve::Status Run(const std::string& folder) {
  const std::string path = varve::JoinPath(folder, "step-00000010");
  const Model model = MakeModel();
  VARVE_RETURN_IF_ERROR(SaveModel(model, path));
  VARVE_ASSIGN_OR_RETURN(const int differences, LoadModel(path));
  if (differences != 0) {
    return varve::DataLoss(std::to_string(differences) + " values differ from what was saved");
  }
  return LookAround(folder, path);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: save_load FOLDER\n");
    return 2;
  }
  const varve::Status status = Run(argv[1]);
  if (!status.ok()) {
    std::fprintf(stderr, "save_load: %s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
