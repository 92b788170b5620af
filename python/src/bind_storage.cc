// Stores of objects and keys for S3 that a Python program gives: see varve/storage/.
//
// Any thread of the engine may call them, several at once. Each call takes the GIL, and the store's
// method gives it up while it waits. A thread that takes the GIL while the interpreter ends never
// comes back, see gil.h: so calls end before. At exit (EndCalls, the last
// of the package's atexit functions) no new call begins, and those that run are waited for.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <pthread.h>

#include "bindings.h"
#include "varve/storage_plugins.h"

namespace varve::python {
namespace {

constexpr auto kLongestCall = std::chrono::seconds(30);
constexpr double kNanosecond = 1e9;
constexpr double kYear2200 = 7'258'118'400;  // Unix time in seconds.

std::atomic<bool> calls_have_ended{false};
std::atomic<int> calls_running{0};  // Calls. A forked child has none of its parent's.

struct Running {
  Running() { ++calls_running; }
  ~Running() { --calls_running; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
};

/// Returns the error for an exception; its text is the exception's, and where it was raised.
Status StatusOf(nb::python_error& raised) {
  try {
    const nb::object error =
        nb::module_::import_("varve.storage._failures")
            .attr("as_error")(Raised(raised),
                              raised.traceback().is_valid() ? raised.traceback() : nb::none());
    return ToStatus(error, TextOf(nb::str(error)));
  } catch (const std::exception& error) {
    return Unavailable(error.what());
  }
}

/// Calls into Python with the GIL; turns what is raised into an error.
template <class Call>
auto WithGil(const Call& call) -> decltype(call()) {
  const Running counted;
  if (calls_have_ended) {
    return Unavailable("this Python process ends");
  }
  const GilHeld gil;
  try {
    return UntilTheInterpreterEnds(call);
  } catch (nb::python_error& raised) {
    return StatusOf(raised);
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kOutOfSpace, "the system has no memory left for this process");
  } catch (const std::exception&) {  // A cast's.
    return FailedPrecondition("it returned a value of another type");
  }
}

/// Memory of the engine as an object with the buffer protocol, which counts its users: views of
/// views, and arrays over them, too.
struct EngineMemory {
  std::byte* data = nullptr;
  std::size_t size = 0;
  bool read_only = true;
  int users = 0;  // With the GIL.
};

int GetBuffer(PyObject* self, Py_buffer* view, int flags) noexcept {
  auto* const memory = nb::inst_ptr<EngineMemory>(self);
  const int filled =
      PyBuffer_FillInfo(view, self, memory->data, static_cast<Py_ssize_t>(memory->size),
                        memory->read_only ? 1 : 0, flags);
  memory->users += filled == 0 ? 1 : 0;
  return filled;
}

void ReleaseBuffer(PyObject* self, Py_buffer* /*view*/) noexcept {
  --nb::inst_ptr<EngineMemory>(self)->users;
}

PyType_Slot buffer_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(GetBuffer)},
                              {Py_bf_releasebuffer, reinterpret_cast<void*>(ReleaseBuffer)},
                              {0, nullptr}};

/// Memory of the engine as a memoryview, which ends with this call.
class View {
 public:
  View(const std::byte* data, std::size_t size, bool read_only)
      // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): read-only by its flag.
      : memory_(nb::cast(EngineMemory{const_cast<std::byte*>(data), size, read_only})),
        view_(nb::steal(PyMemoryView_FromObject(memory_.ptr()))) {
    if (!view_.is_valid()) {
      throw nb::python_error();
    }
  }

  View(const View&) = delete;
  View& operator=(const View&) = delete;
  ~View() {
    // No new user from now on. After an exception its traceback may still hold the view.
    auto& memory = nb::cast<EngineMemory&>(memory_);
    memory.data = nullptr;
    memory.size = 0;
  }

  [[nodiscard]] const nb::object& object() const { return view_; }

  /// Ends the view. Errors: FailedPrecondition where the store goes on using the memory.
  Status End() {
    try {
      view_.attr("release")();
    } catch (nb::python_error&) {
      return StillUsed();
    }
    return nb::cast<EngineMemory&>(memory_).users > 0 ? StillUsed() : Status::Ok();
  }

 private:
  static Status StillUsed() {
    return FailedPrecondition(
        "it still uses the memory that it was given, which belongs to it during the call alone");
  }

  nb::object memory_;
  nb::object view_;
};

StoreEntry ObjectFrom(nb::handle given) {
  StoreEntry object;
  object.name = nb::cast<FsPath>(given.attr("name")).text;
  object.size = nb::cast<std::uint64_t>(given.attr("size"));
  const auto modified = nb::cast<double>(given.attr("modified"));
  object.modified_ns = modified > 0 && modified < kYear2200
                           ? static_cast<std::int64_t>(modified * kNanosecond)
                           : 0;  // Not known.
  object.version = TextOf(given.attr("version"));
  object.upload = TextOf(given.attr("upload"));
  if (object.name.ends_with('/')) {
    object.is_folder = true;
    object.name.pop_back();
  }
  return object;
}

class PythonStore final : public ObjectStore {
 public:
  explicit PythonStore(nb::object store) : store_(Shared(std::move(store))) {}

  Result<StoreEntry> Head(const std::string& name) override {
    return WithGil(
        [&]() -> Result<StoreEntry> { return ObjectFrom(store_->attr("head")(ToPath(name))); });
  }

