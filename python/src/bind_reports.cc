// The reports of saves.

#include "bindings.h"
#include "bound.h"
#include "varve/async_save.h"
#include "varve/events.h"
#include "varve/options.h"

namespace varve::python {
namespace {

constexpr const char* kSaveDoc = R"(The result of a save, on this rank.

Attributes:
    save_id: The 32 hex digits that all files of the save carry.
    bytes_written: Bytes that this rank wrote, header included.
    seconds: From the call to the end; where the agent writes, from when it begins to.
    direct: False where the file system refused O_DIRECT and writes went through the page cache.
    differing_objects: On rank 0: plain values that differed between ranks under one name. See
        PerRank, and `on_difference` of save, which says which of them are stored.
    differing_tensors: On rank 0: tensors of which some shard differed between the ranks that hold
        it. As differing_objects.
    conflicts: On rank 0: files that a user put beside the old checkpoint while it was replaced,
        and whose names the new one's directory has already. They stay at these paths, and are
        logged as a warning.
    weak_publish: On rank 0: True where the object store does not obey conditional writes. Of two
        saves that publish one name in the same moment the later one wins there, without a message.
    device_bytes: Bytes that the engine copied from CUDA devices.
    pageable_bytes: Of those, bytes that went to memory which the driver had not registered: slower.
    copied_ahead: CopiedAhead: the tensors on devices that torch copied to the CPU, one at a time.
    phases: The parts of the save and their times: a list of Phase.
)";

constexpr const char* kAsyncDoc = R"(The result of a save in the background, on this rank.

Attributes:
    save_id: As in SaveReport.
    bytes_written: As in SaveReport.
    seconds: As in SaveReport.
    direct: As in SaveReport.
    differing_objects: As in SaveReport.
    differing_tensors: As in SaveReport.
    conflicts: As in SaveReport.
    weak_publish: As in SaveReport.
    device_bytes: As in SaveReport.
    pageable_bytes: As in SaveReport.
    copied_ahead: As in SaveReport.
    phases: As in SaveReport; "stage" is the copy.
    staging_seconds: From the call until the copy was made.
    in_waves: The state was larger than the staging memory; copying had to wait for writing.
    attempts: Number of times the file was written, with the last.
    staging_memory: StagingMemory: the part of the stager's memory that was registered by then.
)";

constexpr const char* kDeferredDoc =
    R"(The result of a deferred save on this rank; other ranks may differ.

Attributes:
    save_id: The 32 hex digits that all files of the checkpoint will carry.
    bytes: Size of this rank's file, which the agent holds.
    seconds: From the call until the agent had the copy.
    device_bytes: As in SaveReport.
    pageable_bytes: As in SaveReport.
    copied_ahead: As in SaveReport.
    differing_tensors: On rank 0: as in SaveReport.
    differing_objects: On rank 0: as in SaveReport.
)";

constexpr const char* kCopiedAheadDoc = R"(Tensors on devices that the engine did not copy itself.

Attributes:
    tensors: How many torch copied, one at a time.
    problem: Why the engine can use no device: the driver's reason. Empty where it can; then these are
        tensors that are no plain memory (conjugated, negated, or of a subclass).
)";

constexpr const char* kStagingMemoryDoc =
    R"(The staging memory that is registered with the CUDA driver.

Attributes:
    registrations: Made so far.
    registered_bytes: Bytes in them.
    register_seconds: That they took, in the background.
    numa_node: The NUMA node that the memory is taken from; None where the system has one node.
    refused: The driver's reason, where it refused to register some.
)";

constexpr const char* kPhaseDoc = R"(A part of a save or load.

Attributes:
    name: A save has "plan", "exchange", "stage", "wait", "write", "sync" and "commit". A load has "open",
        "plan", "exchange", "read", "verify", "copy" and "device".
    seconds: On this rank. Of "read", "verify", "copy" and "device" the mean of the threads that do them.
    bytes: That it copied, wrote or read; 0 where it is not about bytes.
    slowest_rank: On rank 0 of a save by several ranks: the rank that took longest.
    slowest_seconds: Seconds that it took there.
)";

