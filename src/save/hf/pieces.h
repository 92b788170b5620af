/// A folder of whole tensors of which the ranks hold shards, in a storage that takes a file from
/// one writer:
///  1. Each rank writes what it holds as a data file of Varve's own format, into kPiecesDirectory
///     in the save's data directory. No other save writes there.
///  2. When all are there, the coordinator writes their index beside them.
///  3. Each rank reads the tensors of its share of the folder's files, with their checksums
///     compared, and writes those files.
///  4. The coordinator removes the pieces and publishes the folder.
/// The bytes are sent twice, and read once: with whole blocks of the pieces around them, which are
/// small where there are many ranks. A crash before the publication leaves a data directory that no
/// index names, with the pieces in it.
#pragma once

#include <string>
#include <string_view>

#include "save/settled.h"
#include "save/written_format.h"
#include "varve/status.h"

namespace varve {

inline constexpr std::string_view kPiecesDirectory = "varve-pieces";

/// Makes the settled plan one of pieces: tied tensors are stored once. Errors: InvalidArgument
/// where the pieces' index or headers would be too large.
Status PreparePieces(SettledSave* settled);

/// Lays out this rank's piece: as WrittenFormat::lay_out.
Result<RankFile> LayOutPiece(const State* state, const SettledSave& settled);

/// Steps 2 and 3.
extern const JoinedFiles kJoinedHfFiles;

}  // namespace varve
