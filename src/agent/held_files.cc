#include "agent/held_files.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/bytes.h"
#include "varve/storage.h"

namespace varve {

Bytes EncodeHeldFile(const HeldFile& file) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.String(file.path);
  out.String(file.name);
  for (const std::uint8_t octet : file.save_id.bytes) {
    out.U8(octet);
  }
  out.U32(file.rank);
  out.U64(file.data_begin);
  out.U64(file.pool_blocks);
  out.String(EncodeStagedImage(file.image));
  return bytes;
}

Result<HeldFile> DecodeHeldFile(std::string_view bytes) {
  ByteReader in(bytes);
  HeldFile file;
  file.path = std::string(in.String());
  file.name = std::string(in.String());
  for (std::uint8_t& octet : file.save_id.bytes) {
    octet = in.U8();
  }
  file.rank = in.U32();
  file.data_begin = in.U64();
  file.pool_blocks = in.U64();
  VARVE_ASSIGN_OR_RETURN(file.image, DecodeStagedImage(in.String(), file.pool_blocks));
  VARVE_RETURN_IF_ERROR(in.Finish());
  return file;
}

void HeldFiles::Add(Held held) {
  std::vector<Held> given_up;  // Freeing their memory may take seconds: not under the lock.
  const std::scoped_lock lock(mutex_);
  const std::string directory = ParentPath(held.file.path);
  const auto long_ago = Now() - orphans_stay_;
  const auto stay = std::stable_partition(files_.begin(), files_.end(), [&](const Held& other) {
    const bool older =
        other.file.rank == held.file.rank && ParentPath(other.file.path) == directory;
    return !other.orphan_since || (!older && *other.orphan_since > long_ago);
  });
  std::for_each(stay, files_.end(), [](const Held& other) { other.page->Revoke(); });
  std::move(stay, files_.end(), std::back_inserter(given_up));
  files_.erase(stay, files_.end());
  files_.push_back(std::move(held));
}

void HeldFiles::Forget(std::uint64_t session, std::uint64_t ticket) {
  const std::scoped_lock lock(mutex_);
  std::erase_if(files_, [&](const Held& held) {
    const bool meant = held.session == session && held.ticket == ticket;
    if (meant) {
      held.page->Revoke();
    }
    return meant;
  });
}

void HeldFiles::ForgetAll(std::optional<std::uint64_t> session) {
  const std::scoped_lock lock(mutex_);
  std::erase_if(files_, [&](const Held& held) {
    const bool meant = !session || held.session == *session;
    if (meant) {
      held.page->Revoke();
    }
    return meant;
  });
}

void HeldFiles::Orphan(std::uint64_t session) {
  const std::scoped_lock lock(mutex_);
  for (Held& held : files_) {
    if (held.session == session && !held.orphan_since) {
      held.orphan_since = Now();
    }
  }
}

std::vector<Held> HeldFiles::Find(const std::string& path) {
  const std::scoped_lock lock(mutex_);
  std::vector<Held> found;
  std::copy_if(files_.begin(), files_.end(), std::back_inserter(found),
               [&](const Held& held) { return held.file.path == path; });
  return found;
}

std::vector<Held> HeldFiles::All() {
  const std::scoped_lock lock(mutex_);
  return files_;
}

void HeldFiles::MarkBlocks(std::uint64_t session, std::vector<bool>* wanted) {
  const std::scoped_lock lock(mutex_);
  for (const Held& held : files_) {
    if (held.session == session) {
      for (const std::uint64_t block : held.file.image.blocks) {
        (*wanted)[block] = true;
      }
    }
  }
}

}  // namespace varve
