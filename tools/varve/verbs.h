/// The verbs of the command line. Each has a file of its own that declares its options, runs it
/// and renders what came out; main.cc prints and turns errors into exit codes.
#pragma once

#include <functional>
#include <string>

#include <CLI/CLI.hpp>

#include "varve/status.h"

namespace varve::cli {

/// What scripts may rely on; --help says the same.
inline constexpr int kExitOk = 0;
inline constexpr int kExitDamage = 1;  ///< Or, of `diff`, a difference.
inline constexpr int kExitError = 2;

/// What a verb found out. `text` goes to standard output, whole and last, so that a reader of a
/// pipe never sees half of an answer that then turns into an error.
struct Outcome {
  std::string text;
  int exit_code = kExitOk;
};

using Verb = std::function<Result<Outcome>()>;

/// Each adds a subcommand to `app`; when the command line names it, parsing sets `*chosen`.
void AddLs(CLI::App& app, Verb* chosen);
void AddInspect(CLI::App& app, Verb* chosen);
void AddVerify(CLI::App& app, Verb* chosen);
void AddRepair(CLI::App& app, Verb* chosen);
void AddGc(CLI::App& app, Verb* chosen);
void AddExport(CLI::App& app, Verb* chosen);
void AddConvert(CLI::App& app, Verb* chosen);
void AddDiff(CLI::App& app, Verb* chosen);

}  // namespace varve::cli
