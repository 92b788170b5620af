/// Open files and locks of the local file system, shared by the files of PosixStorage.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/file_descriptor.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// Returns an errno as a Status that names the action and the file.
Status ErrnoStatus(std::string_view action, const std::string& name, int error);

/// Calls open(2) with O_CLOEXEC, again after EINTR. Returns an invalid descriptor and sets errno
/// when it fails.
FileDescriptor OpenDescriptor(const std::string& name, int flags);

/// See Storage::OpenForWrite and OpenForRead.
Result<std::unique_ptr<WritableFile>> OpenPosixForWrite(const std::string& name,
                                                        const WriteOptions& options);
Result<std::unique_ptr<ReadableFile>> OpenPosixForRead(const std::string& name);

/// See Storage::Lock.
Result<std::unique_ptr<StorageLock>> AcquirePosixLock(const std::string& name);
FileLocks* PosixFileLocks();

}  // namespace varve
