#include "interop/torch/archive.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/checksum.h"
#include "interop/torch/encode_parts.h"
#include "interop/torch/parts.h"
#include "interop/torch/values.h"
#include "interop/zip/directory.h"

namespace varve {
Result<TorchArchive> TorchArchive::Open(std::uint64_t size, const RangeReader& read) {
  // As many bytes as tell the two containers apart.
  constexpr std::uint64_t kHeadBytes = 64;
  VARVE_ASSIGN_OR_RETURN(const std::string head, read(0, std::min(size, kHeadBytes)));
  const bool zip = head.starts_with("PK\3\4");
  if (!zip && !BeginsLegacyContainer(head)) {
    return DataLoss("torch.save archive: it begins neither as a zip file nor as a legacy one");
  }
  auto container = zip ? ReadZipContainer(size, read) : ReadLegacyContainer(size, read);
  if (!container.ok()) {
    return container.status().Annotate("torch.save archive");
  }
  TorchArchive archive;
  archive.pickle_ = std::move(container->pickle);
  archive.pickle_record_ = std::move(container->pickle_record);
  archive.storages_ = std::move(container->storages);
  archive.by_key_.reserve(archive.storages_.size());
  for (std::uint32_t i = 0; i < archive.storages_.size(); ++i) {
    archive.by_key_.emplace_back(archive.storages_[i].key, i);
  }
  std::sort(archive.by_key_.begin(), archive.by_key_.end());
  return archive;
}

Result<TorchArchive> TorchArchive::OfPickle(std::string pickle) {
  TorchArchive archive;
  VARVE_ASSIGN_OR_RETURN(archive.pickle_, ReadOwnedPickle(std::move(pickle)));
  return archive;
}

std::optional<std::uint32_t> TorchArchive::FindStorage(std::string_view key) const {
  const auto found = std::lower_bound(
      by_key_.begin(), by_key_.end(), key,
      [](const auto& entry, std::string_view wanted) { return entry.first < wanted; });
  if (found == by_key_.end() || found->first != key) {
    return std::nullopt;
  }
  return found->second;
}

Result<std::optional<Value>> TorchArchive::ValueAt(PickleRef node, const RangeReader& read) const {
  TorchValues values(*this, read);
  return values.At(node);
}

namespace {

/// Returns the value that Varve has put beside the pickle, see kValueRecord; nothing for most.
Result<std::optional<Value>> ReadValueRecord(std::string_view archive) {
  if (archive.find(kValueRecord) == std::string_view::npos || !archive.starts_with("PK\3\4")) {
    return std::optional<Value>();
  }
  const RangeReader read = ReadFrom(archive);
  VARVE_ASSIGN_OR_RETURN(const std::vector<ZipRecord> records,
                         ReadZipDirectory(archive.size(), read));
  for (const ZipRecord& record : records) {
    if (record.name == kValueRecord) {
      VARVE_ASSIGN_OR_RETURN(const std::uint64_t begin,
                             FindRecordContent(record, archive.size(), read));
      const std::string_view content = archive.substr(begin, record.size);
      if (Crc32ZipExtend(0, AsByteSpan(content)) != record.crc32) {
        return DataLoss("the checksum of its record \"" + record.name + "\" does not match");
      }
      Result<Value> value = DecodeValue(content);
      if (!value.ok()) {
        return value.status().Annotate("record \"" + record.name + "\"");
      }
      return std::optional<Value>(*std::move(value));
    }
  }
  return std::optional<Value>();
}

}  // namespace

Result<Value> ReadValueItem(std::string_view archive) {
  VARVE_ASSIGN_OR_RETURN(std::optional<Value> own, ReadValueRecord(archive));
  if (own) {
    return *std::move(own);
  }
  const RangeReader read = ReadFrom(archive);
  VARVE_ASSIGN_OR_RETURN(const TorchArchive opened, TorchArchive::Open(archive.size(), read));
  TorchValues values(opened, read);
  VARVE_ASSIGN_OR_RETURN(std::optional<Value> value, values.At(opened.tree().root()));
  if (value) {
    return *std::move(value);
  }
  Value opaque = values.OpaqueAt(opened.tree().root());
  opaque.text = std::string(archive);
  return opaque;
}

}  // namespace varve
