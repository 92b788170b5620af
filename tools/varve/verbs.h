/// The verbs of the command line. Each has a file of its own that declares its options, runs it
/// and renders what came out; main.cc prints and turns errors into exit codes.
#pragma once

#include "command.h"

namespace varve::cli {

/// Each adds a verb to `program`.
void AddLs(Command program);
void AddInspect(Command program);
void AddVerify(Command program);
void AddRepair(Command program);
void AddGc(Command program);
void AddRm(Command program);
void AddLatest(Command program);
void AddPrune(Command program);
void AddPin(Command program);
void AddUnpin(Command program);
void AddAdvise(Command program);
void AddReport(Command program);
void AddExport(Command program);
void AddConvert(Command program);
void AddUnshard(Command program);
void AddDiff(Command program);
void AddUpload(Command program);
void AddAgent(Command program);

}  // namespace varve::cli
