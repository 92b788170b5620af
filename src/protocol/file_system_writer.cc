#include <map>
#include <optional>
#include <utility>

#include "base/fields.h"
#include "interop/torch/encode.h"
#include "publish/files_commit.h"
#include "save/dcp_file.h"
#include "save/dcp_index.h"
#include "save/written_format.h"
#include "varve/metadata.h"
#include "varve/protocol/file_system.h"
#include "varve/storage.h"
#include "varve/value.h"

namespace varve::protocol {
namespace {

/// The place to which a rank writes: the message of the coordinator's FileSystemWriter to those of
/// the other ranks, in SavePlan::storage_data.
struct Place {
  /// The name of the staging directory, beside the checkpoint's; or of the checkpoint's own.
  std::string directory;
  bool is_below = false;  ///< It is below the checkpoint's own, and there with its first file.
  std::uint32_t rank = 0;
  std::uint64_t number = 0;  ///< Of the rank's file.
};

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, Place>& place) {
  archive(place.directory, place.is_below, place.rank, place.number);
  archive.Check(
      [&] { return !place.directory.empty() && place.directory.find('/') == std::string::npos; },
      "a name that may lead anywhere else");
}

/// Errors: InvalidArgument for bytes that are not of a FileSystemWriter.
Result<Place> DecodePlace(std::string_view bytes) {
  Result<Place> place = DecodeFields<Place>(bytes);
  return place.ok() ? std::move(place)
                    : InvalidArgument(
                          "the plan does not say where to write: its storage_data, as "
                          "PrepareGlobalPlan made it, was lost on the way");
}

/// Returns a value as torch.save would store it.
Result<std::string> ArchiveOf(const WriteItem& item, std::string_view encoded) {
  const auto value = DecodeValue(encoded);
  if (!value.ok()) {
    return InvalidArgument(ToString(item.index) +
                           ": these bytes are no encoded value: " + value.status().message());
  }
  return EncodeValueArchive(*value).Annotate(ToString(item.index));
}

Result<DcpItem> ToDcpItem(const WriteItem& item, const ItemData& data) {
  if (item.tensor_data) {
    return WholeDcpTensor(item.index.fqn, item.tensor_data->properties.dtype,
                          item.tensor_data->chunk.sizes, HostMemory{data.data, data.strides});
  }
  VARVE_ASSIGN_OR_RETURN(std::string archive, ArchiveOf(item, data.bytes));
  return DcpItem{item.index.fqn, std::move(archive)};
}

/// Returns the results of a plan. The first one has the receipt of the whole file.
std::vector<WriteResult> ResultsOf(const SavePlan& plan, const DcpFile& written) {
  std::vector<WriteResult> results;
  results.reserve(plan.items.size());
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    results.push_back({plan.items[i].index, written.items[i].length, {}});
  }
  results.front().storage_data = EncodeDcpFile(written);
  return results;
}

// ---- the index, from the results of all ranks ----

/// The place of an item.
struct Stored {
  std::uint32_t file = 0;
  DcpExtent extent;
};

/// Finds the items that the ranks have written, by their index.
class StoredItems {
 public:
  /// Adds a rank's results. The first one has the receipt of its file, which lists the items in
  /// order.
  Status Add(std::uint32_t rank, std::uint64_t number, const std::vector<WriteResult>& results,
             DcpIndexBuilder* index) {
    if (results.empty()) {
      return Status::Ok();
    }
    const auto file = DecodeDcpFile(results.front().storage_data);
    if (!file.ok() || file->items.size() != results.size()) {
      return InvalidArgument("the write results of rank " + std::to_string(rank) +
                             " are not those of one FileSystemWriter, in its order");
    }
    VARVE_ASSIGN_OR_RETURN(const std::uint32_t place, index->AddFile(rank, *file, number));
    for (std::size_t i = 0; i < results.size(); ++i) {
      items_[results[i].index] = {place, file->items[i]};
    }
    return Status::Ok();
  }

