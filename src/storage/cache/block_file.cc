#include "storage/cache/block_file.h"

#include <array>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/checksum.h"
#include "storage/posix_files.h"

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

}  // namespace

Found ReadBlockFile(const std::string& path, const BlockName& name, std::span<std::byte> block) {
  const auto file = OpenPosixForRead(path);
  if (!file.ok()) {
    return Found::kNothing;
  }
  std::array<std::byte, kBlockHeaderBytes> header{};
  if ((*file)->size() != kBlockHeaderBytes + block.size() ||
      !(*file)->ReadAt(0, std::array{std::span<std::byte>(header), block}).ok()) {
    return Found::kDamaged;
  }
  const std::string wanted =
      HeaderOf(name, static_cast<std::uint32_t>(block.size()), Crc32c(block));
  if (std::memcmp(header.data(), wanted.data(), header.size()) != 0) {
    return Found::kDamaged;
  }
  // The oldest go first; a failure makes this one go early.
  (void)::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
  return Found::kWhole;
}

Status WriteBlockFile(const std::string& path, const BlockName& name,
                      std::span<const std::byte> block) {
  VARVE_ASSIGN_OR_RETURN(const auto file, OpenPosixForWrite(path, {}));
  const std::string header =
      HeaderOf(name, static_cast<std::uint32_t>(block.size()), Crc32c(block));
  Status written = file->WriteAt(0, AsByteSpan(header));
  if (written.ok()) {
    written = file->WriteAt(header.size(), block);
  }
  if (!written.ok()) {
    ::unlink(path.c_str());
  }
  return written;
}

}  // namespace varve::cache
