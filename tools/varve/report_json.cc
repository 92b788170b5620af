#include "report_json.h"

#include "report_advice.h"
#include "varve/metadata.h"

namespace varve::cli {
namespace {

Json AsJson(const Summary& summary) {
  return {{"count", summary.count},
          {"median", summary.median},
          {"p95", summary.p95},
          {"most", summary.most},
          {"total", summary.total}};
}

Json AsJson(const HistoryNotes& notes) {
  Json listed = Json::array();
  for (const HistoryNote& note : notes.newest) {
    listed.push_back({{"time", note.time},
                      {"step", note.step},
                      {"name", note.name},
                      {"text", note.text},
                      {"bytes", note.bytes}});
  }
  return {{"count", notes.count}, {"bytes", notes.bytes}, {"newest", listed}};
}

Json Points(const ReportData& data) {
  Json points = Json::array();
  for (const std::size_t i : PointsToDraw(data.history.saves)) {
    const HistorySave& save = data.history.saves[i];
    points.push_back({{"began", save.began},
                      {"step", save.step},
                      {"stall", save.stall},
                      {"seconds", save.seconds},
                      {"bytes", save.bytes},
                      {"done", save.done},
                      {"job", save.job}});
  }
  return points;
}

Json Phases(const ReportData& data) {
  Json phases = Json::object();
  for (const auto& [name, phase] : data.history.phases) {
    phases[name] = {{"saves", phase.saves}, {"seconds", phase.seconds}, {"most", phase.most}};
  }
  return phases;
}

Json SlowestRanks(const ReportData& data) {
  Json phases = Json::object();
  for (const auto& [name, phase] : data.history.phases) {
    Json counts = Json::object();
    for (const auto& [rank, count] : phase.slowest) {
      counts[std::to_string(rank)] = count;
    }
    phases[name] = counts;
  }
  return phases;
}

Json Jobs(const ReportData& data) {
  Json listed = Json::array();
  for (std::size_t i = 0; i < data.history.jobs.size(); ++i) {
    const HistoryJob& job = data.history.jobs[i];
    const JobEnd& end = data.ends[i];
    listed.push_back(
        {{"start", job.start},
         {"last", job.last},
         {"attempt", job.attempt},
         {"world_size", job.world_size},
         {"host", job.host},
         {"resumed_from", If(job.resumed_from.has_value(), job.resumed_from.value_or(0))},
         {"saves", job.saves},
         {"failed", job.failed},
         {"outcome", If(job.outcome.has_value(), job.outcome.value_or(""))},
         {"killed", end.killed},
         {"lost_seconds_at_most", end.lost},
         {"steps_back", end.steps_back}});
  }
  return listed;
}

Json Steps(const ReportData& data) {
  Json listed = Json::array();
  for (std::size_t i = 0; i < data.steps.size(); ++i) {
    const RunStep& step = data.steps[i];
    Json metrics = Json::object();
    for (const auto& [name, value] : step.metrics) {
      metrics[name] = value;  // NaN becomes null.
    }
    listed.push_back({{"name", step.name},
                      {"step", step.step},
                      {"attempt", step.attempt},
                      {"state", StateName(step.state)},
                      {"detail", step.detail},
                      {"bytes", step.bytes},
                      {"world_size", step.world_size},
                      {"saved", static_cast<double>(step.time_ns) * 1e-9},
                      {"pin", If(step.pin.has_value(), step.pin.value_or(""))},
                      {"metrics", metrics},
                      {"keeps", data.judgements[i].keeps},
                      {"reasons", data.judgements[i].reasons}});
  }
  return listed;
}

Json Others(const ReportData& data) {
  Json listed = Json::array();
  for (const CheckpointEntry& entry : data.others) {
    listed.push_back({{"name", entry.name},
                      {"state", StateName(entry.state)},
                      {"detail", entry.detail},
                      {"bytes", entry.bytes}});
  }
  return listed;
}

Json Model(const ReportData& data) {
  if (!data.model) {
    return {};
  }
  const auto listed = [](const std::vector<Subtree>& parts) {
    Json list = Json::array();
    for (const Subtree& part : parts) {
      list.push_back({{"name", part.name}, {"tensors", part.tensor_count}, {"bytes", part.bytes}});
    }
    return list;
  };
  return {{"step", data.model->step},
          {"tensors", data.model->tensor_count},
          {"bytes", data.model->bytes},
          {"parts", listed(data.model->parts)},
          {"dtypes", listed(data.model->dtypes)}};
}

}  // namespace

Json ReportAsJson(const ReportData& data) {
  Json advice = Json::array();
  for (const Advice& one : AdviceFor(data)) {
    advice.push_back({{"kind", KindName(one.kind)}, {"text", one.text}});
  }
  return {{"run", data.run},
          {"version", Version()},
          {"time", data.now},
          {"history", data.history.found},
          {"lines", data.history.lines},
          {"unreadable", data.history.unreadable},
          {"saves", data.history.saves.size()},
          {"stall_seconds", AsJson(data.stall)},
          {"write_seconds", AsJson(data.write)},
          {"bytes_per_second", AsJson(data.bandwidth)},
          {"interval_seconds", AsJson(data.interval)},
          {"ran_seconds", data.ran},
          {"mtbf_seconds", If(data.mtbf.has_value(), data.mtbf.value_or(0))},
          {"points", Points(data)},
          {"phases", Phases(data)},
          {"slowest_ranks", SlowestRanks(data)},
          {"failures", AsJson(data.history.failures)},
          {"jobs", Jobs(data)},
          {"steps", Steps(data)},
          {"others", Others(data)},
          {"damaged", AsJson(data.history.damaged)},
          {"removed", AsJson(data.history.removed)},
          {"model", Model(data)},
          {"no_model", If(!data.model, data.no_model)},
          {"advice", advice}};
}

}  // namespace varve::cli