  [[nodiscard]] Result<const Stored*> Find(const MetadataIndex& index) const {
    const auto found = items_.find(index);
    if (found == items_.end()) {
      return Internal("no rank has written " + ToString(index));
    }
    return &found->second;
  }

 private:
  std::map<MetadataIndex, Stored> items_;
};

Status AddTensor(const std::string& fqn, const TensorStorageMetadata& tensor,
                 const StoredItems& items, DcpIndexBuilder* index) {
  std::vector<Chunk>& chunks = index->AddTensor(fqn, tensor.properties.dtype, tensor.size);
  for (const ChunkStorageMetadata& box : tensor.chunks) {
    VARVE_ASSIGN_OR_RETURN(const Stored* item, items.Find({fqn, box.offsets, std::nullopt}));
    chunks.push_back(DcpChunkOf(item->file, box, item->extent));
  }
  return Status::Ok();
}

Result<std::optional<Value>> Structure(const std::string& planner_data) {
  if (planner_data.empty()) {
    return std::optional<Value>();
  }
  auto structure = DecodeValue(planner_data);
  if (!structure.ok()) {
    return InvalidArgument("planner_data is not the structure of a state: " +
                           structure.status().message());
  }
  return std::optional<Value>(std::move(*structure));
}

/// The data files of a list of results.
struct WrittenFiles {
  std::uint32_t first_rank = 0;  ///< The rank of the first result; the next rank has the second.
  std::uint64_t number = 0;      ///< Of each rank's file, see DcpFileName.
  std::uint64_t block_bytes = 0;
  std::string below{};  ///< Before their names in the index, see FilesCommit::below.
};

/// Makes the index. `results` by rank, as FileSystemWriter::WriteData returns them. Errors:
/// Internal for a chunk or value that no rank has written; InvalidArgument for planner_data that is
/// not the structure of a state, and for results of other writers or of different block sizes.
Result<CheckpointIndex> MakeIndex(const StateMetadata& metadata,
                                  const std::vector<std::vector<WriteResult>>& results,
                                  const WrittenFiles& files) {
  DcpIndexBuilder index(files.block_bytes);
  StoredItems items;
  for (std::size_t i = 0; i < results.size(); ++i) {
    VARVE_RETURN_IF_ERROR(items.Add(files.first_rank + static_cast<std::uint32_t>(i), files.number,
                                    results[i], &index));
  }
  for (const auto& [fqn, entry] : metadata.state_dict_metadata) {
    if (const auto* tensor = std::get_if<TensorStorageMetadata>(&entry)) {
      VARVE_RETURN_IF_ERROR(AddTensor(fqn, *tensor, items, &index));
    } else {
      VARVE_ASSIGN_OR_RETURN(const Stored* item, items.Find({fqn, std::nullopt, std::nullopt}));
      index.AddObject(fqn, item->file, item->extent);
    }
  }
  VARVE_ASSIGN_OR_RETURN(const std::optional<Value> structure, Structure(metadata.planner_data));
  return index.Finish(structure, {}, files.below);
}

}  // namespace

FileSystemWriter::FileSystemWriter(std::string path, FileSystemWriterOptions options,
                                   Storage& storage)
    : path_(std::move(path)), options_(std::move(options)), storage_(storage) {
  if (auto resolved = ResolvePath(path_, storage_); resolved.ok()) {
    path_ = std::move(*resolved);  // Else the first use returns the error.
  }
}

FileSystemWriter::~FileSystemWriter() = default;

bool FileSystemWriter::ValidateCheckpointId(std::string_view checkpoint_id) {
  return ResolvePath(checkpoint_id).ok();
}

Status FileSystemWriter::Reset(std::optional<std::string_view> checkpoint_id) {
  Abandon();
  if (checkpoint_id) {
    VARVE_ASSIGN_OR_RETURN(path_, ResolvePath(*checkpoint_id, storage_));
  }
  return Status::Ok();
}

