/// Verifying what other software wrote.
#pragma once

#include "checkpoint/open.h"
#include "varve/catalogue.h"
#include "varve/options.h"
#include "varve/storage.h"

namespace varve {

/// See Verify. `opened` is of another format than ours.
VerifyReport VerifyForeign(Storage& storage, const OpenedIndex& opened,
                           const ProgressFunction& progress);

}  // namespace varve
