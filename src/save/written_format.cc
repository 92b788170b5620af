#include "save/written_format.h"

#include <array>

namespace varve {

Status WritePatches(Storage& storage, const std::string& directory,
                    const std::vector<FilePatch>& patches) {
  for (const FilePatch& patch : patches) {
    VARVE_ASSIGN_OR_RETURN(const auto file,
                           storage.OpenForWrite(JoinPath(directory, patch.name),
                                                {.size = patch.size, .shared = true}));
    for (const auto& [offset, content] : patch.parts) {
      VARVE_RETURN_IF_ERROR(file->WriteAt(offset, AsByteSpan(content)));
    }
    VARVE_RETURN_IF_ERROR(file->Sync(patch.size));
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
