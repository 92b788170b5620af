#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "coordinate/channel/channel.h"
#include "interruptible.h"

namespace varve::python {
namespace {

constexpr const char* kChannelDoc =
    R"(One rank's end of a channel: a call is enter, messages, leave; see src/coordinate/channel_state.cc.

Attributes:
    rank: Of this process among the ranks.
    size: The number of ranks.
    what: The name of the call that this rank is in, or was in last.
    cause: The rank that made rank 0 leave this call, where rank 0 has sent it.
    lost: A message of this call did not come or could not be sent: the ranks may be out of step.

Threads: a call is made by one thread; `interrupt` may be called while it waits.
)";

/// A rank of an uncoordinated save: only its number and the number of ranks.
class Uncoordinated final : public Coordinator {
 public:
  Uncoordinated(int rank, int size) : rank_(rank), size_(size) {}
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  Status Send(int /*to*/, std::string_view /*message*/, Deadline /*deadline*/) override {
    return Internal("an uncoordinated save sent a message");
  }
  Result<std::string> Receive(int /*from*/, Deadline /*deadline*/) override {
    return Internal("an uncoordinated save waited for a message");
  }

 private:
  int rank_;
  int size_;
};

struct Ranks {
  std::shared_ptr<Coordinator> coordinator;
};

struct PythonChannel : Ranks {
  explicit PythonChannel(std::shared_ptr<Channel> made) : Ranks{made}, channel(std::move(made)) {}
  std::shared_ptr<Channel> channel;
};

/// The store of torch.distributed, by two functions.
class Store final : public Rendezvous {
 public:
  Store(nb::callable get, nb::callable set) : get_(std::move(get)), set_(std::move(set)) {}

  Status Set(const std::string& key, const std::string& value) override {
    const GilHeld gil;
    return Guard([&] { set_(key, ToBytes(value)); });
  }
  Result<std::optional<std::string>> Get(const std::string& key) override {
    const GilHeld gil;
    std::optional<std::string> value;
    VARVE_RETURN_IF_ERROR(Guard([&] {
      if (const nb::object found = get_(key); !found.is_none()) {
        const auto bytes = nb::cast<nb::bytes>(found);
        value.emplace(bytes.c_str(), bytes.size());
      }
    }));
    return value;
  }

 private:
  template <class Call>
  static Status Guard(const Call& call) {
    try {
      UntilTheInterpreterEnds(call);
      return Status::Ok();
    } catch (nb::python_error& error) {
      return Unavailable("the store of the job: " + nb::cast<std::string>(nb::str(Raised(error))));
    } catch (const std::exception& error) {
      return Unavailable(std::string("the store of the job: ") + error.what());
    }
  }

