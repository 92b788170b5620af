// An open checkpoint: its index, and the bytes of its tensors and values.

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <stop_token>
#include <string_view>
#include <utility>

#include "bindings.h"
#include "bound.h"
#include "interruptible.h"
#include "plain_items.h"
#include "plain_tensor.h"
#include "varve/agent.h"
#include "varve/catalogue.h"
#include "varve/checkpoint.h"

namespace varve::python {
namespace {

/// A chunk of a tensor, with what is known of its file.
struct StoredChunk {
  Dims offsets;
  Dims sizes;
  std::string file;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::optional<std::uint32_t> rank;  ///< Not in formats without ranks.
};

struct PythonLoadReport : LoadReport {
  std::uint64_t bytes_from_agent = 0;
};

constexpr const char* kLoadReportDoc =
    R"(What a load found; with `strict=False` differences are reported here rather than refused.

Attributes:
    loaded: Tensors and plain values that this rank has got.
    bytes_read: Bytes of tensors that this rank has read, whole checksum blocks, from wherever they came.
    storage_bytes: The bytes that this rank asked storage for, for itself and for other ranks. It leaves out what the
        page cache, the agent's memory or another rank had. Where ranks of a node share reads by the page cache, it is
        an estimate: each rank counts its part.
    bytes_from_agent: Of bytes_read, the bytes that came from the memory of this node's agent.
    device_bytes: Bytes that the engine copied to CUDA devices, as their tensors hold them.
    copied_ahead: CopiedAhead: the tensors on devices that torch filled from the CPU, one at a time.
    seconds: From the agreement of the ranks until all had read.
    missing: Names that some rank wanted and the checkpoint does not have.
    unexpected: Names in the checkpoint that no rank wanted: left over.
    mismatched: Names of another dtype, shape or kind, each with the reason.
    kept: Names under which the ranks that saved held different values; this rank got its own.
    merged: Names of that kind of which this rank got the lowest rank's value.
    resized: With `fit="overlap"`: tensors of another size than the stored one, a list of ResizedTensor.
        The part that both have was filled.
    phases: The parts of the load and their times: a list of Phase. A thread verifies and copies bytes
        of the page cache as it reads them: all of that is "read".
)";

constexpr const char* kResizedDoc =
    R"(A tensor of another size than the stored one, of which a load filled the part that both have.

Attributes:
    name: Full name in the checkpoint.
    stored: Shape in the checkpoint.
    wanted: Shape in the destination. The load left the elements outside of the stored shape alone.
)";

constexpr const char* kStoredChunkDoc =
    R"(A piece of a tensor as a data file has it.

Attributes:
    offsets: First index of the piece in the whole tensor, one for each dimension.
    sizes: Elements of the piece, one for each dimension.
    file: The data file, relative to the checkpoint's `directory`.
    begin: First byte of the piece in the file. In formats of torch it is the first byte of the
        archive that holds the piece.
    end: The byte behind the last one.
    rank: The rank that wrote the file; None in formats without ranks.
)";

nb::tuple TupleOf(const Dims& dims) {
  nb::list out;
  for (const std::uint64_t size : dims) {
    out.append(size);
  }
  return nb::tuple(out);
}

class PythonReader {
 public:
  PythonReader(const FsPath& path, bool use_agent, std::uint32_t own_ranks_of)
      : reader_(Stoppable(path.text, [&](const std::stop_token& stop) {
          if (own_ranks_of != 0) {
            return CheckpointReader::OpenOwnRanks(path.text, own_ranks_of);
          }
          if (use_agent) {
            agent_ = OpenAgentMemory(path.text, AnyStorage(),
                                     [this](std::uint64_t bytes) { from_agent_ += bytes; });
          }
          return CheckpointReader::Open(path.text, agent_ != nullptr ? *agent_ : AnyStorage(),
                                        stop);
        })) {}

  PythonReader(const PythonReader&) = delete;
  PythonReader& operator=(const PythonReader&) = delete;
  ~PythonReader() {
    const GilReleased release;  // Threads that read for other ranks may need it.
    reader_.reset();
  }

  CheckpointReader& reader() { return *reader_; }

  nb::object Structure() {
    return FromValue(
        Stoppable(reader().path(),
                  [&](const std::stop_token& stop) { return reader().ReadStructure(stop); }),
        false);
  }

