#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>

#include "bindings.h"
#include "bound.h"
#include "interruptible.h"
#include "varve/agent.h"
#include "varve/checkpoint.h"
#include "varve/options.h"

namespace varve::python {

ProgressFunction MakeProgress(nb::object callback) {
  if (callback.is_none()) {
    return {};
  }
  auto last = std::make_shared<std::atomic<std::int64_t>>(0);
  auto holder = Shared(std::move(callback));
  return [last, holder](std::uint64_t done, std::uint64_t total) {
    const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(
                         std::chrono::steady_clock::now().time_since_epoch())
                         .count();
    std::int64_t before = *last;
    if ((now - before < 50 && done != total) || !last->compare_exchange_strong(before, now)) {
      return;
    }
    const GilHeld gil;
    try {
      UntilTheInterpreterEnds([&] { (*holder)(done, total); });
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("progress callback");
    }
  };
}

std::shared_ptr<nb::object> Shared(nb::object object) {
  return {new nb::object(std::move(object)), [](nb::object* last) {
            const GilHeld gil;
            delete last;
          }};
}

std::string Shown(nb::handle value) {
  return nb::cast<std::string>(nb::module_::import_("varve._arguments").attr("shown")(value));
}

void RaiseUnfit(const char* name, nb::handle value, const std::string& want) {
  Raise(InvalidArgument(std::string(name) + "=" + Shown(value) + ": want " + want));
}

namespace {

/// A format that saves write.
struct AsWritten : AsIs {
  static constexpr const char* kWanted = "\"varve\", \"dcp\" or \"hf\"";

  static nb::object ToPython(Format format) {
    return format == Format::kSafetensors ? nb::cast("hf") : nb::cast(format);
  }
  static bool FromPython(nb::handle given, Format* out) {
    std::string name;
    if (nb::try_cast(given, name) && name == "hf") {
      *out = Format::kSafetensors;
      return true;
    }
    return nb::try_cast(given, *out) &&
           (*out == Format::kVarve || *out == Format::kDcp || *out == Format::kHfai);
  }
};

/// SaveOptions::overwrite. Messages leave out "in_place": varve.hfai gives it, people do not.
struct AsOverwrite : AsIs {
  static constexpr const char* kWanted = "False, True or \"damaged\"";
};

SaveReport SavePython(const State& state, const FsPath& path, SaveOptions options,
                      const nb::object& coordinator) {
  ProgressCount count;
  options.progress = Counting(&count, std::move(options.progress));
  std::stop_source stop;
  options.stop = stop.get_token();
  const auto ranks = MakeCoordinator(coordinator);
  Result<SaveReport> report = Internal("not run");
  RunCollective([&] { report = Save(state, path.text, options, *ranks); }, coordinator,
                [&] { stop.request_stop(); }, &count, "writing");
  return ValueOrRaise(std::move(report).With({.path = path.text}));
}

}  // namespace

void BindCheckpoint(nb::module_& module) {
  Bound<SaveOptions>(module, "SaveOptions", nullptr)
      .Field<AsOverwrite>("overwrite", &SaveOptions::overwrite)
      .Field("coordinate", &SaveOptions::coordinate)
      .Field<AsWritten>("format", &SaveOptions::format)
      .Keyword<AsSaveId>("save_id", &SaveOptions::save_id)
      .Field("timeout", &SaveOptions::timeout)
      .Field("direct", &SaveOptions::direct)
      .Field("writes_in_flight", &SaveOptions::writes_in_flight)
      .Field("max_write_bandwidth", &SaveOptions::max_write_bandwidth)
      .Field("check_replicas", &SaveOptions::check_replicas)
      .Field("on_difference", &SaveOptions::on_difference)
      .Field("block_bytes", &SaveOptions::block_bytes)
      .Field("shard_size", &SaveOptions::shard_size)
      .Field<AsPath>("upload_to", &SaveOptions::upload_to)
      .Keyword<AsProgress>("progress", &SaveOptions::progress);
  module.def("save", &SavePython, nb::arg("state"), nb::arg("path"), nb::arg("options"),
             nb::arg("coordinator").none());
  module.def(
      "agree",
      [](const nb::object& coordinator, const FsPath& what, const FsPath& message,
         const nb::object& error, nb::handle timeout) {
        const Status outcome = error.is_none() ? Status::Ok() : ToStatus(error, message.text);
        const auto limit = Argument<std::chrono::milliseconds>("timeout", timeout);
        const auto ranks = MakeCoordinator(coordinator);
        Status status;
        RunCollective(
            [&] {
              status = Agree(*ranks, what.text, outcome, std::chrono::steady_clock::now() + limit);
            },
            coordinator, [] {}, nullptr, "");
        RaiseIfError(status);
      },
      nb::arg("coordinator").none(), nb::arg("what"), nb::arg("message"), nb::arg("error").none(),
      nb::arg("timeout"));
}

}  // namespace varve::python