  Status Read(const std::string& name, std::uint64_t offset, std::span<std::byte> into,
              const std::string& version) override {
    return WithGil([&]() -> Status {
      View view(into.data(), into.size(), /*read_only=*/false);
      const nb::object returned =
          store_->attr("read")(ToPath(name), offset, view.object(), ToText(version));
      VARVE_RETURN_IF_ERROR(view.End());
      return returned.is_none()
                 ? Status::Ok()
                 : FailedPrecondition("`read` fills the memory it is given and returns None");
    });
  }

  Result<std::vector<StoreEntry>> List(const std::string& prefix, bool unfinished) override {
    return WithGil([&]() -> Result<std::vector<StoreEntry>> {
      std::vector<StoreEntry> objects;
      const nb::object listed = store_->attr("list")(ToPath(prefix), unfinished);
      for (const nb::handle object : listed) {
        objects.push_back(ObjectFrom(object));
      }
      return objects;
    });
  }

  Status Put(const std::string& name, std::span<const std::byte> data, bool if_absent) override {
    return WithGil([&]() -> Status {
      View view(data.data(), data.size(), /*read_only=*/true);
      store_->attr("put")(ToPath(name), view.object(), if_absent);
      return view.End();
    });
  }

  Status Remove(const std::vector<std::string>& names) override {
    return WithGil([&]() -> Status {
      nb::list list;
      for (const std::string& name : names) {
        list.append(ToPath(name));
      }
      store_->attr("remove")(list);
      return Status::Ok();
    });
  }

  Result<std::string> StartUpload(const std::string& name, std::uint64_t part_bytes) override {
    return WithGil([&]() -> Result<std::string> {
      return TextOf(nb::cast<nb::str>(store_->attr("start_upload")(ToPath(name), part_bytes)));
    });
  }

  Result<std::string> UploadPart(const std::string& name, const std::string& upload, int number,
                                 std::span<const std::byte> data) override {
    return WithGil([&]() -> Result<std::string> {
      View view(data.data(), data.size(), /*read_only=*/true);
      const auto part = nb::cast<nb::str>(
          store_->attr("upload_part")(ToPath(name), ToText(upload), number, view.object()));
      VARVE_RETURN_IF_ERROR(view.End());
      return TextOf(part);
    });
  }

  Status EndUpload(const std::string& name, const std::string& upload,
                   const std::vector<std::string>* parts) override {
    return WithGil([&]() -> Status {
      nb::object list = nb::none();
      if (parts != nullptr) {
        nb::list all;
        for (const std::string& part : *parts) {
          all.append(ToText(part));
        }
        list = std::move(all);
      }
      store_->attr("end_upload")(ToPath(name), ToText(upload), list);
      return Status::Ok();
    });
  }

 private:
  const std::shared_ptr<nb::object> store_;
};

void RegisterPython(const std::string& scheme, nb::object store, std::uint64_t part_bytes,
                    bool uploads, bool weak_publish, bool replace) {
  RaiseIfError(RegisterObjectStore(scheme, std::make_shared<PythonStore>(std::move(store)),
                                   {.part_bytes = part_bytes,
                                    .uploads = uploads,
                                    .weak_publish = weak_publish,
                                    .replace = replace}));
}

/// `function` returns (access key, secret key, token, Unix time in seconds), or is None.
void SetKeysPython(const std::string& scheme, nb::object function) {
  S3KeysFunction keys;
  if (!function.is_none()) {
    keys = [shared = Shared(std::move(function))] {
      return WithGil([&]() -> Result<S3Keys> {
        const nb::object given = (*shared)();
        return S3Keys{TextOf(given[0]), TextOf(given[1]), TextOf(given[2]),
                      nb::cast<std::int64_t>(nb::object(given[3]))};
      });
    };
  }
  RaiseIfError(SetS3Keys(scheme, std::move(keys)));
}

/// Waits for calls that run. Called with the GIL, which they need.
void EndCalls() {
  calls_have_ended = true;
  const GilReleased release;
  const auto deadline = std::chrono::steady_clock::now() + kLongestCall;
  while (calls_running > 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

void BindStorage(nb::module_& module) {
  static_cast<void>(::pthread_atfork(nullptr, nullptr, [] { calls_running = 0; }));
  nb::module_ storage = module.def_submodule("storage", "Stores and keys that a program gives.");
  const nb::class_<EngineMemory> memory(storage, "EngineMemory", nb::type_slots(buffer_slots));
  storage.def("register_store", &RegisterPython, nb::arg("scheme"), nb::arg("store"),
              nb::arg("part_bytes"), nb::arg("uploads"), nb::arg("weak_publish"),
              nb::arg("replace"));
  storage.def(
      "unregister_store",
      [](const std::string& scheme) { RaiseIfError(UnregisterObjectStore(scheme)); },
      nb::arg("scheme"));
  storage.def("registered_schemes", [] {
    nb::list schemes;
    for (const std::string& scheme : RegisteredSchemes()) {
      schemes.append(ToText(scheme));
    }
    return schemes;
  });
  storage.def("set_s3_keys", &SetKeysPython, nb::arg("scheme"), nb::arg("function").none());
  storage.def("end_calls", &EndCalls);
}

}  // namespace varve::python