  nb::list Objects(const std::vector<std::string>& fqns, bool allow_pickle) {
    const std::vector<Value> values = Stoppable(reader().path(), [&](const std::stop_token& stop) {
      return reader().ReadObjects(fqns, stop);
    });
    nb::list out;
    for (std::size_t i = 0; i < fqns.size(); ++i) {
      try {
        out.append(FromValue(values[i], allow_pickle));
      } catch (const nb::python_error& error) {
        nb::module_::import_("varve._values").attr("name_failure")(fqns[i], Raised(error));
      }
    }
    return out;
  }

  /// {fqn: (dtype number, shape)} of the tensors with these names that are there; None is all.
  nb::dict Tensors(const std::optional<std::vector<std::string>>& names) {
    nb::dict out;
    const auto add = [&out](const TensorMetadata& tensor) {
      out[nb::str(tensor.fqn.data(), tensor.fqn.size())] =
          nb::make_tuple(static_cast<int>(tensor.dtype), TupleOf(tensor.shape));
    };
    const Metadata& metadata = reader().metadata();
    if (!names) {
      std::for_each(metadata.tensors.begin(), metadata.tensors.end(), add);
      return out;
    }
    for (const std::string& name : *names) {
      if (const TensorMetadata* tensor = metadata.FindTensor(name)) {
        add(*tensor);
      }
    }
    return out;
  }

  /// {name: values} of tensors and plain values of which ranks held several.
  nb::dict Variants() {
    nb::dict out;
    for (const auto& [name, values] : reader().metadata().SeveralValues()) {
      out[nb::str(name.data(), name.size())] = values;
    }
    return out;
  }

  nb::list TensorNames() {
    nb::list out;
    for (const TensorMetadata& tensor : reader().metadata().tensors) {
      out.append(nb::str(tensor.fqn.data(), tensor.fqn.size()));
    }
    return out;
  }

  nb::list ObjectNames() {
    nb::list out;
    for (const ObjectMetadata& object : reader().metadata().objects) {
      out.append(nb::str(object.fqn.data(), object.fqn.size()));
    }
    return out;
  }

  std::vector<StoredChunk> Chunks(const std::string& name) {
    const Metadata& metadata = reader().metadata();
    const TensorMetadata* const tensor = metadata.FindTensor(name);
    if (tensor == nullptr) {
      Raise(NotFound(reader().path() + " holds no tensor \"" + name + "\""));
    }
    const bool ranked = metadata.format == Format::kVarve || metadata.format == Format::kDcp ||
                        metadata.format == Format::kHfai;
    std::vector<StoredChunk> chunks;
    for (const Chunk& chunk : tensor->chunks) {
      const DataFile& file = metadata.files[chunk.extent.file];
      chunks.push_back({chunk.box.offsets, chunk.box.sizes, file.name, chunk.extent.begin,
                        chunk.extent.end, ranked ? std::optional(file.rank) : std::nullopt});
    }
    return chunks;
  }

  /// (file, begin) of a tensor whose elements are one run of a file, row-major; None for others.
  std::optional<std::pair<std::string, std::uint64_t>> RunOf(const std::string& name) {
    const Metadata& metadata = reader().metadata();
    const TensorMetadata* const tensor = metadata.FindTensor(name);
    if (tensor == nullptr || tensor->chunks.size() != 1) {
      return std::nullopt;
    }
    const Chunk& chunk = tensor->chunks[0];
    if (chunk.extent.encoding != Encoding::kPlain || !chunk.strides.empty() || chunk.conj ||
        chunk.neg || chunk.box != WholeBox(tensor->shape)) {
      return std::nullopt;
    }
    return std::pair(metadata.files[chunk.extent.file].name, chunk.extent.begin);
  }

  /// [(name, whether it is a tensor), ...] of all that is stored, in natural order.
  nb::list Names() {
    std::vector<std::pair<std::string_view, bool>> names;
    for (const TensorMetadata& tensor : reader().metadata().tensors) {
      names.emplace_back(tensor.fqn, true);
    }
    for (const ObjectMetadata& object : reader().metadata().objects) {
      names.emplace_back(object.fqn, false);
    }
    std::sort(names.begin(), names.end(),
              [](const auto& a, const auto& b) { return NaturalLess(a.first, b.first); });
    nb::list out;
    for (const auto& [name, is_tensor] : names) {
      out.append(nb::make_tuple(nb::str(name.data(), name.size()), is_tensor));
    }
    return out;
  }

  /// {fqn: (file, begin, end)}, of values that are stored in a file.
  nb::dict ObjectExtents() {
    nb::dict out;
    const Metadata& metadata = reader().metadata();
    for (const ObjectMetadata& object : metadata.objects) {
      if (object.extent.encoding != Encoding::kInline) {
        out[nb::str(object.fqn.data(), object.fqn.size())] =
            nb::make_tuple(ToPath(metadata.files[object.extent.file].name), object.extent.begin,
                           object.extent.end);
      }
    }
    return out;
  }

