#include "report_page.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <random>

#include "json.h"
#include "report_advice.h"
#include "report_assets.h"
#include "report_html.h"
#include "text.h"
#include "varve/metadata.h"

namespace varve::cli {
namespace {

/// Rows of a table; a page of a long run must still open at once.
constexpr std::size_t kMostRows = 500;
constexpr std::size_t kMostSaves = 200;
constexpr std::size_t kMostBars = 20;

std::string Bytes(double bytes) {
  return bytes > 0 && bytes < 1.8e19 ? FormatBytes(static_cast<std::uint64_t>(bytes)) : "-";
}
std::string Speed(double bandwidth) { return bandwidth >= 1 ? Bytes(bandwidth) + "/s" : "-"; }
std::string IfAny(double seconds) { return seconds > 0 ? FormatSeconds(seconds) : "-"; }

/// Returns the style of a chart of bars, one line high each.
std::string HighFor(std::size_t bars) {
  return " style=\"height:" + std::to_string(3 + 2 * std::max<std::size_t>(bars, 1)) + "rem\"";
}

bool HaveCharts() { return !kChartLibrary.empty(); }

std::string AdviceSection(const ReportData& data) {
  const std::vector<Advice> advice = AdviceFor(data);
  if (advice.empty()) {
    return Section("Advice", Paragraph("Too little is known of this run to advise anything."));
  }
  std::string body = "<ul class=\"advice\">\n";
  for (const Advice& one : advice) {
    const std::string kind(KindName(one.kind));
    body.append("<li class=\"").append(kind).append("\"><b>").append(kind).append("</b> ");
    body.append(Escaped(one.text)).append("</li>\n");
  }
  return Section("Advice", body + "</ul>\n");
}

std::string SummarySection(const ReportData& data) {
  HtmlTable table({"of the saves", "#number", "#median", "#95 of 100 below", "#most", "#in all"});
  const auto add = [&](const std::string& name, const Summary& summary, bool total) {
    table.Add({name, std::to_string(summary.count), FormatSeconds(summary.median),
               FormatSeconds(summary.p95), FormatSeconds(summary.most),
               total ? FormatSeconds(summary.total) : "-"});
  };
  add("training stood still", data.stall, true);
  add("until it was durable", data.write, true);
  add("from one to the next", data.interval, false);
  table.Add({"bandwidth", std::to_string(data.bandwidth.count), Speed(data.bandwidth.median),
             Speed(data.bandwidth.p95), Speed(data.bandwidth.most), "-"});
  std::string body = table.ToString();
  HtmlTable phases({"phase of the saves", "#saves", "#mean, rank 0", "#most, any rank"});
  for (const auto& [name, phase] : data.history.phases) {
    phases.Add({name, std::to_string(phase.saves),
                FormatSeconds(phase.seconds /
                              static_cast<double>(std::max<std::uint64_t>(phase.saves, 1))),
                FormatSeconds(phase.most)});
  }
  return body + (data.history.phases.empty() ? "" : phases.ToString());
}

std::string SavesTable(const ReportData& data) {
  HtmlTable table({"time", "#step", "outcome", "#stall", "#durable after", "#size", "#bandwidth"});
  const auto& saves = data.history.saves;
  const std::size_t shown = std::min(saves.size(), kMostSaves);
  for (std::size_t i = saves.size() - shown; i < saves.size(); ++i) {
    const HistorySave& save = saves[i];
    table.Add({FormatTime(save.began), std::to_string(save.step), save.done ? "made" : "failed",
               FormatSeconds(save.stall), IfAny(save.seconds), Bytes(save.bytes),
               Speed(save.bandwidth())});
  }
  return "<details><summary>The newest " + std::to_string(shown) + " of " +
         Count(saves.size(), "save") + "</summary>\n" + table.ToString() + "</details>\n";
}

std::string SavesSection(const ReportData& data) {
  if (data.history.saves.empty()) {
    return Section(
        "Saves",
        Paragraph(data.history.found ? "The history of this run has no save."
                                     : "This run has no history (" + std::string(kHistoryName) +
                                           "): only a CheckpointManager writes one."));
  }
  std::string body = SummarySection(data);
  if (HaveCharts()) {
    const std::size_t points = PointsToDraw(data.history.saves).size();
    body +=
        "<div class=\"controls\">Over "
        "<label><input type=\"radio\" name=\"axis\" value=\"step\" checked> steps</label>"
        "<label><input type=\"radio\" name=\"axis\" value=\"time\"> wall time</label></div>\n"
        "<noscript><p>The charts need scripts. The numbers are in the tables.</p></noscript>\n";
    body += "<div class=\"charts\">\n" +
            Figure("chart-stall", "Stall: seconds that training waited for a save") +
            Figure("chart-write", "Seconds from the begin of a save until it was durable") +
            Figure("chart-bandwidth", "Bandwidth of saves") + "</div>\n";
    if (points < data.history.saves.size()) {
      body += Paragraph(std::to_string(points) + " of " + Count(data.history.saves.size(), "save") +
                        " are drawn: the slowest ones of each stretch.");
    }
  } else {
    body +=
        "<p id=\"no-charts\">Charts are left out: this varve was built without Chart.js "
        "(Debian package libjs-chart.js). The numbers are in the tables.</p>\n";
  }
  return Section("Saves", body + SavesTable(data));
}

std::string ModelSection(const ReportData& data) {
  if (!data.model) {
    return Section("Size by part of the model", Paragraph("Not known: " + data.no_model + "."));
  }
  const ModelSize& model = *data.model;
  std::string body = Paragraph("Of " + model.step + ": " + Count(model.tensor_count, "tensor") +
                               ", " + FormatBytes(model.bytes) + ".");
  if (HaveCharts() && !model.parts.empty()) {
    body += Figure("chart-parts", "Stored bytes by part; a part includes those under it",
                   HighFor(std::min(model.parts.size(), kMostBars)));
  }
  const auto table = [&](const std::string& title, const std::vector<Subtree>& parts) {
    HtmlTable rows({"~" + title, "#tensors", "#size", "#share"});
    for (const Subtree& part : parts) {
      const double share =
          model.bytes == 0 ? 0 : static_cast<double>(part.bytes) / static_cast<double>(model.bytes);
      rows.Add({part.name, std::to_string(part.tensor_count), FormatBytes(part.bytes),
                FormatShare(share)});
    }
    return rows.ToString();
  };
  return Section("Size by part of the model",
                 body + table("part", model.parts) + table("dtype", model.dtypes));
}

/// Returns the ranks that were the slowest most often, in any phase: (rank, saves), most first.
std::vector<std::pair<std::uint64_t, std::uint64_t>> SlowestRanks(const ReportData& data) {
  std::map<std::uint64_t, std::uint64_t> counts;
  for (const auto& [name, phase] : data.history.phases) {
    for (const auto& [rank, count] : phase.slowest) {
      counts[rank] += count;
    }
  }
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranks(counts.begin(), counts.end());
  std::stable_sort(ranks.begin(), ranks.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  ranks.resize(std::min(ranks.size(), kMostBars));
  return ranks;
}

std::string RanksSection(const ReportData& data) {
  const auto ranks = SlowestRanks(data);
  if (ranks.empty()) {
    return Section("Slowest ranks", Paragraph("No save by several ranks is in the history."));
  }
  std::vector<std::string> titles = {"rank"};
  for (const auto& [name, phase] : data.history.phases) {
    if (!phase.slowest.empty()) {
      titles.push_back("#" + name);
    }
  }
  HtmlTable table(titles);
  for (const auto& [rank, _] : ranks) {
    std::vector<std::string> row = {std::to_string(rank)};
    for (const auto& [name, phase] : data.history.phases) {
      if (!phase.slowest.empty()) {
        const auto at = phase.slowest.find(rank);
        row.push_back(std::to_string(at == phase.slowest.end() ? 0 : at->second));
      }
    }
    table.Add(row);
  }
  return Section("Slowest ranks",
                 Paragraph("In how many saves a rank was the slowest, by phase.") +
                     (HaveCharts() ? Figure("chart-ranks", "Times that a rank was the slowest",
                                            HighFor(ranks.size()))
                                   : "") +
                     table.ToString());
}

std::string NotesSection(const std::string& title, const HistoryNotes& notes,
                         const std::string& what, const std::string& none) {
  if (notes.count == 0) {
    return Section(title, Paragraph(none));
  }
  HtmlTable table({"time", "#step", what, "~why", "#size"});
  for (auto note = notes.newest.rbegin(); note != notes.newest.rend(); ++note) {
    table.Add({FormatTime(note->time), note->step != 0 ? std::to_string(note->step) : "-",
               note->name, note->text, Bytes(note->bytes)});
  }
  std::string body = table.ToString();
  if (notes.count > notes.newest.size()) {
    body = Paragraph("The newest " + std::to_string(notes.newest.size()) + " of " +
                     std::to_string(notes.count) + ".") +
           body;
  }
  return Section(title, body);
}

std::string HowItEnded(const HistoryJob& job, const JobEnd& end) {
  if (job.outcome) {
    return job.outcome->empty() ? "ended" : *job.outcome;
  }
  return end.killed ? "killed, or lost" : "no end noted: runs, or was killed";
}

std::string JobsSection(const ReportData& data) {
  const auto& jobs = data.history.jobs;
  if (jobs.empty()) {
    return Section("Jobs and restarts", Paragraph("No start is in the history."));
  }
  HtmlTable table({"start", "#attempt", "#ranks", "host", "resumed from", "#saves", "#failed",
                   "~ended", "#at most lost", "#steps back"});
  const std::size_t first = jobs.size() - std::min(jobs.size(), kMostRows);
  for (std::size_t i = first; i < jobs.size(); ++i) {
    const HistoryJob& job = jobs[i];
    const JobEnd& end = data.ends[i];
    table.Add({FormatTime(job.start), std::to_string(job.attempt), std::to_string(job.world_size),
               job.host, job.resumed_from ? "step " + std::to_string(*job.resumed_from) : "-",
               std::to_string(job.saves), std::to_string(job.failed), HowItEnded(job, end),
               IfAny(end.lost), end.steps_back != 0 ? std::to_string(end.steps_back) : "-"});
  }
  return Section("Jobs and restarts",
                 Paragraph("Lost, at most: the time from the begin of a job's last save until it "
                           "ended; of one that was killed, until the next one started.") +
                     table.ToString());
}

std::string Metrics(const RunStep& step) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(step.metrics.size(), kMostBars); ++i) {
    std::array<char, 32> value{};
    std::snprintf(value.data(), value.size(), "%.6g", step.metrics[i].second);
    text += (text.empty() ? "" : ", ") + step.metrics[i].first.substr(0, 100) + " " + value.data();
  }
  return text;
}

std::string StepsSection(const ReportData& data) {
  std::string body;
  HtmlTable table({"step", "state", "#size", "#ranks", "saved", "~metrics", "~kept because"});
  const std::size_t count = data.steps.size();
  std::size_t shown = 0;
  for (std::size_t i = count; i-- > 0;) {
    const RunStep& step = data.steps[i];
    if (count - i > kMostRows && !step.pin) {
      continue;
    }
    ++shown;
    const Judgement& judged = data.judgements[i];
    std::string why = judged.keeps ? "" : "the rules given would remove it";
    for (const std::string& reason : judged.reasons) {
      why += (why.empty() ? "" : ", ") + reason;
    }
    table.Add({step.name,
               std::string(StateName(step.state)) + (step.detail.empty() ? "" : ": " + step.detail),
               FormatBytes(step.bytes),
               step.world_size != 0 ? std::to_string(step.world_size) : "-",
               FormatTime(static_cast<double>(step.time_ns) * 1e-9), Metrics(step), why});
    if (shown >= 2 * kMostRows) {
      break;
    }
  }
  if (count == 0) {
    body = Paragraph("No step is there.");
  } else {
    body = (shown < count ? Paragraph("The newest and the pinned ones, " + std::to_string(shown) +
                                      " of " + std::to_string(count) + ".")
                          : "") +
           table.ToString();
  }
  if (!data.others.empty()) {
    HtmlTable others({"beside the steps", "state", "~detail", "#size"});
    for (std::size_t i = 0; i < std::min(data.others.size(), kMostRows); ++i) {
      const CheckpointEntry& entry = data.others[i];
      others.Add({entry.name, std::string(StateName(entry.state)), entry.detail,
                  FormatBytes(entry.bytes)});
    }
    body += others.ToString();
  }
  return Section("What is kept", body);
}

/// Returns the data of the charts as JSON that can stand in a script element.
std::string ChartData(const ReportData& data) {
  Json points = Json::array();
  for (const std::size_t i : PointsToDraw(data.history.saves)) {
    const HistorySave& save = data.history.saves[i];
    points.push_back(
        {save.began, save.step, save.stall, save.seconds, save.bandwidth(), save.done, save.job});
  }
  Json parts = Json::array();
  if (data.model) {
    std::vector<Subtree> largest = data.model->parts;
    std::stable_sort(largest.begin(), largest.end(),
                     [](const Subtree& a, const Subtree& b) { return a.bytes > b.bytes; });
    for (std::size_t i = 0; i < std::min(largest.size(), kMostBars); ++i) {
      const std::string name = Printable(largest[i].name.substr(0, 100));
      parts.push_back({name, largest[i].bytes});
    }
  }
  Json ranks = Json::array();
  for (const auto& [rank, count] : SlowestRanks(data)) {
    ranks.push_back({"rank " + std::to_string(rank), count});
  }
  const std::string json = ToLine({{"points", points}, {"parts", parts}, {"ranks", ranks}});
  std::string safe;
  for (const char c : json) {
    if (c == '<' || c == '>' || c == '&') {
      std::array<char, 8> code{};
      std::snprintf(code.data(), code.size(), "\\u%04x", static_cast<unsigned>(c));
      safe += code.data();
    } else {
      safe.push_back(c);
    }
  }
  return safe;
}

/// Returns 32 hex digits that no process which wrote into the run could know: only scripts of the
/// page's own carry them.
std::string Nonce() {
  std::random_device random;
  std::string nonce;
  for (int i = 0; i < 4; ++i) {
    std::array<char, 16> text{};
    std::snprintf(text.data(), text.size(), "%08x", random());
    nonce += text.data();
  }
  return nonce;
}

std::string Head(const std::string& title, const std::string& nonce) {
  // No network, whatever a browser might try.
  return std::string(kPageBegin) +
         "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
         "style-src 'unsafe-inline'; img-src data:; script-src 'nonce-" +
         nonce +
         "'\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
         "<link rel=\"icon\" href=\"data:,\">\n<title>" +
         Escaped(title) + "</title>\n<style>\n" + std::string(kReportStyle) + "</style>\n</head>\n";
}

std::string Foot(const ReportData& data, const std::string& nonce) {
  std::string foot = "<footer class=\"faint\">\n<p>Written by varve " + std::string(Version()) +
                     ". History: " + Count(data.history.lines, "line") + ", " +
                     std::to_string(data.history.unreadable) + " of them unreadable.</p>\n";
  if (!HaveCharts()) {
    return foot + "</footer>\n";
  }
  foot += "<details><summary>License of the chart library</summary><pre>";
  // Line ends are no control characters here.
  std::string_view rest = kChartLibraryLicense;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    foot += Escaped(rest.substr(0, end)) + "\n";
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  foot += "</pre></details>\n</footer>\n";
  const std::string script = "<script nonce=\"" + nonce + "\">";
  return foot + "<script type=\"application/json\" id=\"data\">" + ChartData(data) + "</script>\n" +
         script + std::string(kChartLibrary) + "</script>\n" + script + std::string(kReportScript) +
         "</script>\n";
}

}  // namespace

std::string PageOf(const ReportData& data) {
  const std::string nonce = Nonce();
  std::string page =
      Head("varve: " + data.run, nonce) + "<body>\n<header><h1>" + Escaped(data.run) + "</h1>\n" +
      Paragraph("Report of a training run, " + FormatTime(data.now) + ".") + "</header>\n<main>\n";
  page += AdviceSection(data);
  page += SavesSection(data);
  page += ModelSection(data);
  page += RanksSection(data);
  page += NotesSection("Failures", data.history.failures, "error", "No save has failed.");
  page += JobsSection(data);
  page += StepsSection(data);
  page += NotesSection("Damaged steps", data.history.damaged, "name",
                       "No resume has found a damaged step.");
  page += NotesSection("Removed steps", data.history.removed, "name",
                       "No step was removed by the manager's rules.");
  return page + "</main>\n" + Foot(data, nonce) + "</body>\n</html>\n";
}

}  // namespace varve::cli
