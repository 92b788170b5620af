/// Finds the ranks that need the same bytes of a checkpoint, so that storage is asked for them
/// once. Pure functions, but for the name of the node.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/fields.h"
#include "pipeline/file_reader.h"
#include "varve/checkpoint.h"
#include "varve/hash.h"

namespace varve {

/// The message in which a rank describes its reads to the coordinator.
struct ReadNeed {
  std::string node;         ///< Empty where the rank shares no reads.
  std::string address;      ///< At which it reads for others, an encoded Address; empty: nowhere.
  bool remote = false;      ///< The files are on a server: no page cache keeps them.
  Hash128 files;            ///< Of the checkpoint's files: equal where they have the same bytes.
  Hash128 parts;            ///< Of the parts of chunks: equal where two ranks need the same.
  std::uint64_t bytes = 0;  ///< To be read, in whole checksum blocks. An estimate.
  /// A bit for each stretch of the checkpoint's files, laid end to end: the rank needs some of it.
  std::string stretches;
};

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, ReadNeed>& need) {
  archive(need.node, need.address, need.remote, need.files.bytes, need.parts.bytes, need.bytes,
          need.stretches);
}

/// With which others a rank shares its reads.
struct ReadGroup {
  SharedBy by_cache;  ///< The ranks of its node, through the page cache.
  /// The addresses of the ranks that read for each other, by node; an empty one of a rank that this
  /// one never asks. Empty where this rank is in no group.
  std::vector<std::vector<std::string>> nodes{};
  std::uint32_t node = 0;   ///< This rank's, in `nodes`,
  std::uint32_t place = 0;  ///< and its place among the node's.
  bool remote = false;      ///< As in ReadNeed.
};

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, ReadGroup>& group) {
  archive(group.by_cache.place, group.by_cache.ranks, group.nodes, group.node, group.place,
          group.remote);
}

/// Returns the need of a rank, without address, for stored tensors to fill its targets, which fit
/// them. Tensors with several values are left out. It is empty where it is too little to make a
/// difference, or where the targets cannot be filled.
ReadNeed NeedOf(const Metadata& metadata, std::span<const TargetTensor> targets);

/// Returns a digest by which ranks find that their files have the same bytes. Where those have no
/// checksums, `directory` is part of it: it has to be a name on a server. Nothing where neither
/// tells.
std::optional<Hash128> DigestOfFiles(const Metadata& metadata, const std::string& directory,
                                     bool remote);

/// Returns the group of each rank. All ranks form one group where, each reading for itself, they
/// would read a tenth more than there is in the stretches that they need: then some bytes would be
/// read twice. Else ranks that need the same parts form a group. The ranks of one node share reads
/// by its page cache. Ranks of several nodes read for each other, at most 32 nodes together, and so
/// do ranks whose files are on a server.
std::vector<ReadGroup> ShareReads(const Metadata& metadata, std::span<const ReadNeed> needs);

}  // namespace varve