  /// Adds the plain tensors of a dict to a request, up to the first entry that is none, or that is
  /// not stored as a tensor of the same dtype and shape.
  ///
  /// `leaves` gets the tensor under each name, `keep` its storage; a name that is there ends it
  /// too. Returns the first other (key, value), None at the end.
  nb::object MatchPlainItems(LoadRequest& request, nb::handle entries,
                             const std::optional<std::string>& path, nb::dict leaves, nb::list keep,
                             bool devices) {
    const Metadata& metadata = reader().metadata();
    return TakeWhile(entries, [&](nb::handle key, nb::handle tensor) {
      auto name = NameAt(path, key);
      if (!name) {
        return false;
      }
      const nb::str text(name->c_str(), name->size());
      const TensorMetadata* const stored = metadata.FindTensor(*name);
      if (stored == nullptr || leaves.contains(text) ||
          HasAttribute(tensor, "__create_chunk_list__")) {
        return false;
      }
      auto plain = PlainTensorOf(tensor, devices);
      if (!plain || plain->dtype != stored->dtype || plain->shape != stored->shape) {
        return false;
      }
      leaves[text] = tensor;
      keep.append(plain->storage);
      AddPlainTarget(request, *std::move(name), *std::move(plain));
      return true;
    });
  }

  /// Returns, by rank, the argument of `begin_sharing`.
  std::vector<nb::bytes> ShareNeeds(const std::vector<nb::bytes>& needs) {
    std::vector<std::string> messages;
    messages.reserve(needs.size());
    for (const nb::bytes& need : needs) {
      messages.emplace_back(need.c_str(), need.size());
    }
    std::vector<nb::bytes> sharing;
    for (const std::string& one : ValueOrRaise(reader().ShareNeeds(messages))) {
      sharing.emplace_back(one.data(), one.size());
    }
    return sharing;
  }

  /// Fills the targets from this process alone; returns the bytes read.
  std::uint64_t ReadInto(const LoadRequest& request) {
    return Stoppable(reader().path(), [&](const std::stop_token& stop) {
      LoadOptions options;
      options.stop = stop;
      return reader().ReadTensors(request.targets, options);
    });
  }

  PythonLoadReport LoadInto(const LoadRequest& request, LoadOptions options,
                            const nb::object& coordinator) {
    ProgressCount count;
    options.progress = Counting(&count, std::move(options.progress));
    std::stop_source stop;
    options.stop = stop.get_token();
    const auto ranks = MakeCoordinator(coordinator);
    Result<LoadReport> report = Internal("not run");
    RunCollective([&] { report = Load(reader(), request, options, *ranks); }, coordinator,
                  [&] { stop.request_stop(); }, &count, "reading");
    RaiseIfError(report.status().With({.path = reader().path()}));
    return {*std::move(report), from_agent_.load()};
  }

 private:
  std::atomic<std::uint64_t> from_agent_{0};
  std::unique_ptr<Storage> agent_;  // Null where no agent has anything of it.
  std::unique_ptr<CheckpointReader> reader_;
};

}  // namespace

