/// The formats that Varve knows, and checkpoints of any of them, recognised by their content.
#pragma once

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "catalogue/opened.h"
#include "varve/catalogue.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// Opens what stands at `path` if it is one of
///  - a checkpoint of Varve's own whose record has another name than varve.json, or that has none:
///    OpenIndex tries that first;
///  - a checkpoint of hfai.checkpoint 2.0.0: a directory of `PART_000.pt` and so on;
///  - a PyTorch Distributed Checkpoint: a directory with `.metadata`, or with the `__R.metadata` of
///    ranks 0 to the last (saved without collectives);
///  - a directory in one of OLMo's layouts (docs/other-formats.md);
///  - a folder of safetensors files, with or without `model.safetensors.index.json`;
///  - a folder with `pytorch_model.bin`, or with the files that its `.index.json` names;
///  - one safetensors file;
///  - one file of torch.save.
/// Reads indexes only, and runs nothing they say. File sizes are
/// what storage says; an extent beyond its file's end, or a file that is missing, is DataLoss.
/// Errors: NotFound when it is none of these; as the decoders in interop/; FailedPrecondition for a
/// checkpoint that lacks the file of a rank.
Result<OpenedIndex> OpenKnown(Storage& storage, const std::string& path,
                              const std::stop_token& stop = {});

/// Returns what a listing of a directory would hold of the names that checkpoints of other software
/// are recognised by, sorted, where the storage has no lists. Asks the storage for each, in the
/// order of the table of formats, and stops at the first. Names with a rank's number come last, for
/// few checkpoints have them: parts that are numbered from 0 on are followed to the first that is
/// missing. A name that the storage refuses to tell of counts as missing. Errors: NotFound where
/// there is none, saying what was looked for and what cannot be found without a list; those of the
/// storage where it does not answer.
Result<std::vector<DirectoryEntry>> KnownEntries(Storage& storage, const std::string& directory);

/// Does the same as OpenKnown for a directory of a storage that cannot list it, by the names in
/// KnownEntries.
Result<OpenedIndex> OpenKnownUnlisted(Storage& storage, const std::string& path);

/// Opens one file of any known kind, whatever its name: formats/file.cc. Errors: as OpenKnown.
Result<OpenedIndex> OpenKnownFile(Storage& storage, const std::string& path);

/// Opens a directory as OpenKnown does, with what is left where files of DCP's or of a Hugging Face
/// folder are missing or too short: `damages` gets those.
Result<OpenedIndex> OpenDespiteDamage(Storage& storage, const std::string& path,
                                      std::vector<Damage>* damages, const std::stop_token& stop);

/// Opens what is there of a directory of which each of `world_size` ranks has written its own
/// files; see CheckpointReader::OpenOwnRanks.
Result<OpenedIndex> OpenKnownOfOwnRanks(Storage& storage, const std::string& path,
                                        std::uint32_t world_size);

/// Returns the format that the names in a directory are of, or nothing. Opens no index: for what to
/// call one that cannot be read.
std::optional<Format> FormatOf(Storage& storage, const std::string& path,
                               const std::vector<DirectoryEntry>& entries);

/// Returns true for the files of a model that lie under names which any program gives: they make a
/// directory a checkpoint only where it holds no other.
bool IsPlainModel(Storage& storage, const std::string& path,
                  const std::vector<DirectoryEntry>& entries);

/// Returns the names of the files that one index mentions, side files among them, whether they are
/// there or not, relative to its directory; nothing for a file that is no index with names. Errors:
/// those of reading an index.
Result<std::vector<std::string>> NamesInIndex(Storage& storage, const std::string& path);

/// Returns the same of all indexes of the checkpoint in a directory with these entries. Errors: as
/// NamesInIndex.
Result<std::vector<std::string>> IndexedNames(Storage& storage, const std::string& directory,
                                              const std::vector<DirectoryEntry>& entries);
/// Lists the directory. Errors: also those of Storage::List.
Result<std::vector<std::string>> IndexedNames(Storage& storage, const std::string& directory);

}  // namespace varve
