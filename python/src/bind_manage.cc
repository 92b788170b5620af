#include "bindings.h"
#include "bound.h"
#include "interruptible.h"
#include "varve/manage.h"
#include "varve/storage.h"

namespace varve::python {
namespace {

constexpr const char* kStepDoc = R"(A step of a run, as `CheckpointManager.steps` lists it.

Attributes:
    name: Of the checkpoint, in the run's directory.
    step: The training step.
    attempt: Number of the job that saved it, counted in the run; 0 where no manager has.
    state: "whole", "incomplete", "damaged", "unsupported", "unreadable" or "displaced".
    detail: Why it is not whole.
    bytes: Of its data files.
    world_size: Number of ranks that saved it; 0 where that is unknown.
    time_ns: When its save began, Unix time in nanoseconds.
    pin: Why it is pinned; None where it is not.
    metrics: Values that were given to `save`, by name.
)";

constexpr const char* kPrunedDoc = R"(A step as `prune` has found and left it.

Attributes:
    step: The step.
    removed: It was removed, or with `dry_run` would be.
    reasons: Why it stays: "the newest", "last 3", "pinned: paper", ...
)";

/// Metrics as a dict.
struct AsDict {
  static constexpr const char* kWanted = "a dict of names and numbers";
  using Metrics = std::vector<std::pair<std::string, double>>;
  static nb::object ToPython(const Metrics& metrics) {
    nb::dict out;
    for (const auto& [name, value] : metrics) {
      out[nb::str(name.data(), name.size())] = value;
    }
    return out;
  }
  static bool FromPython(nb::handle given, Metrics* out) {
    nb::dict listed;
    if (!nb::try_cast(given, listed)) {
      return false;
    }
    for (const auto& [name, value] : listed) {
      double number = 0;
      if (!nb::isinstance<nb::str>(name) || !nb::try_cast(nb::handle(value), number)) {
        return false;
      }
      out->emplace_back(TextOf(name), number);
    }
    return true;
  }
};

/// Texts for people, which may be no UTF-8.
struct AsOptionalMessage : AsIs {
  static nb::object ToPython(const std::optional<std::string>& text) {
    return text ? ToText(*text) : nb::none();
  }
};
struct AsMessages : AsIs {
  static nb::object ToPython(const std::vector<std::string>& texts) {
    nb::list out;
    for (const std::string& text : texts) {
      out.append(ToText(text));
    }
    return out;
  }
};

/// A lock that Python can give back before it is collected.
struct PythonRunLock {
  std::unique_ptr<RunLock> lock;
};

std::vector<RunStep> ListStepsPython(const FsPath& run) {
  return Stoppable(run.text, [&](const std::stop_token& stop) {
    return ListSteps(run.text, AnyStorage(), stop);
  });
}

/// Returns each with its name, the step in that, and the step in the note.
nb::list ListMisnamedPython(const FsPath& run) {
  nb::list all;
  for (const RunStep& one : Stoppable(run.text, [&](const std::stop_token& stop) {
         return ListMisnamedSteps(run.text, AnyStorage(), stop);
       })) {
    all.append(nb::make_tuple(ToText(one.name), one.step, one.other_step.value_or(one.step)));
  }
  return all;
}

std::vector<PrunedStep> PruneRunPython(const FsPath& run, const KeepRules& rules,
                                       nb::handle dry_run, double busy_share,
                                       std::optional<std::string> prefix, bool only_managed) {
  const auto dry = Argument<DryRun>("dry_run", dry_run);
  return Stoppable(run.text, [&](const std::stop_token& stop) {
    return PruneRun(run.text, rules,
                    {.dry_run = dry,
                     .busy_share = busy_share,
                     .stop = stop,
                     .only_managed = only_managed,
                     .prefix = std::move(prefix)});
  });
}

void BindRunNotes(nb::module_& module) {
  module.def(
      "is_in_object_store",
      [](const FsPath& path) {
        ConditionalWrites* const writes = AnyStorage().extras().conditional_writes;
        return writes != nullptr && writes->Serves(path.text);
      },
      nb::arg("path"));
  module.def(
      "add_to_history",
      [](const FsPath& run, const std::string& event, nb::handle line) {
        const std::string text = TextOf(line);
        RaiseIfError(Unlocked([&] { return AddToRunHistory(run.text, event, text); }));
      },
      nb::arg("run"), nb::arg("event"), nb::arg("line"));
  module.def(
      "read_history",
      [](const FsPath& run, const std::vector<std::string>& wanted) {
        nb::list lines;
        for (const std::string& line :
             ValueOrRaise(Unlocked([&] { return ReadRunHistory(run.text, wanted); }))) {
          lines.append(ToBytes(line));
        }
        return lines;
      },
      nb::arg("run"), nb::arg("wanted"));
  module.def(
      "read_note",
      [](const FsPath& run, const std::string& name) -> nb::object {
        const auto text = Unlocked([&] { return ReadRunNote(run.text, name); });
        if (text.status().code() == StatusCode::kNotFound) {
          return nb::none();
        }
        return ToBytes(ValueOrRaise(text));
      },
      nb::arg("run"), nb::arg("name"));
  module.def(
      "write_note",
      [](const FsPath& run, const std::string& name, const std::string& text) {
        RaiseIfError(Unlocked([&] { return WriteRunNote(run.text, name, text); }));
      },
      nb::arg("run"), nb::arg("name"), nb::arg("text"));
  module.def(
      "remove_note",
      [](const FsPath& run, const std::string& name) {
        RaiseIfError(Unlocked([&] { return RemoveRunNote(run.text, name); }));
      },
      nb::arg("run"), nb::arg("name"));
}

}  // namespace

