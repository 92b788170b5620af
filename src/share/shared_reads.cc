#include "share/shared_reads.h"

#include <utility>

#include "base/fields.h"
#include "base/guarded.h"
#include "base/time_source.h"
#include "catalogue/family.h"
#include "share/sharing.h"

namespace varve {

std::string SharedReads::NeedOf(std::span<const TargetTensor> targets, const std::string& directory,
                                bool serves) {
  End();
  ReadNeed need = varve::NeedOf(metadata_, targets);
  need.remote = IsRemote(files_.storage(), directory);
  const auto digest = DigestOfFiles(metadata_, directory, need.remote);
  if (serves && digest && !need.node.empty() && !IsSimulated()) {
    need.files = *digest;
    auto peers = Guarded([] { return PeerReads::Listen(); });
    if (peers.ok()) {  // Else this rank reads for itself.
      peers_ = *std::move(peers);
      need.address = peers_->address();
    }
  }
  return EncodeFields(need);
}

Result<std::vector<std::string>> SharedReads::ShareNeeds(std::span<const std::string> needs) const {
  std::vector<ReadNeed> decoded;
  for (const std::string& need : needs) {
    ReadNeed& one = decoded.emplace_back();
    if (!need.empty()) {  // Else the rank shares nothing.
      VARVE_ASSIGN_OR_RETURN(one, DecodeFields<ReadNeed>(need));
    }
  }
  std::vector<std::string> sharing;
  for (const ReadGroup& one : ShareReads(metadata_, decoded)) {
    sharing.push_back(EncodeFields(one));
  }
  return sharing;
}

Status SharedReads::Begin(const std::string& sharing) {
  if (by_peers_) {
    return FailedPrecondition("this reader reads together with others already");
  }
  VARVE_ASSIGN_OR_RETURN(const ReadGroup decoded, DecodeFields<ReadGroup>(sharing));
  by_cache_ = decoded.by_cache;
  by_peers_ = !decoded.nodes.empty() && peers_ != nullptr &&
              Guarded([&] { return peers_->Join(decoded, metadata_, files_); }).ok();
  if (!by_peers_) {
    peers_.reset();  // Those that would ask are refused, and read for themselves.
  }
  return Status::Ok();
}

void SharedReads::End() {
  storage_bytes_ = storage_bytes();
  by_cache_ = {};
  by_peers_ = false;
  peers_.reset();
}

std::set<std::uint32_t> SharedReads::FilesToOpen(std::set<std::uint32_t> needed) const {
  if (by_peers_) {
    std::erase_if(needed, [&](std::uint32_t number) { return !peers_->MayOwn(number); });
  }
  return needed;
}

std::unique_ptr<SharedReads::GivesUp> SharedReads::Arrange(std::span<FileReads> reads,
                                                           ReadFilesOptions* options) {
  if (!by_peers_) {
    options->shared_by = by_cache_;
    return nullptr;
  }
  for (FileReads& file : reads) {
    file.file = peers_->Shared(file.number, *file.file);
  }
  options->order = peers_->Order();
  return std::make_unique<GivesUp>(options->stop, [this] { peers_->GiveUp(); });
}

std::uint64_t SharedReads::storage_bytes() const {
  return storage_bytes_ + (by_peers_ ? peers_->storage_bytes() : 0);
}

}  // namespace varve
