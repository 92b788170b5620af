#include "agent/shared_memory.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <string>
#include <thread>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/file_limit.h"
#include "base/threads.h"
#include "pipeline/buffer_pool.h"
#include "pipeline/huge_pages.h"

namespace varve {
namespace {

// The plans of ten thousand ranks take less.
constexpr std::int64_t kMaxBlobBytes = std::int64_t{16} << 30;
constexpr std::size_t kPageBytes = 4096;

Status NoMemory(const std::string& what) {
  const int error = errno;
  return Status(StatusCode::kOutOfSpace, what + ": " + std::strerror(error))
      .With({.system_error = error});
}

Result<FileDescriptor> MakeMemory(const char* name) {
  FileDescriptor fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) {
    return NoMemory("make shared memory");
  }
  return fd;
}

/// Returns the size of memory that is sealed against shrinking; an error for any other.
Result<std::int64_t> SealedSize(const FileDescriptor& fd) {
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  struct stat status{};
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(fd.get(), &status) != 0) {
    return DataLoss("shared memory that could be cut short");
  }
  return status.st_size;
}

}  // namespace

Result<FileDescriptor> MakeBlob(std::string_view bytes) {
  if (ExceedsFileLimit(bytes.size())) {
    errno = EFBIG;
    return NoMemory("write " + std::to_string(bytes.size()) + " bytes to shared memory");
  }
  VARVE_ASSIGN_OR_RETURN(FileDescriptor blob, MakeMemory("varve-message"));
  while (!bytes.empty()) {
    const ssize_t written = ::write(blob.get(), bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) {
      return NoMemory("write " + std::to_string(bytes.size()) + " bytes to shared memory");
    }
    bytes.remove_prefix(written > 0 ? static_cast<std::size_t>(written) : 0);
  }
  if (::fcntl(blob.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) != 0) {
    return NoMemory("seal shared memory");
  }
  return blob;
}

Result<Bytes> ReadBlob(const FileDescriptor& blob) {
  VARVE_ASSIGN_OR_RETURN(const std::int64_t size, SealedSize(blob));
  if (size > kMaxBlobBytes) {
    return DataLoss("a message of " + std::to_string(size) + " bytes");
  }
  Bytes bytes(static_cast<std::size_t>(size), '\0');
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t got =
        ::pread(blob.get(), bytes.data() + at, bytes.size() - at, static_cast<off_t>(at));
    if (got <= 0 && !(got < 0 && errno == EINTR)) {
      return DataLoss("a message in shared memory that cannot be read");
    }
    at += got > 0 ? static_cast<std::size_t>(got) : 0;
  }
  return bytes;
}

Result<std::shared_ptr<PoolMemory>> PoolMemory::Map(FileDescriptor fd, std::uint64_t blocks) {
  VARVE_ASSIGN_OR_RETURN(const std::int64_t size, SealedSize(fd));
  if (size <= 0 || static_cast<std::uint64_t>(size) % kPoolBlockBytes != 0 ||
      static_cast<std::uint64_t>(size) / kPoolBlockBytes != blocks) {
    return DataLoss("staging memory of " + std::to_string(size) + " bytes, which is not " +
                    std::to_string(blocks) + " blocks");
  }
  const std::byte* const base =
      MapForHugePages(static_cast<std::uint64_t>(size), PROT_READ, fd.get());
  if (base == nullptr) {
    return NoMemory("map staging memory of " + std::to_string(size) + " bytes");
  }
  return std::shared_ptr<PoolMemory>(new PoolMemory(std::move(fd), base, blocks));
}

PoolMemory::~PoolMemory() {
  const auto unmap = [base = const_cast<std::byte*>(base_), size = blocks_ * kPoolBlockBytes] {
    ::munmap(base, size);
  };
  // In a thread of its own: the system unmaps small pages one by one (measured: 0.03 s a GiB, a
  // sixth of a load), while a load is to return and an agent is to answer messages.
  try {
    StartThread<std::thread>(unmap).detach();
  } catch (const std::exception&) {  // No thread, or no memory for one.
    unmap();
  }
}

std::vector<const std::byte*> PoolMemory::At(const std::vector<std::uint64_t>& numbers) const {
  std::vector<const std::byte*> places;
  places.reserve(numbers.size());
  for (const std::uint64_t number : numbers) {
    places.push_back(base_ + number * kPoolBlockBytes);
  }
  return places;
}

bool PoolMemory::IsSameAs(const PoolMemory& other) const {
  struct stat mine{};
  struct stat theirs{};
  return ::fstat(fd_.get(), &mine) == 0 && ::fstat(other.fd_.get(), &theirs) == 0 &&
         mine.st_dev == theirs.st_dev && mine.st_ino == theirs.st_ino;
}

void PoolMemory::Release(const std::vector<bool>& wanted) {
  for (std::uint64_t block = 0; block < blocks_; ++block) {
    if (block >= wanted.size() || !wanted[block]) {
      // Best effort: memory that stays is given back at the end.
      (void)::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                        static_cast<off_t>(block * kPoolBlockBytes), kPoolBlockBytes);
    }
  }
}

Result<std::shared_ptr<ValidityPage>> ValidityPage::Make() {
  VARVE_ASSIGN_OR_RETURN(FileDescriptor fd, MakeMemory("varve-validity"));
  if (::ftruncate(fd.get(), kPageBytes) != 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return NoMemory("make a page of shared memory");
  }
  VARVE_ASSIGN_OR_RETURN(auto page, Map(std::move(fd)));
  std::atomic_ref<std::uint32_t>(*static_cast<std::uint32_t*>(page->page_)).store(1);
  return page;
}

Result<std::shared_ptr<ValidityPage>> ValidityPage::Map(FileDescriptor fd) {
  VARVE_ASSIGN_OR_RETURN(const std::int64_t size, SealedSize(fd));
  if (size < static_cast<std::int64_t>(kPageBytes)) {
    return DataLoss("a page of shared memory that is none");
  }
  void* const page = ::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (page == MAP_FAILED) {
    return NoMemory("map a page of shared memory");
  }
  return std::shared_ptr<ValidityPage>(new ValidityPage(std::move(fd), page));
}

ValidityPage::~ValidityPage() { ::munmap(page_, kPageBytes); }

bool ValidityPage::Valid() const {
  // The bytes were read first. A process that replaces them revokes the page before that.
  std::atomic_thread_fence(std::memory_order_acquire);
  return std::atomic_ref<std::uint32_t>(*static_cast<std::uint32_t*>(page_))
             .load(std::memory_order_relaxed) == 1;
}

void ValidityPage::Revoke() {
  std::atomic_ref<std::uint32_t>(*static_cast<std::uint32_t*>(page_)).store(0);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // Before the bytes are replaced.
}

}  // namespace varve
