/// Open files and locks of the local file system, shared by the files of PosixStorage.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "base/file_descriptor.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// An errno as a Status that says what was being done to which file.
Status ErrnoStatus(std::string_view action, const std::string& name, int error);

/// open(2) with O_CLOEXEC, again after EINTR; invalid with errno set when it fails.
FileDescriptor OpenDescriptor(const std::string& name, int flags, mode_t mode = 0666);

/// See Storage::OpenForWrite and OpenForRead.
Result<std::unique_ptr<WritableFile>> OpenPosixForWrite(const std::string& name,
                                                        const WriteOptions& options);
Result<std::unique_ptr<ReadableFile>> OpenPosixForRead(const std::string& name);

/// Links and empty directories of the local file system. Never destroyed.
StorageExtras PosixExtras();

/// See Storage::Lock.
Result<std::unique_ptr<StorageLock>> AcquirePosixLock(const std::string& name);

}  // namespace varve
