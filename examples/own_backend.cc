// A storage backend of one's own, tried by the library's conformance suite and then used.
//
//   own_backend FOLDER      keeps its checkpoints in FOLDER
//
// A checkpoint NAME is a file of that name with the metadata in it, and a file for each rank with
// the content. The file NAME is written last and put into place by a rename, so a checkpoint is
// there as a whole or not at all. To stay short it syncs nothing: after a power cut it may be lost.
// Exits with 1 when a claim of the suite is not met.

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "varve/protocol/checkpoint.h"
#include "varve/protocol/storage_layer.h"

namespace {

namespace fs = std::filesystem;
namespace vp = varve::protocol;

varve::Status WriteFile(const fs::path& path, std::string_view content) {
  std::ofstream file(path, std::ios::binary);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  return file.good() ? varve::Status::Ok() : varve::Unavailable(path.string() + ": cannot write");
}

varve::Result<std::string> ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return varve::NotFound(path.string() + " is not there");
  }
  return std::string(std::istreambuf_iterator<char>(file), {});
}

/// The place of an item's content.
struct Place {
  std::string file;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};

/// Returns the places of all items, from the results that Finish has put into the metadata.
varve::Result<std::map<vp::MetadataIndex, Place>> PlacesOf(const vp::StateMetadata& metadata) {
  VARVE_ASSIGN_OR_RETURN(const auto results, vp::DecodeWriteResults(metadata.storage_data));
  std::map<vp::MetadataIndex, Place> places;
  for (const vp::WriteResult& result : results) {
    const std::size_t space = result.storage_data.find(' ');
    if (space == std::string::npos) {
      return varve::DataLoss("the index is damaged");
    }
    places[result.index] = {result.storage_data.substr(space + 1),
                            std::strtoull(result.storage_data.c_str(), nullptr, 10),
                            result.size_in_bytes};
  }
  return places;
}

class FolderWriter : public vp::StorageWriter {
 public:
  explicit FolderWriter(fs::path folder) : folder_(std::move(folder)) {}

  varve::Status Reset(std::optional<std::string_view> checkpoint_id) override {
    Abandon();
    name_ = checkpoint_id.value_or(name_);
    return varve::Status::Ok();
  }

  varve::Status SetUpStorageWriter(const vp::SaveRole& role) override {
    Abandon();
    if (!role.use_collectives) {
      return varve::Unimplemented("this backend needs a coordinator: one index names all files");
    }
    return varve::Status::Ok();
  }

  /// Gives each rank the name of its file. The number keeps this save apart from earlier ones.
  varve::Result<std::vector<vp::SavePlan>> PrepareGlobalPlan(
      std::vector<vp::SavePlan> plans) override {
    static std::atomic<int> number{0};
    const std::string prefix = name_ + ".save-" + std::to_string(++number) + ".rank-";
    for (std::size_t rank = 0; rank < plans.size(); ++rank) {
      plans[rank].storage_data = prefix + std::to_string(rank);
    }
    return plans;
  }

  varve::Result<std::vector<vp::WriteResult>> WriteData(const vp::SavePlan& plan,
                                                        vp::SavePlanner& planner) override {
    std::string content;
    std::vector<vp::WriteResult> results;
    for (const vp::WriteItem& item : plan.items) {
      VARVE_ASSIGN_OR_RETURN(const vp::ItemData data, planner.ResolveData(item));
      const std::string bytes = vp::ContentOf(item, data);
      results.push_back(
          {item.index, bytes.size(), std::to_string(content.size()) + " " + plan.storage_data});
      content += bytes;
    }
    written_ = plan.storage_data;
    VARVE_RETURN_IF_ERROR(WriteFile(folder_ / *written_, content));
    return results;
  }

  varve::Status Finish(const vp::StateMetadata& metadata,
                       const std::vector<std::vector<vp::WriteResult>>& results) override {
    std::vector<vp::WriteResult> all;
    for (const auto& of_rank : results) {
      all.insert(all.end(), of_rank.begin(), of_rank.end());
    }
    vp::StateMetadata stored = metadata;
    stored.storage_data = vp::EncodeWriteResults(all);
    const std::set<std::string> old_files = FilesOf(name_);
    const fs::path temporary = folder_ / (name_ + ".tmp");
    VARVE_RETURN_IF_ERROR(WriteFile(temporary, vp::EncodeMetadata(stored)));
    std::error_code error;
    fs::rename(temporary, folder_ / name_, error);
    if (error) {
      return varve::Unavailable(temporary.string() + ": " + error.message());
    }
    written_.reset();
    for (const std::string& file : old_files) {
      fs::remove(folder_ / file, error);  // Files that cannot be removed only take space.
    }
    return varve::Status::Ok();
  }

  void Abandon() override {
    if (written_) {
      std::error_code ignored;
      fs::remove(folder_ / *written_, ignored);
      written_.reset();
    }
  }

 private:
  /// Returns the content files of the checkpoint that is to be replaced.
  std::set<std::string> FilesOf(const std::string& name) {
    std::set<std::string> files;
    const auto encoded = ReadFile(folder_ / name);
    const auto metadata = encoded.ok() ? vp::DecodeMetadata(*encoded) : encoded.status();
    const auto places = metadata.ok() ? PlacesOf(*metadata) : metadata.status();
    if (places.ok()) {
      for (const auto& [index, place] : *places) {
        files.insert(place.file);
      }
    }
    return files;
  }

