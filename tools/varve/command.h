/// What the command line is made of, without the library that parses it: that header costs whoever
/// reads it some seconds, so only command.cc does. An argument of a kind that no verb has had yet
/// is one more member here.
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

/// What scripts may rely on; --help says the same.
inline constexpr int kExitOk = 0;
inline constexpr int kExitDamage = 1;  ///< Or, of `diff`, a difference.
inline constexpr int kExitNone = 1;    ///< Of `latest`: there is no checkpoint.
inline constexpr int kExitError = 2;
inline constexpr int kExitSignal = 128;  ///< Plus the number of the signal that ended the verb.

/// What a verb found out. `text` goes to standard output, whole and last, so that a reader of a
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
/// The members declare arguments, and --help lists them in that order. Parsing writes what was
/// given to `*value` and leaves the rest alone; what `value` points to must live until then, best
/// by being held by the function given to Runs.
class Command {
 public:
  /// A command below this one, which then runs nothing itself: one of them must be named.
  /// `summary` is its line in the help of this one, `details` the end of its own help.
  [[nodiscard]] Command Add(const std::string& name, const std::string& summary,
                            const std::string& details);

  /// What to do when the command line names this command. Called after all of it is parsed.
  void Runs(Verb verb);

  /// As Runs, for a verb that a signal may end: SIGINT (Ctrl-C), SIGTERM and SIGHUP then request
  /// stop, and its Cancelled becomes an outcome with the exit code 128 + signal.
  void RunsUntilStopped(LongVerb verb);

  /// A word without dashes, told from others by its place; must be given.
  void Positional(const std::string& name, std::string* value, const std::string& help);

  /// `name`s begin with "--". A flag is there or not; options take one value, which --help shows
  /// as `type`.
  void Flag(const std::string& name, bool* value, const std::string& help);
  void Option(const std::string& name, const std::string& type, std::string* value,
              const std::string& help);
  /// Tells an empty value from none.
  void Option(const std::string& name, const std::string& type, std::optional<std::string>* value,
              const std::string& help);
  /// May be given more than once, with one value each: `--include a b` must not swallow what
  /// follows it.
  void Repeated(const std::string& name, const std::string& type, std::vector<std::string>* values,
                const std::string& help);
  /// A number of bytes: 1000, 64kB, 5GB, 1GiB.
  void Size(const std::string& name, const std::string& type, std::uint64_t* bytes,
            const std::string& help);
  /// A time, not negative; parts of a second too.
  void Seconds(const std::string& name, const std::string& type, double* seconds,
               const std::string& help);
  /// One of `choices`, by its name in any case; must be given.
  template <typename Enum>
  void RequiredChoice(const std::string& name, const std::string& type, Enum* value,
                      const std::map<std::string, Enum>& choices, const std::string& help) {
    std::map<std::string, std::uint8_t> numbers;
    for (const auto& [choice, meant] : choices) {
      static_assert(sizeof(meant) == sizeof(std::uint8_t));
      numbers[choice] = static_cast<std::uint8_t>(meant);
    }
    RequiredNumber(
        name, type, numbers, [value](std::uint8_t number) { *value = static_cast<Enum>(number); },
        help);
  }

 private:
  friend class Program;
  Command(CLI::App* app, Verb* chosen) : app_(app), chosen_(chosen) {}

  void RequiredNumber(const std::string& name, const std::string& type,
                      const std::map<std::string, std::uint8_t>& numbers,
                      const std::function<void(std::uint8_t)>& store, const std::string& help);

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

  /// To add verbs to.
  [[nodiscard]] Command root();

  /// Parses, and runs the verb that was named. Help and version are outcomes like any other; wrong
  /// usage is InvalidArgument, with a message that says which help to ask for.
  Result<Outcome> Run(int argc, const char* const* argv);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace varve::cli
