/// Paths as callers give them.
#pragma once

#include <string>
#include <string_view>

#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// Returns the name by which `storage` knows `path`, good for as long as the caller likes: the
/// working directory may change afterwards. Every public function that takes a path begins with
/// this.
///   - On PosixStorage a relative path is joined with the working directory. Nothing else is
///     changed: ".." is not collapsed, for behind a symbolic link it leads elsewhere. Names in
///     other storages are their own.
///   - "file:///x" and "file://localhost/x" are "/x". The rest is taken as it stands: "%20" is
///     three characters.
///   - Any other "scheme://" is refused. A directory of such a name is "./scheme://x".
/// Errors: InvalidArgument for another scheme, naming those there are; for "file://" of another
/// host or with a relative path; for an empty path, and one with a NUL character. Unavailable when
/// a relative path is given and the working directory has no name (it was removed).
Result<std::string> ResolvePath(std::string_view path, const Storage& storage = PosixStorage());

}  // namespace varve