  fs::path folder_;
  std::string name_;
  std::optional<std::string> written_;  // Until it is part of a checkpoint.
};

class FolderReader : public vp::StorageReader {
 public:
  explicit FolderReader(fs::path folder) : folder_(std::move(folder)) {}

  varve::Status Reset(std::optional<std::string_view> checkpoint_id) override {
    name_ = checkpoint_id.value_or(name_);
    return varve::Status::Ok();
  }

  varve::Result<vp::StateMetadata> ReadMetadata() override {
    VARVE_ASSIGN_OR_RETURN(const std::string encoded, ReadFile(folder_ / name_));
    return vp::DecodeMetadata(encoded);
  }

  varve::Status SetUpStorageReader(const vp::StateMetadata& metadata,
                                   bool /*is_coordinator*/) override {
    metadata_ = metadata;
    VARVE_ASSIGN_OR_RETURN(places_, PlacesOf(metadata));
    return varve::Status::Ok();
  }

  varve::Status ReadData(const vp::LoadPlan& plan, vp::LoadPlanner& planner) override {
    for (const vp::ReadItem& item : plan.items) {
      VARVE_ASSIGN_OR_RETURN(const std::string content, Content(item.storage_index));
      if (item.type == vp::LoadItemType::kByteIo) {
        VARVE_RETURN_IF_ERROR(planner.LoadBytes(item, content));
        continue;
      }
      VARVE_ASSIGN_OR_RETURN(const vp::TensorMemory memory, planner.ResolveTensor(item));
      const auto* chunk = metadata_.FindChunk(item.storage_index);
      if (chunk == nullptr) {
        return varve::NotFound(vp::ToString(item.storage_index) + " is not in the checkpoint");
      }
      VARVE_RETURN_IF_ERROR(vp::CopyContent(item, *chunk, content, memory));
      VARVE_RETURN_IF_ERROR(planner.CommitTensor(item, memory));
    }
    return varve::Status::Ok();
  }

 private:
  varve::Result<std::string> Content(const vp::MetadataIndex& index) {
    const auto place = places_.find(index);
    if (place == places_.end()) {
      return varve::NotFound(vp::ToString(index) + " is not in the checkpoint");
    }
    std::ifstream file(folder_ / place->second.file, std::ios::binary);
    file.seekg(static_cast<std::streamoff>(place->second.offset));
    std::string content(place->second.size, '\0');
    file.read(content.data(), static_cast<std::streamsize>(content.size()));
    return file.good() ? varve::Result<std::string>(std::move(content))
                       : varve::DataLoss(place->second.file + " ends early or is gone");
  }

  fs::path folder_;
  std::string name_;
  vp::StateMetadata metadata_;
  std::map<vp::MetadataIndex, Place> places_;
};

/// Runs the conformance suite, which tests all that a backend must do.
varve::Status TryClaims(const fs::path& folder) {
  int number = 0;
  vp::ConformanceSubject subject;
  subject.make_writer = [&] { return std::make_unique<FolderWriter>(folder); };
  subject.make_reader = [&] { return std::make_unique<FolderReader>(folder); };
  subject.new_checkpoint_id = [&] { return "trial-" + std::to_string(++number); };
  const auto claims = vp::RunStorageConformance(subject);
  for (const vp::ConformanceClaim& claim : claims) {
    std::printf("%s %s\n", claim.passed ? "met    " : "NOT MET", claim.name.c_str());
  }
  const std::string failures = vp::DescribeFailures(claims);
  return failures.empty() ? varve::Status::Ok() : varve::FailedPrecondition(failures);
}

varve::Status SaveAndLoad(const fs::path& folder) {
  const std::vector<float> weight = {1, 2, 3, 4, 5, 6};
  varve::State state;
  state.tensors = {{.fqn = "weight",
                    .dtype = varve::DType::kFloat32,
                    .shape = {2, 3},
                    .box = varve::WholeBox({2, 3}),
                    .source = varve::HostMemory{weight.data()}}};
  state.objects = {{"step", varve::EncodeValue(varve::Value::Int(10))}};
  FolderWriter writer(folder);
  VARVE_RETURN_IF_ERROR(vp::Save(state, writer, {.checkpoint_id = "step-10"}).status());

  std::vector<float> column(2);
  vp::TargetState target;
  target.tensors = {{.fqn = "weight",
                     .dtype = varve::DType::kFloat32,
                     .shape = {2, 3},
                     .box = {{0, 1}, {2, 1}},
                     .data = column.data()}};
  target.objects = {{"step", ""}};
  FolderReader reader(folder);
  VARVE_RETURN_IF_ERROR(vp::Load(target, reader, {.checkpoint_id = "step-10"}));
  VARVE_ASSIGN_OR_RETURN(const varve::Value step, varve::DecodeValue(target.objects[0].encoded));
  std::printf("loaded: step %s, the middle column is %g, %g\n", varve::ToString(step).c_str(),
              static_cast<double>(column[0]), static_cast<double>(column[1]));
  const bool right = column == std::vector<float>{2, 5} && step == varve::Value::Int(10);
  return right ? varve::Status::Ok() : varve::DataLoss("not what was saved");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: own_backend FOLDER\n");
    return 2;
  }
  varve::Status status = TryClaims(argv[1]);
  if (status.ok()) {
    status = SaveAndLoad(argv[1]);
  }
  if (!status.ok()) {
    std::fprintf(stderr, "own_backend: %s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