void BindReader(nb::module_& module) {
  Bound<LoadOptions>(module, "LoadOptions", "Options of a load; see include/varve/options.h.")
      .Field("strict", &LoadOptions::strict)
      .Field("fit", &LoadOptions::fit)
      .Field("cast", &LoadOptions::cast)
      .Field("on_difference", &LoadOptions::on_difference)
      .Field("share", &LoadOptions::share)
      .Field("timeout", &LoadOptions::timeout)
      .Field("max_gap_bytes", &LoadOptions::max_gap_bytes)
      .Field("io_threads", &LoadOptions::io_threads)
      .Keyword<AsProgress>("progress", &LoadOptions::progress);
  Bound<ResizedTensor>(module, "ResizedTensor", kResizedDoc)
      .Field("name", &ResizedTensor::fqn)
      .Field<AsTuple>("stored", &ResizedTensor::stored)
      .Field<AsTuple>("wanted", &ResizedTensor::wanted)
      .Public("varve");
  Bound<PythonLoadReport>(module, "LoadReport", kLoadReportDoc)
      .Field("loaded", &LoadReport::loaded)
      .Field("bytes_read", &LoadReport::bytes_read)
      .Field("storage_bytes", &LoadReport::storage_bytes)
      .Field("bytes_from_agent", &PythonLoadReport::bytes_from_agent)
      .Field("device_bytes", &LoadReport::device_bytes)
      .Field("copied_ahead", &LoadReport::copied_ahead)
      .Field("seconds", &LoadReport::seconds)
      .Field("missing", &LoadReport::missing)
      .Field("unexpected", &LoadReport::unexpected)
      .Field("mismatched", &LoadReport::mismatched)
      .Field("kept", &LoadReport::kept)
      .Field("merged", &LoadReport::merged)
      .Field("resized", &LoadReport::resized)
      .Field("phases", &LoadReport::phases)
      .Public("varve");
  Bound<StoredChunk>(module, "StoredChunk", kStoredChunkDoc)
      .Field<AsTuple>("offsets", &StoredChunk::offsets)
      .Field<AsTuple>("sizes", &StoredChunk::sizes)
      .Field<AsPath>("file", &StoredChunk::file)
      .Field("begin", &StoredChunk::begin)
      .Field("end", &StoredChunk::end)
      .Field("rank", &StoredChunk::rank)
      .Public("varve");
  nb::class_<PythonReader>(module, "Reader", nb::is_weak_referenceable())
      .def(nb::init<const FsPath&, bool, std::uint32_t>(), nb::arg("path"),
           nb::arg("use_agent") = true, nb::arg("own_ranks_of") = 0)
      .def_prop_ro("directory",
                   [](PythonReader& self) { return ToPath(self.reader().directory()); })
      .def_prop_ro("path", [](PythonReader& self) { return ToPath(self.reader().path()); })
      .def_prop_ro("files_directory",
                   [](PythonReader& self) { return ToPath(self.reader().files_directory()); })
      .def_prop_ro("world_size",
                   [](PythonReader& self) { return self.reader().metadata().world_size; })
      .def_prop_ro("format",
                   [](PythonReader& self) {
                     return std::string(FormatName(self.reader().metadata().format));
                   })
      .def_prop_ro("save_id",
                   [](PythonReader& self) {
                     const SaveId& id = self.reader().metadata().save_id;
                     return id == SaveId{} ? nb::object(nb::none()) : nb::cast(ToString(id));
                   })
      .def_prop_ro("bytes",
                   [](PythonReader& self) { return self.reader().metadata().TotalBytes(); })
      .def("names", &PythonReader::Names)
      .def("chunks", &PythonReader::Chunks, nb::arg("name"))
      .def("run_of", &PythonReader::RunOf, nb::arg("name"))
      .def("match_plain_items", &PythonReader::MatchPlainItems, nb::arg("request"),
           nb::arg("entries"), nb::arg("path").none(), nb::arg("leaves"), nb::arg("keep"),
           nb::arg("devices"))
      .def("read_into", &PythonReader::ReadInto, nb::arg("request"))
      .def(
          "need",
          [](PythonReader& self, const LoadRequest& request, bool serves) {
            std::string need;
            {
              const GilReleased release;  // Threads of an earlier load may need it.
              need = self.reader().NeedOf(request.targets, serves);
            }
            return nb::bytes(need.data(), need.size());
          },
          nb::arg("request"), nb::arg("serves"))
      .def("share_needs", &PythonReader::ShareNeeds, nb::arg("needs"))
      .def(
          "begin_sharing",
          [](PythonReader& self, const nb::bytes& sharing) {
            const std::string message(sharing.c_str(), sharing.size());
            Status begun;
            {
              const GilReleased release;
              begun = self.reader().BeginSharing(message);
            }
            RaiseIfError(begun);
          },
          nb::arg("sharing"))
      .def(
          "end_sharing", [](PythonReader& self) { self.reader().EndSharing(); },
          nb::call_guard<GilReleased>())
      .def("object_extents", &PythonReader::ObjectExtents)
      .def(
          "take_values_of",
          [](PythonReader& self, std::uint32_t rank) { self.reader().TakeValuesOf(rank); },
          nb::arg("rank"))
      .def("variants", &PythonReader::Variants)
      .def("structure", &PythonReader::Structure)
      .def("tensors", &PythonReader::Tensors, nb::arg("names") = nb::none())
      .def("tensor_names", &PythonReader::TensorNames)
      .def("object_names", &PythonReader::ObjectNames)
      .def("objects", &PythonReader::Objects, nb::arg("fqns"), nb::arg("allow_pickle") = false)
      .def("load", &PythonReader::LoadInto, nb::arg("request"), nb::arg("options"),
           nb::arg("coordinator").none());
}

}  // namespace varve::python
