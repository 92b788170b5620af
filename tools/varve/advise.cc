#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "json.h"
#include "text.h"
#include "varve/manage.h"
#include "verbs.h"

namespace varve::cli {
namespace {

constexpr const char* kHelp =
    "Prints how often to save: for a state of a given size on a given number of nodes, and for\n"
    "fewer and more nodes, the time between saves at which the least time is lost to saves and\n"
    "failures together, and what is then lost.\n"
    "\n"
    "Saves are asynchronous: training waits while the state is copied (size / nodes / --copy), and\n"
    "the copy is written in the background (size / nodes / --write). --mtbf-hours is the mean time\n"
    "between failures of one node; a job of N nodes fails N times as often. Without better\n"
    "knowledge take 6000 (8 accelerators of 50,000 hours each). --share is the most that saves may\n"
    "cost of the time. Measured stall and write times of a run are in its history\n"
    "(varve-history.jsonl); give them with --stall and --save-time.\n"
    "\n"
    "Example: varve advise --size 1TB --nodes 16";

struct Options {
  std::uint64_t size = 0;
  std::uint64_t nodes = 1;
  std::string nodes_text = "1";
  double mtbf_hours = 6000;
  std::string mtbf_text;
  double share = 0.01;
  std::string share_text;
  std::uint64_t copy = 5'000'000'000;
  std::uint64_t write = 1'000'000'000;
  double stall = -1;  ///< Below 0: not measured. A copy that overlaps with training costs nothing.
  double save_time = 0;
  double restart = 300;
  bool json = false;
};

/// A line of the table.
struct Line {
  double nodes = 1;
  SaveCosts costs;
  double mtbf = 0;
  IntervalChoice choice;
};

/// Reads a number above 0. Errors: InvalidArgument, with the option's name.
Status ReadNumber(const std::string& option, const std::string& text, double* value) {
  if (text.empty()) {
    return Status::Ok();
  }
  std::size_t used = 0;
  try {
    *value = std::stod(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used != text.size() || !(*value > 0) || !std::isfinite(*value)) {
    return InvalidArgument(option + " " + text + ": want a number above 0");
  }
  return Status::Ok();
}

Line LineFor(const Options& options, double nodes) {
  const double share_of_node = static_cast<double>(options.size) / nodes;
  // Measured times hold for the number of nodes that they were measured on.
  const double scale = static_cast<double>(options.nodes) / nodes;
  Line line{.nodes = nodes};
  line.costs.stall = options.stall >= 0 ? options.stall * scale
                                        : share_of_node / static_cast<double>(options.copy);
  line.costs.write = options.save_time > 0 ? options.save_time * scale
                                           : share_of_node / static_cast<double>(options.write);
  line.costs.restart = options.restart;
  line.mtbf = options.mtbf_hours * 3600 / nodes;
  line.choice = ChooseInterval(line.costs, line.mtbf, options.share);
  return line;
}

Result<Outcome> Run(Options options) {
  double nodes = 1;
  VARVE_RETURN_IF_ERROR(ReadNumber("--nodes", options.nodes_text, &nodes));
  VARVE_RETURN_IF_ERROR(ReadNumber("--mtbf-hours", options.mtbf_text, &options.mtbf_hours));
  VARVE_RETURN_IF_ERROR(ReadNumber("--share", options.share_text, &options.share));
  if (options.share > 1) {
    return InvalidArgument("--share " + options.share_text + ": want a number of at most 1");
  }
  if (nodes > 1e9 || nodes < 1) {
    return InvalidArgument("--nodes " + options.nodes_text + ": want a number from 1 to 1e9");
  }
  if (options.size == 0 && (options.stall < 0 || options.save_time <= 0)) {
    return InvalidArgument("advise: give the state's --size, or both --stall and --save-time");
  }
  if (options.copy == 0 || options.write == 0) {
    return InvalidArgument("advise: --copy and --write are bytes a second above 0");
  }
  options.nodes = static_cast<std::uint64_t>(nodes);
  std::vector<Line> lines;
  for (const double factor : {0.25, 0.5, 1.0, 2.0, 4.0}) {
    if (const double count = static_cast<double>(options.nodes) * factor; count >= 1) {
      lines.push_back(LineFor(options, std::floor(count)));
    }
  }
  if (options.json) {
    Json listed = Json::array();
    for (const Line& line : lines) {
      listed.push_back({{"nodes", line.nodes},
                        {"mtbf_seconds", Seconds(line.mtbf)},
                        {"stall_seconds", Seconds(line.costs.stall)},
                        {"write_seconds", Seconds(line.costs.write)},
                        {"interval_seconds", Seconds(line.choice.seconds)},
                        {"save_share", line.choice.save_share},
                        {"lost_share", line.choice.lost_share},
                        {"reason", line.choice.reason}});
    }
    return Outcome{ToLine(listed)};
  }
  Table table({{"nodes", Table::Align::kRight},
               {"a failure every", Table::Align::kRight},
               {"stall", Table::Align::kRight},
               {"write", Table::Align::kRight},
               {"save every", Table::Align::kRight},
               {"saves cost", Table::Align::kRight},
               {"failures cost", Table::Align::kRight},
               {"because"}});
  for (const Line& line : lines) {
    table.Add({std::to_string(std::llround(line.nodes)), FormatSeconds(line.mtbf),
               FormatSeconds(line.costs.stall), FormatSeconds(line.costs.write),
               FormatSeconds(line.choice.seconds), FormatShare(line.choice.save_share),
               FormatShare(line.choice.lost_share), line.choice.reason});
  }
  return Outcome{table.ToString()};
}

}  // namespace

void AddAdvise(Command program) {
  Command verb = program.Add("advise", "Print how often to save", kHelp);
  const auto options = std::make_shared<Options>();
  verb.Size("--size", "BYTES", &options->size, "Size of the state: model, optimizer and all");
  verb.Option("--nodes", "N", &options->nodes_text, "Number of nodes (1)");
  verb.Option("--mtbf-hours", "H", &options->mtbf_text,
              "Mean time between failures of a node (6000)");
  verb.Option("--share", "S", &options->share_text, "Share of the time that saves may cost (0.01)");
  verb.Size("--copy", "BYTES", &options->copy, "Bytes a second that a node copies (5GB)");
  verb.Size("--write", "BYTES", &options->write, "Bytes a second that a node writes (1GB)");
  verb.Seconds("--stall", "S", &options->stall, "Measured: training waits for a save");
  verb.Seconds("--save-time", "S", &options->save_time, "Measured: from a save's begin to its end");
  verb.Seconds("--restart", "S", &options->restart, "From a failure until training goes on (300)");
  verb.Flag("--json", &options->json,
            "A list of objects: nodes, mtbf_seconds, stall_seconds, write_seconds, "
            "interval_seconds, save_share, lost_share, reason");
  verb.Runs([=] { return Run(*options); });
}

}  // namespace varve::cli
