/// Checkpoints of other software, recognised by their content.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "catalogue/opened.h"
#include "interop/safetensors/hf_checksums.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// Opens what stands at `path` if it is one of
///  - a checkpoint of hfai.checkpoint 2.0.0: a directory of `PART_000.pt` and so on;
///  - a PyTorch Distributed Checkpoint: a directory with `.metadata`, or with the `__R.metadata` of
///    ranks 0 to the last (saved without collectives);
///  - a folder of safetensors files, with or without `model.safetensors.index.json`;
///  - a folder with `pytorch_model.bin`, or with the files that its `.index.json` names;
///  - one safetensors file;
///  - one file of torch.save.
/// Reads indexes only, and runs nothing they say. File sizes are
/// what storage says; an extent beyond its file's end, or a file that is missing, is DataLoss.
/// Errors: NotFound when it is none of these; as the decoders in interop/; FailedPrecondition for a
/// checkpoint that lacks the file of a rank.
Result<OpenedIndex> OpenForeign(Storage& storage, const std::string& path);

/// Does the same for a directory of a storage that cannot list it, by the names in KnownEntries.
Result<OpenedIndex> OpenForeignUnlisted(Storage& storage, const std::string& path);

/// Opens one file of any known kind, whatever its name. Errors: as OpenForeign.
Result<OpenedIndex> OpenForeignFile(Storage& storage, const std::string& path);

/// Opens what is there of a directory of which each of `world_size` ranks has written its own
/// files; see CheckpointReader::OpenOwnRanks.
Result<OpenedIndex> OpenForeignOfOwnRanks(Storage& storage, const std::string& path,
                                          std::uint32_t world_size);

/// Returns the format that the names in a directory are of, or nothing. Opens no index: for what to
/// call one that cannot be read.
std::optional<Format> ForeignFormat(Storage& storage, const std::string& path,
                                    const std::vector<DirectoryEntry>& entries);

inline constexpr std::string_view kDcpIndexName = ".metadata";
inline constexpr std::string_view kHfIndexName = "model.safetensors.index.json";
inline constexpr std::string_view kHfTorchName = "pytorch_model.bin";
inline constexpr std::string_view kHfTorchIndexName = "pytorch_model.bin.index.json";

/// Returns true for `.metadata` and for `__R.metadata`.
bool IsDcpIndexName(std::string_view name);

/// Returns the names of the files that one index of DCP mentions, whether they are there or not.
/// Errors: those of reading an index.
Result<std::vector<std::string>> NamesInDcpIndex(Storage& storage, const std::string& path);

/// Returns the names of the safetensors files that the index of a Hugging Face folder mentions.
/// Errors: those of reading an index.
Result<std::vector<std::string>> NamesInHfIndex(Storage& storage, const std::string& path);

/// Returns the names of the files that the index in this directory mentions, side files among them,
/// whether they are there or not; nothing where there is no index of DCP or of a Hugging Face
/// folder. Errors: those of reading an index.
Result<std::vector<std::string>> ForeignFileNames(Storage& storage, const std::string& directory);

/// Reads model.varve-checksums.json, which is beside the index of the folder or, where the `files`
/// that the index names are in a data directory, in that. Errors: NotFound where there is none; as
/// DecodeHfChecksums.
Result<HfChecksums> ReadHfChecksums(Storage& storage, const std::string& directory,
                                    const std::vector<std::string>& files);

/// Looks for a file of a folder that Varve wrote in Hugging Face's layout which another program has
/// written since: it is whole, and neither its size and header nor its name are what
/// model.varve-checksums.json has. Damage never looks like that, but for a few bits of a header
/// that can still be read. Returns an empty name where there is none. Errors: as ReadHfChecksums.
Result<std::string> FindRewrittenHfFile(Storage& storage, const std::string& directory);

/// Returns true for a folder of Hugging Face's tools, which says itself that it is one.
bool HasHfIndex(const std::vector<DirectoryEntry>& entries);

}  // namespace varve
