/// The claim of an upload whose files have fixed names, in a storage without renames, and what is
/// left of one that died. The account of the steps is at the top of publish/fixed_names.cc.
#pragma once

#include <cstdint>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "publish/save_id.h"
#include "varve/catalogue.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// Returns the content of a claim: a line with the id, and one for each name of a file that the
/// upload writes, the mark last.
std::string EncodeUploadClaim(const SaveId& id, const std::vector<std::string>& names);

/// Reads the claim in `directory`. Errors: NotFound where there is none.
Result<std::string> ReadUploadClaim(Storage& storage, const std::string& directory);

/// Checks that the claim in `directory` says `claim`, before a rank writes there: one that stood
/// still may come after the save has been given up, and the directory is another's. Errors:
/// FailedPrecondition.
Status CheckUploadClaim(Storage& storage, const std::string& directory, const std::string& claim);

/// Removes what an upload to `path` that died has left: the files that its claim names, and the
/// claim. Where the mark is there, the claim alone: the upload was whole. An upload has died when
/// its claim and all that it has written are more than a day old. Adds to `report`.
Status CollectUpload(const std::string& path, DryRun dry_run, Storage& storage,
                     const std::stop_token& stop, GarbageReport* report);

}  // namespace varve
