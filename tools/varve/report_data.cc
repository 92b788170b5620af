#include "report_data.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <set>

#include "varve/checkpoint.h"
#include "varve/metadata.h"
#include "varve/tensor.h"

namespace varve::cli {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Summary Summarise(std::vector<double> values) {
  Summary summary;
  summary.count = values.size();
  if (values.empty()) {
    return summary;
  }
  std::sort(values.begin(), values.end());
  summary.median = values[values.size() / 2];
  summary.p95 = values[(values.size() * 95 + 99) / 100 - 1];
  summary.most = values.back();
  for (const double value : values) {
    summary.total += value;
  }
  return summary;
}

/// Returns what the end of a job has cost, `next` being the job after it, or null.
JobEnd EndOf(const HistoryJob& job, const HistoryJob* next, const RunHistory& history) {
  JobEnd end;
  end.killed = !job.outcome && next != nullptr;
  end.may_run = !job.outcome && next == nullptr;
  const HistorySave* last = job.last_done ? &history.saves[*job.last_done] : nullptr;
  if (last != nullptr && next != nullptr && next->resumed_from &&
      *next->resumed_from < last->step) {
    end.steps_back = last->step - *next->resumed_from;
  }
  // A job that was asked to end has saved before it did, for that reason.
  const bool in_order = job.outcome && (*job.outcome == "done" ||
                                        (last != nullptr && job.last_reason == *job.outcome));
  if (in_order || end.may_run) {
    return end;
  }
  const double saved = last != nullptr ? last->began : std::max(job.start, job.ready);
  // No process has noted when a job was killed; it was before the next one began.
  const double over = job.outcome || next == nullptr ? job.last : next->start;
  end.lost = std::max(over - saved, 0.0);
  return end;
}

void SummariseJobs(ReportData* data) {
  const RunHistory& history = data->history;
  double ended = 0;  // Seconds of jobs that have ended, as Every("auto") counts them.
  std::uint64_t kills = 0;
  std::vector<double> restarts;
  for (std::size_t i = 0; i < history.jobs.size(); ++i) {
    const HistoryJob& job = history.jobs[i];
    const HistoryJob* next = i + 1 < history.jobs.size() ? &history.jobs[i + 1] : nullptr;
    data->ends.push_back(EndOf(job, next, history));
    const double ran = std::max(job.last - job.start, 0.0);
    data->ran += ran;
    ended += data->ends.back().may_run ? 0 : ran;
    kills += data->ends.back().killed ? 1 : 0;
    if (job.ready > job.start) {
      restarts.push_back(job.ready - job.start);
    }
  }
  if (kills > 0 && ended > 0) {
    data->mtbf = ended / static_cast<double>(kills);
  }
  data->restart = Summarise(std::move(restarts)).median;
}

void SummariseSaves(ReportData* data) {
  std::vector<double> stall;
  std::vector<double> write;
  std::vector<double> bandwidth;
  std::vector<double> interval;
  const HistorySave* before = nullptr;
  for (const HistorySave& save : data->history.saves) {
    data->stalled += save.stall;
    if (!save.done) {
      continue;
    }
    stall.push_back(save.stall);
    write.push_back(save.seconds);
    if (save.bandwidth() > 0) {
      bandwidth.push_back(save.bandwidth());
    }
    if (before != nullptr && before->job == save.job && save.began > before->began) {
      const double apart = save.began - before->began;
      interval.push_back(apart);
      data->overruns += before->seconds > apart ? 1 : 0;
    }
    before = &save;
  }
  data->stall = Summarise(std::move(stall));
  data->write = Summarise(std::move(write));
  data->bandwidth = Summarise(std::move(bandwidth));
  data->interval = Summarise(std::move(interval));
}

Result<ModelSize> SizeOf(const std::string& run, const std::string& name,
                         const std::stop_token& stop) {
  VARVE_ASSIGN_OR_RETURN(const auto reader,
                         CheckpointReader::Open(run + "/" + name, AnyStorage(), stop));
  const Metadata& metadata = reader->metadata();
  ModelSize model{.step = name,
                  .tensor_count = metadata.tensors.size(),
                  .bytes = StoredBytes(metadata),
                  .parts = Subtrees(metadata)};
  std::map<std::string, Subtree> dtypes;
  for (const TensorMetadata& tensor : metadata.tensors) {
    const std::string dtype(DTypeName(tensor.dtype));
    Subtree& total = dtypes[dtype];
    total.name = dtype;
    ++total.tensor_count;
    total.bytes += StoredBytes(tensor);
  }
  for (auto& [_, total] : dtypes) {
    model.dtypes.push_back(std::move(total));
  }
  std::stable_sort(model.dtypes.begin(), model.dtypes.end(),
                   [](const Subtree& a, const Subtree& b) { return a.bytes > b.bytes; });
  return model;
}

/// Looks at what is in the run's directory now.
Status LookAround(ReportData* data, const KeepRules& rules, const std::stop_token& stop) {
  VARVE_ASSIGN_OR_RETURN(data->steps, ListSteps(data->run, AnyStorage(), stop));
  data->judgements = JudgeSteps(data->steps, rules, static_cast<std::int64_t>(data->now * 1e9));
  VARVE_ASSIGN_OR_RETURN(auto entries, ListCheckpoints(data->run, AnyStorage(), stop));
  std::set<std::string> known;
  for (const RunStep& step : data->steps) {
    known.insert(step.name);
  }
  for (CheckpointEntry& entry : entries) {
    if (entry.state != CheckpointState::kWhole && known.count(entry.name) == 0) {
      data->others.push_back(std::move(entry));
    }
  }
  data->no_model = "there is no whole step";
  for (auto step = data->steps.rbegin(); step != data->steps.rend(); ++step) {
    if (!step->whole()) {
      continue;
    }
    auto model = SizeOf(data->run, step->name, stop);
    if (model.ok()) {
      data->model = std::move(model).value();
    } else if (model.status().code() == StatusCode::kCancelled) {
      return model.status();
    } else {
      data->no_model = model.status().message();
    }
    break;
  }
  return Status::Ok();
}

}  // namespace