/// Calls a Python function with an event: its level as in `logging`, rank, message, fields, and
/// seconds since 1970.
void SetPythonEvents(nb::object function) {
  EventFunction next;
  if (!function.is_none()) {
    next = [take = Shared(std::move(function))](const Event& event) {
      const GilHeld acquire;
      try {
        nb::dict fields;
        for (const auto& [name, value] : event.fields) {
          fields[ToText(name)] = ToText(value);
        }
        UntilTheInterpreterEnds([&] {
          (*take)(10 * (static_cast<int>(event.level) + 1),
                  event.rank < 0 ? nb::none() : nb::object(nb::int_(event.rank)),
                  ToText(event.message), fields,
                  std::chrono::duration<double>(event.time.time_since_epoch()).count());
        });
      } catch (nb::python_error& error) {
        error.discard_as_unraisable("a handler of Varve's events");
      }
    };
  }
  const GilReleased release;  // The function before it may be waiting for the GIL.
  SetEventFunction(std::move(next));
}

/// Adds the fields of a SaveReport to a class that has them.
template <class Class>
Class& WithSaveFields(Class& bound) {
  return bound.template Field<AsSaveId>("save_id", &SaveReport::save_id)
      .Field("bytes_written", &SaveReport::bytes_written)
      .Field("seconds", &SaveReport::seconds)
      .Field("direct", &SaveReport::direct)
      .Field("differing_objects", &SaveReport::differing_objects)
      .Field("differing_tensors", &SaveReport::differing_tensors)
      .template Field<AsPath>("conflicts", &SaveReport::conflicts)
      .Field("weak_publish", &SaveReport::weak_publish)
      .Field("device_bytes", &SaveReport::device_bytes)
      .Field("pageable_bytes", &SaveReport::pageable_bytes)
      .Field("copied_ahead", &SaveReport::copied_ahead)
      .Field("phases", &SaveReport::phases);
}

}  // namespace

void BindReports(nb::module_& module) {
  module.def("set_event_function", &SetPythonEvents, nb::arg("function").none());
  Bound<Phase>(module, "Phase", kPhaseDoc)
      .Field("name", &Phase::name)
      .Field("seconds", &Phase::seconds)
      .Field("bytes", &Phase::bytes)
      .Field("slowest_rank", &Phase::slowest_rank)
      .Field("slowest_seconds", &Phase::slowest_seconds)
      .Public("varve");
  Bound<CopiedAhead>(module, "CopiedAhead", kCopiedAheadDoc)
      .Field("tensors", &CopiedAhead::tensors)
      .Field<AsMessage>("problem", &CopiedAhead::problem)
      .Public("varve");
  Bound<StagingMemory>(module, "StagingMemory", kStagingMemoryDoc)
      .Field("registrations", &StagingMemory::registrations)
      .Field("registered_bytes", &StagingMemory::registered_bytes)
      .Field("register_seconds", &StagingMemory::register_seconds)
      .Field("numa_node", &StagingMemory::numa_node)
      .Field<AsMessage>("refused", &StagingMemory::refused)
      .Public("varve.torch");
  Bound<SaveReport> save(module, "SaveReport", kSaveDoc);
  WithSaveFields(save).Public("varve");
  Bound<AsyncSaveReport, SaveReport> background(module, "AsyncSaveReport", kAsyncDoc);
  WithSaveFields(background)
      .Field("staging_seconds", &AsyncSaveReport::staging_seconds)
      .Field("in_waves", &AsyncSaveReport::in_waves)
      .Field("attempts", &AsyncSaveReport::attempts)
      .Field("staging_memory", &AsyncSaveReport::staging_memory)
      .Public("varve.torch");
  Bound<DeferredReport>(module, "DeferredReport", kDeferredDoc)
      .Field<AsSaveId>("save_id", &DeferredReport::save_id)
      .Field("bytes", &DeferredReport::bytes)
      .Field("seconds", &DeferredReport::seconds)
      .Field("device_bytes", &DeferredReport::device_bytes)
      .Field("pageable_bytes", &DeferredReport::pageable_bytes)
      .Field("copied_ahead", &DeferredReport::copied_ahead)
      .Field("differing_tensors", &DeferredReport::differing_tensors)
      .Field("differing_objects", &DeferredReport::differing_objects)
      .Public("varve.torch");
}

}  // namespace varve::python