  nb::callable get_;
  nb::callable set_;
};

void LogWarning(const std::string& line) {
  const GilHeld gil;
  try {
    UntilTheInterpreterEnds([&] {
      const nb::object log = nb::module_::import_("logging").attr("getLogger")("varve");
      log.attr("warning")("%s", ToText(line));
    });
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("a warning of varve");
  }
}

Deadline In(double seconds) { return After(std::chrono::steady_clock::now(), seconds); }

std::string ContentOf(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

/// Makes a call that waits for other ranks, which Ctrl-C ends. Owns the channel meanwhile: the end
/// of the interpreter drops Python's.
template <class Call>
auto Waiting(const nb::object& self, const Call& call) {
  const std::shared_ptr<Channel> channel = ChannelOf(self);
  decltype(call(channel)) result = Internal("not run");
  const auto run = [&] {
    try {
      result = call(channel);
    } catch (const std::exception& error) {  // It would end the process, on a thread of its own.
      result = Status(StatusCode::kOutOfSpace, channel->what() + ": " + error.what());
    }
  };
  RunCollective(run, self, [] {}, nullptr, "");
  if constexpr (std::is_same_v<decltype(result), Status>) {
    RaiseIfError(result);
  } else {
    return ValueOrRaise(std::move(result));
  }
}

/// Makes a call that waits for nothing but locks.
template <class Call>
auto Quickly(const nb::object& self, const Call& call) {
  const std::shared_ptr<Channel> channel = ChannelOf(self);
  const GilReleased release;
  return call(*channel);
}

void Enter(const nb::object& self, const nb::str& name, double timeout, double left,
           const std::string& key, nb::callable get, nb::callable set) {
  Store store(std::move(get), std::move(set));
  const std::string what = TextOf(name);
  const Deadline until = In(left);
  const auto enter = [&](Channel& ranks) { return ranks.Enter(what, timeout, until, store, key); };
  const bool ready = Quickly(self, [](Channel& ranks) {
    ranks.Resume();
    return ranks.IsReady();
  });
  if (ready) {
    RaiseIfError(Quickly(self, enter));
  } else {
    Waiting(self, [&](const std::shared_ptr<Channel>& ranks) { return enter(*ranks); });
  }
}

/// Makes an exchange of the call that the ranks are in.
template <class Combine>
std::string ExchangePython(const nb::object& self, std::string mine, double timeout,
                           const Combine& combine) {
  return Waiting(self, [&](const std::shared_ptr<Channel>& ranks) {
    return Exchange(*MakeInStep(ranks), ranks->what(), std::move(mine), In(timeout), combine);
  });
}

nb::bytes Share(const nb::object& self, const nb::bytes& message, double timeout) {
  return ToBytes(
      ExchangePython(self, ContentOf(message), timeout,
                     [](const std::vector<std::string>& given) -> Result<std::vector<std::string>> {
                       return std::vector<std::string>(given.size(), given.front());
                     }));
}

bool AllTrue(const nb::object& self, bool mine, double timeout) {
  const std::string all = ExchangePython(
      self, mine ? "y" : "", timeout,
      [](const std::vector<std::string>& given) -> Result<std::vector<std::string>> {
        const bool yes = std::none_of(given.begin(), given.end(),
                                      [](const std::string& one) { return one.empty(); });
        return std::vector<std::string>(given.size(), yes ? "y" : "");
      });
  return !all.empty();
}

nb::list GatherPython(const nb::object& self, const nb::bytes& mine, double timeout) {
  nb::list gathered;
  for (const std::string& one :
       Waiting(self, [&, message = ContentOf(mine)](const std::shared_ptr<Channel>& ranks) {
         return Gather(*MakeInStep(ranks), ranks->what(), message, In(timeout));
       })) {
    gathered.append(ToBytes(one));
  }
  return gathered;
}

/// Bytes of a message that a socket takes whatever the other rank does, mostly.
constexpr std::size_t kWithoutWaiting = 65'536;

void Send(const nb::object& self, int to, const nb::bytes& message, double timeout) {
  if (message.size() <= kWithoutWaiting) {
    const std::string_view bytes(message.c_str(), message.size());
    RaiseIfError(Quickly(self, [&](Channel& ranks) { return ranks.Send(to, bytes, In(timeout)); }));
    return;
  }
  // It leaves while the other rank reads: Ctrl-C must reach this one meanwhile.
  Waiting(self, [&, bytes = ContentOf(message)](const std::shared_ptr<Channel>& ranks) {
    return ranks->Send(to, bytes, In(timeout));
  });
}

nb::bytes Receive(const nb::object& self, int source, double timeout) {
  return ToBytes(Waiting(self, [&](const std::shared_ptr<Channel>& ranks) {
    return ranks->Receive(source, In(timeout));
  }));
}

bool Flush(const nb::object& self, double seconds) {
  const bool has_left = Quickly(self, [](Channel& ranks) {
    ranks.Resume();
    return ranks.Flush(In(0));
  });
  if (has_left) {
    return true;
  }
  return Waiting(self, [&](const std::shared_ptr<Channel>& ranks) -> Result<bool> {
    return ranks->Flush(In(seconds));
  });
}

PythonChannel Background(const nb::object& self, double timeout, const nb::str& name) {
  const std::string text = TextOf(name);
  return PythonChannel(Waiting(self, [&](const std::shared_ptr<Channel>& ranks) {
    return ranks->MakeBackground(timeout, text);
  }));
}

std::vector<Ranks> OfThreads(int size) {
  std::vector<Ranks> ranks;
  for (std::unique_ptr<Coordinator>& one : MakeInProcessCoordinators(size)) {
    ranks.push_back({std::move(one)});
  }
  return ranks;
}

}  // namespace

std::unique_ptr<Coordinator> MakeCoordinator(nb::handle object) {
  return object.is_none() ? MakeSingleProcessCoordinator()
                          : MakeInStep(nb::cast<const Ranks&>(object).coordinator);
}

std::shared_ptr<Channel> ChannelOf(nb::handle object) {
  return nb::isinstance<PythonChannel>(object) ? nb::cast<const PythonChannel&>(object).channel
                                               : nullptr;
}

void BindChannel(nb::module_& module) {
  nb::class_<Ranks>(module, "Coordinator", "A rank; by itself one that sends no messages.")
      .def(
          "__init__",
          [](Ranks* self, int rank, int size) {
            new (self) Ranks{std::make_shared<Uncoordinated>(rank, size)};
          },
          nb::arg("rank"), nb::arg("size"))
      .def_static("of_threads", &OfThreads, nb::arg("size"))
      .def_prop_ro("rank", [](const Ranks& self) { return self.coordinator->rank(); })
      .def_prop_ro("size", [](const Ranks& self) { return self.coordinator->size(); });
  nb::class_<PythonChannel, Ranks>(module, "Channel", kChannelDoc)
      .def(
          "__init__",
          [](PythonChannel* self, int rank, int size, double first_notice) {
            const auto notice = std::chrono::duration_cast<std::chrono::milliseconds>(
                std::chrono::duration<double>(first_notice));
            auto channel = std::make_shared<Channel>(ChannelOptions{
                .rank = rank, .size = size, .log = LogWarning, .first_notice = notice});
            RaiseIfError(channel->CheckSockets());
            new (self) PythonChannel(std::move(channel));
          },
          nb::arg("rank"), nb::arg("size"), nb::arg("first_notice"))
      .def_prop_ro("what",
                   [](const nb::object& self) {
                     return ToText(Quickly(self, [](Channel& ranks) { return ranks.what(); }));
                   })
      .def_prop_ro("lost", [](const PythonChannel& self) { return self.channel->lost(); })
      .def_prop_ro("cause",
                   [](const nb::object& self) -> std::optional<int> {
                     const int cause = Quickly(self, [](Channel& ranks) { return ranks.cause(); });
                     return cause < 0 ? std::nullopt : std::optional(cause);
                   })
      .def("enter", &Enter, nb::arg("what"), nb::arg("timeout"), nb::arg("left"), nb::arg("key"),
           nb::arg("get"), nb::arg("set"))
      .def(
          "leave",
          [](const nb::object& self, const nb::str& why, std::optional<int> cause) {
            const std::string text = TextOf(why);
            Quickly(self, [&](Channel& ranks) { ranks.Leave(text, cause.value_or(-1)); });
          },
          nb::arg("why"), nb::arg("cause").none())
      .def("flush", &Flush, nb::arg("seconds"))
      .def("send", &Send, nb::arg("to"), nb::arg("message"), nb::arg("timeout"))
      .def("receive", &Receive, nb::arg("source"), nb::arg("timeout"))
      .def("share", &Share, nb::arg("message"), nb::arg("timeout"))
      .def("gather", &GatherPython, nb::arg("mine"), nb::arg("timeout"))
      .def("all_true", &AllTrue, nb::arg("mine"), nb::arg("timeout"))
      .def("background", &Background, nb::arg("timeout"), nb::arg("name"))
      .def("interrupt", [](const PythonChannel& self) { self.channel->Interrupt(); })
      .def(
          "tell_past",
          [](const nb::object& self, const nb::str& name) {
            const std::string text = TextOf(name);
            Quickly(self, [&](Channel& ranks) { ranks.TellPast(text); });
          },
          nb::arg("name"))
      .def("hang_up",
           [](const nb::object& self) { Quickly(self, [](Channel& ranks) { ranks.Close(); }); });
  module.def("name_ranks", &NameRanks, nb::arg("ranks"));
  module.def(
      "order_of_calls",
      [](const nb::str& mine, const nb::str& theirs) {
        return OrderOfCalls(TextOf(mine), TextOf(theirs));
      },
      nb::arg("mine"), nb::arg("theirs"));
}

}  // namespace varve::python
