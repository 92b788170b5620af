#include "publish/files_commit.h"

#include <utility>

#include "publish/commit.h"
#include "publish/save_id.h"

namespace varve {

FilesCommit::FilesCommit(std::unique_ptr<Commit> commit, std::string mark)
    : commit_(std::move(commit)), mark_(std::move(mark)) {}
FilesCommit::~FilesCommit() = default;

Result<std::unique_ptr<FilesCommit>> FilesCommit::Begin(const std::string& path,
                                                        Overwrite overwrite,
                                                        const std::string& mark, Storage& storage) {
  VARVE_ASSIGN_OR_RETURN(const std::string where, ResolvePath(path, storage));
  VARVE_RETURN_IF_ERROR(NeedsRenames(storage, where, "a folder of another software's files"));
  VARVE_ASSIGN_OR_RETURN(const SaveId id, RandomSaveId());
  VARVE_ASSIGN_OR_RETURN(auto commit, Commit::Begin(storage, where, id, overwrite));
  VARVE_RETURN_IF_ERROR(commit->MarkStaging());
  return std::unique_ptr<FilesCommit>(new FilesCommit(std::move(commit), mark));
}

const std::string& FilesCommit::staging() const { return commit_->staging(); }

const std::vector<std::string>& FilesCommit::conflicts() const { return commit_->conflicts(); }

Status FilesCommit::Publish(const std::vector<std::pair<std::string, std::uint64_t>>& files,
                            const std::string& content) {
  std::vector<DataFile> data_files;
  data_files.reserve(files.size());
  for (const auto& [name, size] : files) {
    DataFile file;
    file.name = name;
    file.size = size;
    data_files.push_back(std::move(file));
  }
  return commit_->Publish(data_files, {{mark_, content}});
}

}  // namespace varve
