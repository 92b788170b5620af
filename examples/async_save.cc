// Trains (in effect), saving every few steps in the background, and loads the newest checkpoint.
//
//   async_save FOLDER     writes FOLDER/step-00000010 and so on
//
// Exits with 1 when a checkpoint does not hold the weights at the call of its save.

#include "varve/async_save.h"

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "varve/checkpoint.h"

namespace {

constexpr std::uint64_t kElements = 1'000'000;
constexpr int kSteps = 30;
constexpr int kSaveEvery = 10;

/// Returns a state that refers to the weights; the caller keeps their memory.
varve::State StateOf(const std::vector<float>& weights) {
  varve::State state;
  state.tensors = {{.fqn = "weights",
                    .dtype = varve::DType::kFloat32,
                    .shape = {kElements},
                    .box = varve::WholeBox({kElements}),
                    .source = varve::HostMemory{weights.data()}}};
  return state;
}

std::string PathOf(const std::string& folder, int step) {
  std::string digits = std::to_string(step);
  return folder + "/step-" + std::string(8 - digits.size(), '0') + digits;
}

varve::Status CheckStep(const std::string& path, float expected) {
  VARVE_ASSIGN_OR_RETURN(const auto reader, varve::CheckpointReader::Open(path));
  std::vector<float> weights(kElements);
  varve::LoadRequest request;
  request.targets = {{.fqn = "weights",
                      .dtype = varve::DType::kFloat32,
                      .shape = {kElements},
                      .box = varve::WholeBox({kElements}),
                      .data = weights.data()}};
  VARVE_RETURN_IF_ERROR(varve::Load(*reader, request).status());
  for (const float weight : weights) {
    if (weight != expected) {
      return varve::DataLoss(path + " holds weights of another step");
    }
  }
  return varve::Status::Ok();
}

varve::Status Run(const std::string& folder) {
  // One stager for all saves: its memory is taken from the system once, ahead of the first.
  VARVE_ASSIGN_OR_RETURN(const auto stager,
                         varve::Stager::Make({.budget_bytes = std::uint64_t{64} << 20}));
  stager->Prepare(kElements * sizeof(float));

  std::vector<float> weights(kElements, 0.0F);
  std::vector<varve::AsyncSaveHandle> saves;
  for (int step = 1; step <= kSteps; ++step) {
    if (!saves.empty()) {
      // An overlapped save copies while a step computes; weights change when it has.
      VARVE_RETURN_IF_ERROR(saves.back().staged().get());
    }
    for (float& weight : weights) {
      weight = static_cast<float>(step);
    }
    if (step % kSaveEvery == 0) {
      varve::AsyncSaveOptions options;
      options.overlapped = true;
      saves.push_back(varve::AsyncSave(StateOf(weights), PathOf(folder, step), options, *stager));
    }
  }
  for (const varve::AsyncSaveHandle& save : saves) {
    VARVE_RETURN_IF_ERROR(save.done().get().status());
  }
  for (int step = kSaveEvery; step <= kSteps; step += kSaveEvery) {
    VARVE_RETURN_IF_ERROR(CheckStep(PathOf(folder, step), static_cast<float>(step)));
  }
  return varve::Status::Ok();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  const varve::Status status = Run(argv[1]);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  std::printf("%d steps, %d checkpoints, each of its own step\n", kSteps, kSteps / kSaveEvery);
  return 0;
}
