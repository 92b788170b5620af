#include "interop/olmo/full.h"

#include <algorithm>
#include <string>
#include <vector>

#include "interop/olmo/dialect.h"
#include "interop/olmo/names.h"
#include "interop/torch/archive.h"
#include "interop/torch/state_reader.h"

namespace varve {

Result<StateNode> ReadWholeState(const NamedFile& file, std::uint32_t number,
                                 const std::string& name, std::vector<RecordCrc>* records) {
  if (file.name.ends_with(".safetensors")) {
    return ReadOlmoSafetensors(file, number);
  }
  VARVE_ASSIGN_OR_RETURN(const TorchArchive archive, TorchArchive::Open(file.size, file.read));
  const std::vector<RecordCrc> storages = StorageRecords(archive, number);
  records->insert(records->end(), storages.begin(), storages.end());
  return StateReader(archive, file.read, number).At(archive.tree().root(), name);
}

void CleanModelNames(StateNode* model) {
  for (std::size_t i = 0; i < model->keys.size(); ++i) {
    if (model->keys[i].kind == ValueKind::kStr) {
      model->Rename(i, CleanName(model->keys[i].text));
    }
  }
}

}  // namespace varve