Result<ReportData> GatherReport(const std::string& run, const KeepRules& rules,
                                const std::stop_token& stop) {
  VARVE_ASSIGN_OR_RETURN(const std::string named, ResolvePath(run));
  if (AnyStorage().List(named).status().code() == StatusCode::kNotFound) {
    return NotFound("report " + run + ": no such directory");
  }
  ReportData data;
  data.run = run;
  data.now = Now();
  VARVE_ASSIGN_OR_RETURN(data.history, ReadHistory(run));
  SummariseJobs(&data);
  SummariseSaves(&data);
  VARVE_RETURN_IF_ERROR(LookAround(&data, rules, stop));
  if (data.history.lines == 0 && data.steps.empty() && data.others.empty()) {
    return NotFound("report " + run +
                    ": it is no run: it holds neither a history (varve-history.jsonl) nor a "
                    "checkpoint");
  }
  std::error_code error;
  if (const auto space = std::filesystem::space(run, error); !error) {
    data.disk_free = space.available;
  }
  return data;
}

std::vector<std::size_t> PointsToDraw(const std::vector<HistorySave>& saves) {
  std::vector<std::size_t> points;
  const std::size_t count = saves.size();
  if (count <= kMostPoints) {
    for (std::size_t i = 0; i < count; ++i) {
      points.push_back(i);
    }
    return points;
  }
  // Three of each stretch, the first, and the newest, which are listed too.
  constexpr std::size_t kNewest = 200;
  const std::size_t stretches = (kMostPoints - 1 - kNewest) / 3;
  std::set<std::size_t> chosen = {0};
  for (std::size_t i = count - kNewest; i < count; ++i) {
    chosen.insert(i);
  }
  for (std::size_t part = 0; part < stretches; ++part) {
    const std::size_t begin = count * part / stretches;
    const std::size_t end = count * (part + 1) / stretches;
    std::size_t stalled = begin;
    std::size_t slow = begin;
    std::size_t failed = begin;  // Or the one with the least bandwidth.
    const auto speed = [&](std::size_t i) { return saves[i].done ? saves[i].bandwidth() : -1.0; };
    for (std::size_t i = begin; i < end; ++i) {
      stalled = saves[i].stall > saves[stalled].stall ? i : stalled;
      slow = saves[i].seconds > saves[slow].seconds ? i : slow;
      failed = speed(i) < speed(failed) ? i : failed;
    }
    chosen.insert({stalled, slow, failed});
  }
  points.assign(chosen.begin(), chosen.end());
  return points;
}

}  // namespace varve::cli
