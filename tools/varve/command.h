/// The parts of a command line, without the library that parses it: its header costs each file that
/// includes it some seconds of compile time, so only command.cc does. A new kind of argument is one
/// more member here.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "varve/status.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's name, not ours
class App;
}  // namespace CLI

namespace varve::cli {

/// Exit codes that scripts may rely on; --help lists them too.
inline constexpr int kExitOk = 0;
inline constexpr int kExitDamage = 1;  ///< Or, of `diff`, a difference.
inline constexpr int kExitNone = 1;    ///< Of `latest`: there is no checkpoint.
inline constexpr int kExitError = 2;
inline constexpr int kExitSignal = 128;  ///< Plus the number of the signal that ended the verb.

/// The outcome of a verb. `text` goes to standard output, whole and last, so that a reader of a
/// pipe never sees half of an answer that then turns into an error.
struct Outcome {
  std::string text;
  int exit_code = kExitOk;
  std::string complaint{};  ///< A sentence for standard error, if any.
};

using Verb = std::function<Result<Outcome>()>;

/// A verb that ends soon after stop is requested, with Cancelled.
using LongVerb = std::function<Result<Outcome>(const std::stop_token& stop)>;

/// The program, a verb of it (`varve ls`), or a group with verbs of its own. A handle: copies are
/// the same command, which lives as long as the Program.
///
/// The members declare arguments, and --help lists them in that order. Parsing writes given
/// arguments to `*value` and leaves the others unchanged. `*value` must live until then; the
/// function given to Runs may hold it.
class Command {
 public:
  /// Returns a command below this one, which then runs nothing itself: one of them must be named.
  /// `summary` is its line in the help of this one, `details` the end of its own help.
  [[nodiscard]] Command Add(const std::string& name, const std::string& summary,
                            const std::string& details);

  /// Sets the function to run when the command line names this command. It is called after the
  /// whole line is parsed.
  void Runs(Verb verb);

  /// Does the same as Runs for a verb that a signal may end: SIGINT (Ctrl-C), SIGTERM and SIGHUP
  /// then request stop, and its Cancelled becomes an outcome with the exit code 128 + signal.
  void RunsUntilStopped(LongVerb verb);

  /// Adds a word without dashes, identified by its place; must be given.
  void Positional(const std::string& name, std::string* value, const std::string& help);

  /// Adds a flag. `name`s begin with "--". A flag is given or not; options take one value, which
  /// --help shows as `type`.
  void Flag(const std::string& name, bool* value, const std::string& help);
  void Option(const std::string& name, const std::string& type, std::string* value,
              const std::string& help);
  /// Adds an option for which an empty value differs from none.
  void Option(const std::string& name, const std::string& type, std::optional<std::string>* value,
              const std::string& help);
  /// Adds an option that may be given more than once, with one value each: `--include a b` must not
  /// swallow what follows it.
  void Repeated(const std::string& name, const std::string& type, std::vector<std::string>* values,
                const std::string& help);
  /// Adds a number of bytes: 1000, 64kB, 5GB, 1GiB.
  void Size(const std::string& name, const std::string& type, std::uint64_t* bytes,
            const std::string& help);
  /// Adds a time in seconds, not negative; may have a fraction.
  void Seconds(const std::string& name, const std::string& type, double* seconds,
               const std::string& help);
  /// Adds one of `choices`, by its name in any case. Without the option `*value` stays as it is.
  template <typename Enum>
  void Choice(const std::string& name, const std::string& type, Enum* value,
              const std::map<std::string, Enum>& choices, const std::string& help) {
    std::map<std::string, std::uint8_t> numbers;
    for (const auto& [choice, meant] : choices) {
      static_assert(sizeof(meant) == sizeof(std::uint8_t));
      numbers[choice] = static_cast<std::uint8_t>(meant);
    }
    Number(
        name, type, numbers, [value](std::uint8_t number) { *value = static_cast<Enum>(number); },
        help);
  }
  /// The same; must be given.
  template <typename Enum>
  void RequiredChoice(const std::string& name, const std::string& type, Enum* value,
                      const std::map<std::string, Enum>& choices, const std::string& help) {
    Choice(name, type, value, choices, help);
    Require(name);
  }

 private:
  friend class Program;
  Command(CLI::App* app, Verb* chosen) : app_(app), chosen_(chosen) {}

  void Number(const std::string& name, const std::string& type,
              const std::map<std::string, std::uint8_t>& numbers,
              const std::function<void(std::uint8_t)>& store, const std::string& help);
  void Require(const std::string& name);

  CLI::App* app_;
  Verb* chosen_;  // Of the program.
};

/// A command line as a whole.
class Program {
 public:
  struct Texts {
    std::string name;
    std::string description;  ///< The begin of --help.
    std::string details;      ///< The end of it.
    std::string version;      ///< What --version prints.
  };

  explicit Program(const Texts& texts);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /// Returns the command to which verbs are added.
  [[nodiscard]] Command root();

  /// Parses, and runs the verb that was named. Help and version are outcomes like any other; wrong
  /// usage is InvalidArgument, with a message that says which help to ask for.
  Result<Outcome> Run(int argc, const char* const* argv);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace varve::cli
