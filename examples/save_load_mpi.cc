// Saves a sharded state from an MPI job and loads it sharded another way.
//
//   mpirun -n 3 save_load_mpi FOLDER      writes FOLDER/step-00000020, on any number of ranks
//
// Each rank holds some rows of a matrix, and all hold the same bias; the bias is stored once. The
// load asks for columns instead. Exits with 1 when anything differs on any rank.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <mpi.h>

#include "varve/checkpoint.h"
#include "varve/mpi.h"

namespace {

constexpr std::uint64_t kRows = 1000;
constexpr std::uint64_t kColumns = 700;
constexpr std::uint64_t kBias = 300'000;

/// Returns element (row, column) of the matrix.
double Element(std::uint64_t row, std::uint64_t column) {
  return static_cast<double>(row * kColumns + column);
}

/// This rank's part of [0, total): the first ranks have one more where it does not come out even.
struct Part {
  std::uint64_t begin = 0;
  std::uint64_t size = 0;
};

Part PartOf(std::uint64_t total, const varve::Coordinator& ranks) {
  const auto rank = static_cast<std::uint64_t>(ranks.rank());
  const auto size = static_cast<std::uint64_t>(ranks.size());
  const std::uint64_t begin = rank * (total / size) + std::min(rank, total % size);
  return {begin, total / size + (rank < total % size ? 1 : 0)};
}

varve::Status SaveRows(const std::string& path, varve::Coordinator& ranks) {
  const Part rows = PartOf(kRows, ranks);
  std::vector<double> shard;
  for (std::uint64_t row = rows.begin; row < rows.begin + rows.size; ++row) {
    for (std::uint64_t column = 0; column < kColumns; ++column) {
      shard.push_back(Element(row, column));
    }
  }
  const std::vector<float> bias(kBias, 0.5F);
  varve::State state;
  state.tensors = {
      {.fqn = "matrix",
       .dtype = varve::DType::kFloat64,
       .shape = {kRows, kColumns},
       .box = {{rows.begin, 0}, {rows.size, kColumns}},
       .source = varve::HostMemory{shard.data()}},
      {.fqn = "bias",
       .dtype = varve::DType::kFloat32,
       .shape = {kBias},
       .box = varve::WholeBox({kBias}),
       .source = varve::HostMemory{bias.data()}},
  };
  state.objects = {{"step", varve::EncodeValue(varve::Value::Int(20))}};
  VARVE_ASSIGN_OR_RETURN(const varve::SaveReport report, varve::Save(state, path, {}, ranks));
  std::printf("rank %d: saved rows %llu to %llu and its part of the bias: %llu bytes\n",
              ranks.rank(), static_cast<unsigned long long>(rows.begin),
              static_cast<unsigned long long>(rows.begin + rows.size),
              static_cast<unsigned long long>(report.bytes_written));
  return varve::Status::Ok();
}

varve::Status LoadColumns(const std::string& path, varve::Coordinator& ranks) {
  const Part columns = PartOf(kColumns, ranks);
  std::vector<double> shard(kRows * columns.size);
  std::vector<float> bias(kBias);
  varve::LoadRequest request;
  request.targets = {
      {.fqn = "matrix",
       .dtype = varve::DType::kFloat64,
       .shape = {kRows, kColumns},
       .box = {{0, columns.begin}, {kRows, columns.size}},
       .data = shard.data()},
      {.fqn = "bias",
       .dtype = varve::DType::kFloat32,
       .shape = {kBias},
       .box = varve::WholeBox({kBias}),
       .data = bias.data()},
  };
  request.objects = {"step"};
  VARVE_ASSIGN_OR_RETURN(const auto reader, varve::CheckpointReader::Open(path));
  VARVE_ASSIGN_OR_RETURN(const varve::LoadReport report, varve::Load(*reader, request, {}, ranks));
  std::printf("rank %d: loaded columns %llu to %llu and the bias: %llu bytes\n", ranks.rank(),
              static_cast<unsigned long long>(columns.begin),
              static_cast<unsigned long long>(columns.begin + columns.size),
              static_cast<unsigned long long>(report.bytes_read));
  for (std::uint64_t row = 0; row < kRows; ++row) {
    for (std::uint64_t column = 0; column < columns.size; ++column) {
      if (shard[row * columns.size + column] != Element(row, columns.begin + column)) {
        return varve::DataLoss("matrix differs in row " + std::to_string(row));
      }
    }
  }
  if (bias != std::vector<float>(kBias, 0.5F)) {
    return varve::DataLoss("bias differs");
  }
  return varve::Status::Ok();
}

varve::Status Run(const std::string& folder) {
  VARVE_ASSIGN_OR_RETURN(const auto ranks, varve::MakeMpiCoordinator(MPI_COMM_WORLD));
  const std::string path = varve::JoinPath(folder, "step-00000020");
  VARVE_RETURN_IF_ERROR(SaveRows(path, *ranks));
  const varve::Status loaded = LoadColumns(path, *ranks);
  // A difference is known to one rank; all of them should exit alike.
  return varve::Agree(*ranks, "compare", loaded,
                      std::chrono::steady_clock::now() + std::chrono::seconds(60));
}

}  // namespace

int main(int argc, char** argv) {
  // Varve's own threads never call MPI, so calls from the main thread are all that is asked for.
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  varve::Status status = varve::InvalidArgument("usage: save_load_mpi FOLDER");
  if (argc == 2) {
    status = Run(argv[1]);
  }
  if (!status.ok()) {
    std::fprintf(stderr, "save_load_mpi: %s\n", status.ToString().c_str());
  }
  MPI_Finalize();
  return status.ok() ? 0 : 1;
}
