#include "command.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/nearest.h"
#include "interrupt.h"
#include "varve/stop.h"

namespace varve::cli {
namespace {

// Wide enough for most names of options; help texts begin in the column behind it.
constexpr std::size_t kNameColumns = 26;

/// Returns the commands that the line has named so far: "varve", "varve ls".
std::string Named(const CLI::App& app) {
  const auto below = app.get_subcommands();
  return app.get_name() + (below.empty() ? "" : " " + Named(*below.front()));
}

/// Returns the long options of a command, with their dashes.
std::vector<std::string> OptionsOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
  }
  return names;
}

std::vector<std::string> VerbsOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* below : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(below->get_name());
  }
  return names;
}

/// Returns "a, b, c".
std::string Joined(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) {
    all += (all.empty() ? "" : ", ") + name;
  }
  return all;
}

/// Returns the first word of the line that is no command or option, and the nearest that is one.
/// Empty where all of them are known, or nothing is near.
std::string Suggestion(const CLI::App& program, int argc, const char* const* argv) {
  const CLI::App* command = &program;
  for (int i = 1; i < argc; ++i) {
    const std::string word(argv[i]);
    if (word.starts_with("--")) {
      const auto known = OptionsOf(*command);
      const std::string name = word.substr(0, word.find('='));
      if (std::find(known.begin(), known.end(), name) == known.end()) {
        const std::string nearest = Nearest(name, known);
        return nearest.empty() ? "" : "did you mean \"" + nearest + "\"?";
      }
      continue;
    }
    const auto verbs = VerbsOf(*command);
    if (verbs.empty()) {
      continue;  // A value, or what the verb is to work on.
    }
    if (std::find(verbs.begin(), verbs.end(), word) != verbs.end()) {
      command = command->get_subcommand(word);
      continue;
    }
    const std::string nearest = Nearest(word, verbs);
    return "there is no command \"" + word + "\": " +
           (nearest.empty() ? "want one of " + Joined(verbs) : "did you mean \"" + nearest + "\"?");
  }
  return {};
}

/// Returns one line that says what is wrong with the command line.
std::string Complaint(const CLI::App& program, const CLI::ParseError& error, int argc,
                      const char* const* argv) {
  std::string text = error.what();
  std::replace(text.begin(), text.end(), '\n', ' ');
  const std::string suggestion = Suggestion(program, argc, argv);
  if (suggestion.starts_with("there is no command")) {
    text = suggestion;
  } else if (!suggestion.empty()) {
    text += "; " + suggestion;
  }
  return text + "; see `" + Named(program) + " --help`";
}

}  // namespace

// ---- one command ----

Command Command::Add(const std::string& name, const std::string& summary,
                     const std::string& details) {
  app_->require_subcommand(1);
  CLI::App* below = app_->add_subcommand(name, summary);
  below->footer(details);  // Else it would inherit ours.
  return {below, chosen_};
}

void Command::Runs(Verb verb) {
  app_->callback([chosen = chosen_, verb = std::move(verb)] { *chosen = verb; });
}

void Command::RunsUntilStopped(LongVerb verb) {
  Runs([verb = std::move(verb)]() -> Result<Outcome> {
    const Interrupt interrupt;
    const ScopedStop scoped(interrupt.token());
    auto outcome = verb(interrupt.token());
    if (outcome.status().code() == StatusCode::kCancelled && interrupt.signal() != 0) {
      return Outcome{.text = "",
                     .exit_code = kExitSignal + interrupt.signal(),
                     .complaint = outcome.status().message()};
    }
    return outcome;
  });
}

void Command::Positional(const std::string& name, std::string* value, const std::string& help) {
  app_->add_option(name, *value, help)->required();
}

void Command::Flag(const std::string& name, bool* value, const std::string& help) {
  app_->add_flag(name, *value, help);
}

void Command::Option(const std::string& name, const std::string& type, std::string* value,
                     const std::string& help) {
  app_->add_option(name, *value, help)->type_name(type);
}

void Command::Option(const std::string& name, const std::string& type,
                     std::optional<std::string>* value, const std::string& help) {
  // Not by CLI11's own support of std::optional, to which an empty value is none.
  const auto store = [value](const std::string& given) { *value = given; };
  app_->add_option_function<std::string>(name, store, help)->type_name(type);
}

void Command::Repeated(const std::string& name, const std::string& type,
                       std::vector<std::string>* values, const std::string& help) {
  app_->add_option(name, *values, help)->type_name(type)->allow_extra_args(false);
}

void Command::Size(const std::string& name, const std::string& type, std::uint64_t* bytes,
                   const std::string& help) {
  // The description of a validator would stand in the help beside the type.
  app_->add_option(name, *bytes, help)
      ->type_name(type)
      ->transform(CLI::Validator(
          [to_bytes = CLI::AsSizeValue(/*kb_is_1000=*/true)](std::string& text) {
            return text.starts_with('-') ? "\"" + text + "\" is not a number of bytes"
                                         : to_bytes(text);
          },
          ""));
}

void Command::Seconds(const std::string& name, const std::string& type, double* seconds,
                      const std::string& help) {
  app_->add_option(name, *seconds, help)
      ->type_name(type)
      ->check([seconds](const std::string& text) {
        return CLI::detail::lexical_cast(text, *seconds) && *seconds >= 0
                   ? std::string()
                   : "\"" + text + "\" is not a number of seconds";
      });
}

void Command::Number(const std::string& name, const std::string& type,
                     const std::map<std::string, std::uint8_t>& numbers,
                     const std::function<void(std::uint8_t)>& store, const std::string& help) {
  // An enum, because CLI11 converts those as numbers, and a std::uint8_t as a character.
  enum class Chosen : int {};
  const auto to_number = [numbers, type](std::string& given) {
    const auto found = numbers.find(CLI::detail::to_lower(given));
    if (found != numbers.end()) {
      given = std::to_string(found->second);
      return std::string();
    }
    std::vector<std::string> names;
    names.reserve(numbers.size());
    for (const auto& [choice, number] : numbers) {
      names.push_back(choice);
    }
    const std::string nearest = Nearest(CLI::detail::to_lower(given), names);
    return "there is no " + type + " \"" + given + "\": " +
           (nearest.empty() ? "want one of " + Joined(names) : "did you mean \"" + nearest + "\"?");
  };
  const std::function<void(const Chosen&)> store_number = [store](const Chosen& number) {
    store(static_cast<std::uint8_t>(number));
  };
  app_->add_option_function(name, store_number, help)
      ->type_name(type)
      ->transform(CLI::Validator(to_number, ""));
}

void Command::Require(const std::string& name) { app_->get_option(name)->required(); }

// ---- all of them ----

struct Program::State {
  explicit State(const Texts& texts) : app(texts.description, texts.name) {
    app.footer(texts.details);
    app.set_version_flag("--version", texts.version);
    app.get_formatter()->column_width(kNameColumns);
  }

  CLI::App app;
  Verb chosen;
};

Program::Program(const Texts& texts) : state_(std::make_unique<State>(texts)) {}

Program::~Program() = default;

Command Program::root() { return {&state_->app, &state_->chosen}; }

Result<Outcome> Program::Run(int argc, const char* const* argv) {
  try {
    state_->app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return Outcome{state_->app.help()};  // Of the verb that was named, or of all.
  } catch (const CLI::CallForVersion& version) {
    return Outcome{std::string(version.what()) + "\n"};
  } catch (const CLI::ParseError& error) {
    return InvalidArgument(Complaint(state_->app, error, argc, argv));
  }
  return state_->chosen();
}

}  // namespace varve::cli
