/// The storage of all names, for those who must see what a server has now.
#pragma once

#include "varve/storage.h"

namespace varve {

/// Returns a storage that reads from the servers themselves what AnyStorage may read from this
/// host's cache; any other storage is returned as it is. A check of a checkpoint reads so. Names
/// are resolved before: it is not AnyStorage itself.
Storage& WithoutCache(Storage& storage);

}  // namespace varve
