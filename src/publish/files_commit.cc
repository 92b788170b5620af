#include "publish/files_commit.h"

#include <algorithm>
#include <utility>

#include "catalogue/formats/dcp.h"
#include "catalogue/names.h"
#include "catalogue/own_names.h"
#include "interop/dcp/data_name.h"
#include "publish/publisher.h"
#include "publish/save_id.h"

namespace varve {

FilesCommit::FilesCommit(std::unique_ptr<Commit> commit, std::string mark)
    : commit_(std::move(commit)), mark_(std::move(mark)) {}
FilesCommit::~FilesCommit() = default;

Result<std::unique_ptr<FilesCommit>> FilesCommit::Begin(const std::string& path,
                                                        const FilesTerms& terms, Storage& storage) {
  VARVE_ASSIGN_OR_RETURN(const std::string where, ResolvePath(path, storage));
  VARVE_ASSIGN_OR_RETURN(const SaveId id, RandomSaveId());
  const bool is_dcp = terms.mark.empty();
  CommitTerms commit_terms{.id = id, .overwrite = terms.overwrite};
  std::string mark = terms.mark;
  if (is_dcp) {
    mark = (terms.rank ? "__" + std::to_string(*terms.rank) : "") + std::string(kDcpIndexName);
    commit_terms.index = {.name = mark,
                          .beside_others = true,
                          .stays = terms.stays || terms.rank,
                          .rank = terms.rank};
  }
  const auto publisher = PublisherOf(storage, where);
  VARVE_RETURN_IF_ERROR(
      is_dcp ? Status::Ok()
             : publisher->CheckRenames(where, "a folder of another software's files"));
  VARVE_ASSIGN_OR_RETURN(auto commit, publisher->Begin(where, commit_terms));
  VARVE_RETURN_IF_ERROR(is_dcp ? Status::Ok() : commit->MarkStaging());
  return std::unique_ptr<FilesCommit>(new FilesCommit(std::move(commit), std::move(mark)));
}

const std::string& FilesCommit::staging() const { return commit_->staging(); }

std::string FilesCommit::below() const { return commit_->below(); }

std::uint64_t FilesCommit::first() const { return commit_->first(); }

const std::vector<std::string>& FilesCommit::conflicts() const { return commit_->conflicts(); }

Status FilesCommit::Publish(const std::vector<std::pair<std::string, std::uint64_t>>& files,
                            const std::string& content) {
  std::vector<DataFile> data_files;
  data_files.reserve(files.size());
  for (const auto& [name, size] : files) {
    DataFile& file = data_files.emplace_back();
    file.name = name;
    file.size = size;
    file.rank = static_cast<std::uint32_t>(ParseDcpDataName(name).value_or(DcpDataName{}).rank);
  }
  return commit_->Publish(data_files, {{mark_, content}});
}

bool DcpReplacesDirectory(const std::string& path, Storage& storage) {
  const auto entries = storage.List(path);
  if (!entries.ok() || entries->empty()) {
    return true;
  }
  const auto format = ShownFormat(storage, path, *entries);
  if (format == Format::kVarve) {
    return true;
  }
  const OwnNames names(storage, path, *entries);
  return format == Format::kDcp &&
         std::all_of(entries->begin(), entries->end(), [&](const DirectoryEntry& entry) {
           return entry.is_directory ? IsDataDirectoryName(entry.name)
                                     : names.FitsPattern(entry.name);
         });
}

}  // namespace varve