void BindManage(nb::module_& parent) {
  nb::module_ module = parent.def_submodule("manage");
  Bound<RunStep>(module, "RunStep", kStepDoc)
      .Field<AsPath>("name", &RunStep::name)
      .Field("step", &RunStep::step)
      .Field("attempt", &RunStep::attempt)
      .Field("state", &RunStep::state)
      .Field<AsMessage>("detail", &RunStep::detail)
      .Field("bytes", &RunStep::bytes)
      .Field("world_size", &RunStep::world_size)
      .Field("time_ns", &RunStep::time_ns)
      .Field<AsOptionalMessage>("pin", &RunStep::pin)
      .Field<AsDict>("metrics", &RunStep::metrics)
      .Public("varve");
  Bound<PrunedStep>(module, "PrunedStep", kPrunedDoc)
      .Field("step", &PrunedStep::step)
      .Field("removed", &PrunedStep::removed)
      .Field<AsMessages>("reasons", &PrunedStep::reasons)
      .Public("varve");
  Bound<KeepBest>(module, "KeepBest", "")
      .Field("count", &KeepBest::count)
      .Field("metric", &KeepBest::metric)
      .Field("highest", &KeepBest::highest);
  Bound<KeepRules>(module, "KeepRules", "")
      .Field("last", &KeepRules::last)
      .Field("every_steps", &KeepRules::every_steps)
      .Field("every_time", &KeepRules::every_time)
      .Field("newer_than", &KeepRules::newer_than)
      .Field("best", &KeepRules::best);
  Bound<SaveCosts>(module, "SaveCosts", "")
      .Field("stall", &SaveCosts::stall)
      .Field("background", &SaveCosts::background)
      .Field("write", &SaveCosts::write)
      .Field("restart", &SaveCosts::restart);
  Bound<IntervalChoice>(module, "IntervalChoice", "")
      .Field("seconds", &IntervalChoice::seconds)
      .Field("save_share", &IntervalChoice::save_share)
      .Field("lost_share", &IntervalChoice::lost_share)
      .Field("reason", &IntervalChoice::reason);
  nb::class_<PythonRunLock>(module, "RunLock")
      .def("release", [](PythonRunLock& self) { self.lock.reset(); })
      .def_prop_ro("number",
                   [](const PythonRunLock& self) { return self.lock ? self.lock->number() : 0; })
      .def("check_held", [](PythonRunLock& self) {
        RaiseIfError(Unlocked([&] { return self.lock ? self.lock->CheckHeld() : Status::Ok(); }));
      });
  BindRunNotes(module);
  module.def("list_steps", &ListStepsPython, nb::arg("run"));
  module.def("list_misnamed_steps", &ListMisnamedPython, nb::arg("run"));
  module.def(
      "check_rules", [](const KeepRules& rules) { RaiseIfError(CheckRules(rules)); },
      nb::arg("rules"));
  module.def("prune", &PruneRunPython, nb::arg("run"), nb::arg("rules"), nb::arg("dry_run"),
             nb::arg("busy_share"), nb::arg("prefix").none(), nb::arg("only_managed"));
  module.def(
      "remove_step",
      [](const FsPath& path) { RaiseIfError(Unlocked([&] { return RemoveStep(path.text); })); },
      nb::arg("path"));
  module.def(
      "pin",
      [](const FsPath& path, const std::string& why) {
        RaiseIfError(Unlocked([&] { return PinCheckpoint(path.text, why); }));
      },
      nb::arg("path"), nb::arg("why"));
  module.def(
      "unpin",
      [](const FsPath& path) {
        RaiseIfError(Unlocked([&] { return UnpinCheckpoint(path.text); }));
      },
      nb::arg("path"));
  module.def(
      "quarantine",
      [](const FsPath& path, const std::string& reason) {
        return ToPath(
            ValueOrRaise(Unlocked([&] { return QuarantineCheckpoint(path.text, reason); })));
      },
      nb::arg("path"), nb::arg("reason"));
  module.def(
      "lock_run",
      [](const FsPath& run, const std::string& holder) {
        return PythonRunLock{ValueOrRaise(Unlocked([&] { return LockRun(run.text, holder); }))};
      },
      nb::arg("run"), nb::arg("holder"));
  module.def(
      "step_note",
      [](std::uint64_t step, std::uint64_t attempt, std::optional<std::uint64_t> resumed_from,
         std::int64_t time_ns, const nb::dict& metrics) {
        StepNote note{step, attempt, resumed_from, time_ns};
        if (!AsDict::FromPython(metrics, &note.metrics)) {
          RaiseUnfit("metrics", metrics, AsDict::kWanted);
        }
        return ToBytes(ValueOrRaise(EncodeStepNote(note)));
      },
      nb::arg("step"), nb::arg("attempt"), nb::arg("resumed_from").none(), nb::arg("time_ns"),
      nb::arg("metrics"));
  module.def(
      "choose_interval",
      [](const SaveCosts& costs, std::optional<double> mtbf, double max_share) {
        return ChooseInterval(costs, mtbf, max_share);
      },
      nb::arg("costs"), nb::arg("mtbf").none(), nb::arg("max_share"));
}

}  // namespace varve::python
