#include "publish/dcp_commit.h"

#include <algorithm>
#include <utility>

#include "catalogue/foreign.h"
#include "catalogue/names.h"
#include "catalogue/open.h"
#include "catalogue/own_names.h"
#include "interop/dcp/data_name.h"
#include "publish/commit.h"
#include "publish/save_id.h"
#include "varve/storage.h"

namespace varve {

struct DcpCommit::Impl {
  std::string index;  ///< Its name.
  std::unique_ptr<Commit> commit;
};

DcpCommit::DcpCommit(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DcpCommit::~DcpCommit() = default;

Result<std::unique_ptr<DcpCommit>> DcpCommit::Begin(const std::string& path, Overwrite overwrite,
                                                    Storage& storage,
                                                    std::optional<std::uint32_t> rank) {
  VARVE_ASSIGN_OR_RETURN(const std::string where, ResolvePath(path, storage));
  VARVE_ASSIGN_OR_RETURN(const SaveId id, RandomSaveId());
  auto impl = std::make_unique<Impl>();
  impl->index = (rank ? "__" + std::to_string(*rank) : "") + std::string(kDcpIndexName);
  VARVE_ASSIGN_OR_RETURN(impl->commit,
                         Commit::Begin(storage, where, id, overwrite, {}, Resume::kNo, {},
                                       {.name = impl->index, .beside_others = true, .rank = rank}));
  return std::unique_ptr<DcpCommit>(new DcpCommit(std::move(impl)));
}

const std::string& DcpCommit::staging() const { return impl_->commit->staging(); }

std::string DcpCommit::below() const { return impl_->commit->below(); }

const std::vector<std::string>& DcpCommit::conflicts() const { return impl_->commit->conflicts(); }

Status DcpCommit::Publish(const std::vector<std::pair<std::string, std::uint64_t>>& files,
                          const std::string& metadata) {
  std::vector<DataFile> data_files;
  data_files.reserve(files.size());
  for (const auto& [name, size] : files) {
    DataFile file;
    file.name = name;
    file.size = size;
    file.rank = static_cast<std::uint32_t>(ParseDcpDataName(name).value_or(DcpDataName{}).rank);
    data_files.push_back(std::move(file));
  }
  return impl_->commit->Publish(data_files, {{impl_->index, metadata}});
}

bool DcpGoesBeside(const std::string& path, Storage& storage) {
  return PublishesByRecord(storage, path);
}

bool DcpReplacesDirectory(const std::string& path, Storage& storage) {
  const auto entries = storage.List(path);
  if (!entries.ok() || entries->empty()) {
    return true;
  }
  const auto format = ShownFormat(*entries);
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
