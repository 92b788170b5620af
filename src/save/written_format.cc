#include "save/written_format.h"

#include <array>
#include <cstddef>

namespace varve {

namespace {

/// Parts that follow each other are joined, up to so many bytes, before they are written.
constexpr std::size_t kPatchBytes = std::size_t{4} << 20;

/// Joins what is written in the order of a file.
class JoiningWriter {
 public:
  explicit JoiningWriter(WritableFile& file) : file_(file) {}

  Status Write(std::uint64_t offset, std::string_view part) {
    if (offset != begin_ + joined_.size() || joined_.size() + part.size() > kPatchBytes) {
      VARVE_RETURN_IF_ERROR(Flush());
      begin_ = offset;
    }
    joined_ += part;
    return Status::Ok();
  }

  Status Flush() {
    if (joined_.empty()) {
      return Status::Ok();
    }
    Status written = file_.WriteAt(begin_, AsByteSpan(joined_));
    begin_ += joined_.size();
    joined_.clear();
    return written;
  }

 private:
  WritableFile& file_;
  std::uint64_t begin_ = 0;
  Bytes joined_;
};

}  // namespace

Status WritePatches(Storage& storage, const std::string& directory,
                    const std::vector<FilePatch>& patches) {
  for (const FilePatch& patch : patches) {
    VARVE_ASSIGN_OR_RETURN(const auto file,
                           storage.OpenForWrite(JoinPath(directory, patch.name),
                                                {.size = patch.size, .shared = true}));
    JoiningWriter writer(*file);
    for (const auto& [offset, part] : patch.parts) {
      VARVE_RETURN_IF_ERROR(writer.Write(offset, part));
    }
    VARVE_RETURN_IF_ERROR(writer.Flush());
    VARVE_RETURN_IF_ERROR(file->Sync(patch.size));
  }
  return Status::Ok();
}

Status CheckPickles(const State& state, Format format) {
  for (const SourceObject& object : state.objects) {
    if (!object.storages.empty() && (format != Format::kDcp || state.structure.empty())) {
      return InvalidArgument("value \"" + object.fqn +
                             "\": a pickle with storages is for states with a structure in "
                             "PyTorch's format alone");
    }
  }
  return Status::Ok();
}

const WrittenFormat* FindWrittenFormat(Format format) {
  static constexpr std::array kFormats{&kNativeFormat, &kDcpFormat, &kHfaiFormat, &kHfFormat};
  for (const WrittenFormat* const entry : kFormats) {
    if (entry->format == format) {
      return entry;
    }
  }
  return nullptr;
}

}  // namespace varve
