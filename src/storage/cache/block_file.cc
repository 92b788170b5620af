#include "storage/cache/block_file.h"

#include <array>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/file_descriptor.h"
#include "base/file_limit.h"

namespace varve::cache {
namespace {

constexpr std::string_view kMagic = "VARVEBLK";
constexpr std::uint32_t kVersion = 1;

std::string HeaderOf(const BlockName& name, std::uint32_t size, std::uint32_t crc) {
  std::string header;
  ByteWriter out(&header);
  out.Raw(kMagic);
  out.U32(kVersion);
  out.U32(size);
  for (const std::uint8_t byte : name.file.bytes) {
    out.U8(byte);
  }
  out.U64(name.index);
  out.U32(crc);
  out.U32(Crc32c(AsByteSpan(header)));
  header.resize(kBlockHeaderBytes, '\0');
  return header;
}

std::string ErrorText(const std::string& path, int error) {
  return "write " + path + ": " + std::strerror(error);
}

/// Reads header and block with one call for each piece that comes. Returns false at an early end.
bool ReadAll(int fd, std::span<char> header, std::span<std::byte> block) {
  std::size_t done = 0;
  const std::size_t all = header.size() + block.size();
  while (done < all) {
    std::array<iovec, 2> pieces{};
    int count = 0;
    if (done < header.size()) {
      pieces[0] = {header.data() + done, header.size() - done};
      count = 1;
    }
    const std::size_t into = done < header.size() ? 0 : done - header.size();
    if (into < block.size()) {
      pieces[static_cast<std::size_t>(count++)] = {block.data() + into, block.size() - into};
    }
    const ssize_t got = ::preadv(fd, pieces.data(), count, static_cast<off_t>(done));
    if (got <= 0) {
      if (got < 0 && errno == EINTR) {
        continue;
      }
      return false;
    }
    done += static_cast<std::size_t>(got);
  }
  return true;
}

Status WriteAll(int fd, const std::string& path, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      const int error = written < 0 ? errno : ENOSPC;
      return error == ENOSPC || error == EDQUOT
                 ? Status(StatusCode::kOutOfSpace, ErrorText(path, error))
                 : Unavailable(ErrorText(path, error));
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return Status::Ok();
}

}  // namespace

Found ReadBlockFile(const std::string& path, const BlockName& name, std::span<std::byte> block) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.valid()) {
    return errno == ELOOP ? Found::kDamaged : Found::kNothing;
  }
  struct stat info{};
  if (::fstat(file.get(), &info) != 0) {
    return Found::kNothing;
  }
  std::array<char, kBlockHeaderBytes> header{};
  if (static_cast<std::uint64_t>(info.st_size) != kBlockHeaderBytes + block.size() ||
      !ReadAll(file.get(), header, block)) {
    return Found::kDamaged;
  }
  const std::string wanted =
      HeaderOf(name, static_cast<std::uint32_t>(block.size()), Crc32c(block));
  if (std::string_view(header.data(), header.size()) != wanted) {
    return Found::kDamaged;
  }
  ::futimens(file.get(), nullptr);  // The oldest go first; a failure makes this one go early.
  return Found::kWhole;
}

Status WriteBlockFile(const std::string& path, const BlockName& name,
                      std::span<const std::byte> block) {
  constexpr mode_t kOwnerOnly = 0600;
  FileDescriptor file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, kOwnerOnly));
  if (!file.valid()) {
    return errno == ENOSPC || errno == EDQUOT
               ? Status(StatusCode::kOutOfSpace, ErrorText(path, errno))
               : Unavailable(ErrorText(path, errno));
  }
  const std::string header =
      HeaderOf(name, static_cast<std::uint32_t>(block.size()), Crc32c(block));
  Status written = ExceedsFileLimit(header.size() + block.size())
                       ? Unavailable(ErrorText(path, EFBIG))
                       : WriteAll(file.get(), path, AsByteSpan(header));
  if (written.ok()) {
    written = WriteAll(file.get(), path, block);
  }
  if (!written.ok()) {
    ::unlink(path.c_str());
  }
  return written;
}

}  // namespace varve::cache