Status FileSystemWriter::SetUpStorageWriter(const SaveRole& role) {
  Abandon();
  role_ = role;
  conflicts_.clear();
  return ResolvePath(path_, storage_).status();
}

Result<std::vector<SavePlan>> FileSystemWriter::PrepareGlobalPlan(std::vector<SavePlan> plans) {
  FilesTerms terms{.overwrite = options_.overwrite ? Overwrite::kAlways : Overwrite::kNever};
  std::uint32_t rank = 0;  // Of the first plan.
  if (!role_.use_collectives) {
    rank = static_cast<std::uint32_t>(role_.rank);
    terms.rank = rank;
  }
  VARVE_ASSIGN_OR_RETURN(commit_, FilesCommit::Begin(path_, terms, storage_));
  Place place{BaseName(commit_->staging()), !commit_->below().empty(), rank, commit_->first()};
  for (SavePlan& plan : plans) {
    plan.storage_data = EncodeFields(place);
    ++place.rank;
  }
  return plans;
}

Result<std::vector<WriteResult>> FileSystemWriter::WriteData(const SavePlan& plan,
                                                             SavePlanner& planner) {
  if (plan.items.empty()) {
    return std::vector<WriteResult>();
  }
  VARVE_ASSIGN_OR_RETURN(const Place place, DecodePlace(plan.storage_data));
  const std::string directory =
      commit_ != nullptr ? commit_->staging()
                         : JoinPath(place.is_below ? path_ : ParentPath(path_), place.directory);
  if (!place.is_below && !storage_.List(directory).ok()) {
    return FailedPrecondition(directory +
                              " was made by the coordinator and is not there: the ranks do not "
                              "share the storage of " +
                              path_);
  }
  std::vector<ItemData> content;  // Owns what the planner may have made, until it is written.
  std::vector<DcpItem> items;
  for (const WriteItem& item : plan.items) {
    VARVE_ASSIGN_OR_RETURN(content.emplace_back(),
                           planner.ResolveData(item).Annotate(ToString(item.index)));
    VARVE_ASSIGN_OR_RETURN(items.emplace_back(), ToDcpItem(item, content.back()));
  }
  SaveOptions options;
  options.direct = options_.direct;
  options.writes_in_flight = options_.writes_in_flight;
  options.block_bytes = options_.block_bytes;
  options.progress = options_.progress;
  options.stop = options_.stop;
  const std::string path = JoinPath(directory, DcpFileName(place.rank, place.number));
  VARVE_ASSIGN_OR_RETURN(const DcpFile written,
                         WriteDcpFile(path, items, options, storage_).Annotate(path));
  return ResultsOf(plan, written);
}

Status FileSystemWriter::Finish(const StateMetadata& metadata,
                                const std::vector<std::vector<WriteResult>>& results) {
  if (commit_ == nullptr) {
    return FailedPrecondition(path_ + ": no save is under way here");
  }
  const auto rank = role_.use_collectives ? 0U : static_cast<std::uint32_t>(role_.rank);
  VARVE_ASSIGN_OR_RETURN(const CheckpointIndex made, MakeIndex(metadata, results,
                                                               {.first_rank = rank,
                                                                .number = commit_->first(),
                                                                .block_bytes = options_.block_bytes,
                                                                .below = commit_->below()})
                                                         .Annotate(path_));
  std::vector<std::pair<std::string, std::uint64_t>> files;
  files.reserve(made.files.size());
  for (const DataFile& file : made.files) {
    files.emplace_back(file.name, file.size);
  }
  VARVE_RETURN_IF_ERROR(commit_->Publish(files, made.index.front().content));
  conflicts_ = commit_->conflicts();
  commit_.reset();
  return Status::Ok();
}

void FileSystemWriter::Abandon() { commit_.reset(); }

std::optional<StorageMeta> FileSystemWriter::GetStorageMeta() const {
  StorageMeta meta;
  meta.checkpoint_id = path_;
  return meta;
}

}  // namespace varve::protocol
