// A collective load: the ranks agree first, then each reads on its own, then all learn the outcome.
//   A. Every rank contributes which checkpoint it opened, what differs between it and the request,
//      and what it needs to read, or why its destinations cannot be filled. The coordinator
//      compares and merges, and tells each rank with which others it shares its reads; differences
//      that LoadOptions::strict forbids end the load on all ranks before any target has been
//      touched.
//   B. Every rank reads its targets and contributes its status.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/fields.h"
#include "base/guarded.h"
#include "base/name_list.h"
#include "base/name_set.h"
#include "base/trace.h"
#include "load/cast_read.h"
#include "load/destinations.h"
#include "tensor/box.h"
#include "tensor/cast.h"
#include "varve/catalogue.h"
#include "varve/checkpoint.h"

namespace varve {

/// One rank's differences. `unwanted` has a bit for each name in the checkpoint, tensors first,
/// in the metadata's order: names themselves need not be sent.
struct LoadDifferences {
  SaveId save_id;
  Strict strict = Strict::kWanted;
  std::vector<std::string> missing;
  std::vector<std::string> mismatched;
  std::vector<ResizedTensor> resized;
  std::string unwanted;
  /// Wanted names that have several values, of which this world of ranks cannot get its own.
  std::vector<std::string> several;
  bool cast_helps = false;  ///< A mismatched tensor has another dtype, which `cast` would convert.
  bool fit_helps = false;   ///< One has other sizes, which `fit` would allow.
  std::string need{};       ///< Of one rank alone: CheckpointReader::NeedOf.
};

/// The reply to one rank of exchange A.
struct LoadReply {
  std::string merged;  ///< LoadDifferences, the same for all ranks.
  std::string sharing;
};

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, ResizedTensor>& resized) {
  archive(resized.fqn, resized.stored, resized.wanted);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, LoadDifferences>& differences) {
  archive(differences.save_id.bytes);
  archive.Enum(differences.strict, Strict::kOff, Strict::kExact, "an unknown way to be strict");
  archive(differences.missing, differences.mismatched, differences.resized, differences.unwanted,
          differences.several, differences.cast_helps, differences.fit_helps, differences.need);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, LoadReply>& reply) {
  archive(reply.merged, reply.sharing);
}

namespace {

using Clock = std::chrono::steady_clock;

std::string Describe(const TensorMetadata& stored, const TargetTensor& target) {
  return target.fqn + " (stored " + std::string(DTypeName(stored.dtype)) + ToString(stored.shape) +
         ", wanted " + std::string(DTypeName(target.dtype)) + ToString(target.shape) + ")";
}

/// Returns a target as the stored tensor's shape lets it be filled: itself, or the part that both
/// have; nothing where it does not fit. Errors: InvalidArgument for a box outside its tensor.
Result<std::optional<TargetTensor>> Fitted(const TensorMetadata& stored, const TargetTensor& target,
                                           const LoadOptions& options) {
  TargetTensor fitted = target;
  if (options.fit == Fit::kOverlap && DiffersInSizes(stored, target)) {
    VARVE_RETURN_IF_ERROR(CheckBox(target.shape, target.box, ItemSize(target.dtype))
                              .Annotate("tensor \"" + target.fqn + "\""));
    fitted = OverlapWith(stored.shape, std::move(fitted));
  }
  const bool fits = stored.dtype == fitted.dtype && stored.shape == fitted.shape;
  if (fits || (options.cast && NeedsCast(stored, fitted))) {
    return std::optional(std::move(fitted));
  }
  return std::optional<TargetTensor>();
}

/// Compares the request with the checkpoint; `usable` receives the targets that fit, `loaded` how
/// many names of tensors and values there are to load. Errors: as Fitted.
Result<LoadDifferences> Compare(const Metadata& metadata, const LoadRequest& request,
                                const LoadOptions& options, std::vector<TargetTensor>* usable,
                                std::uint64_t* loaded) {
  NameSet names(request.targets.size());
  std::vector<TargetTensor> whole;  // With kOverlap: those of `usable`, at their own sizes.
  LoadDifferences differences{metadata.save_id,
                              options.strict,
                              request.missing,
                              request.mismatched,
                              {},
                              std::string(metadata.tensors.size() + metadata.objects.size(), '\1'),
                              {},
                              false,
                              false};
  // Takes a name as wanted; returns the stored tensor and the stored value of that name.
  const auto want = [&](std::string_view fqn) {
    const TensorMetadata* const tensor = metadata.FindTensor(fqn);
    if (tensor != nullptr) {
      differences.unwanted[static_cast<std::size_t>(tensor - metadata.tensors.data())] = '\0';
    }
    const ObjectMetadata* const object = metadata.FindObject(fqn);
    if (object != nullptr) {
      differences.unwanted[metadata.tensors.size() +
                           static_cast<std::size_t>(object - metadata.objects.data())] = '\0';
    }
    return std::pair(tensor, object);
  };
  usable->reserve(request.targets.size());
  for (const TargetTensor& target : request.targets) {
    const TensorMetadata* const stored = want(target.fqn).first;
    if (stored == nullptr) {
      differences.missing.push_back(target.fqn);
      continue;
    }
    VARVE_ASSIGN_OR_RETURN(auto fitted, Fitted(*stored, target, options));
    if (!fitted) {
      differences.mismatched.push_back(Describe(*stored, target));
      differences.cast_helps =
          differences.cast_helps ||
          (stored->dtype != target.dtype && IsCastable(stored->dtype) && IsCastable(target.dtype));
      differences.fit_helps = differences.fit_helps || DiffersInSizes(*stored, target);
      continue;
    }
    names.Insert(target.fqn);
    if (stored->shape != target.shape) {
      differences.resized.push_back({target.fqn, stored->shape, target.shape});
    }
    usable->push_back(std::move(*fitted));
    if (options.fit == Fit::kOverlap) {
      whole.push_back(target);
    }
  }
  DropTiedNames(request.targets, options.fit == Fit::kOverlap ? whole : *usable,
                &differences.missing);
  for (const std::string& fqn : request.objects) {
    if (want(fqn).second == nullptr) {
      differences.missing.push_back(fqn);
    } else {
      names.Insert(fqn);
    }
  }
  for (const std::string& fqn : request.ignored) {
    want(fqn);
  }
  *loaded = names.size();
  return differences;
}

/// Returns those of the wanted names under which the ranks that saved held several values.
std::set<std::string> WantedVariants(const Metadata& metadata, const LoadRequest& request,
                                     const std::vector<TargetTensor>& usable) {
  const auto several = metadata.SeveralValues();
  std::set<std::string> wanted;
  if (several.empty()) {
    return wanted;
  }
  for (const TargetTensor& target : usable) {
    if (several.contains(target.fqn)) {
      wanted.insert(target.fqn);
    }
  }
  for (const std::string& fqn : request.objects) {
    if (several.contains(fqn)) {
      wanted.insert(fqn);
    }
  }
  return wanted;
}

/// Sorts names with several values into those of which this rank gets its own value, those of which
/// it gets the lowest rank's, and those that end the load.
void ChooseValues(const std::set<std::string>& wanted, const LoadRequest& request, bool by_rank,
                  OnDifferenceAtLoad on_difference, LoadReport* report,
                  std::vector<std::string>* refused) {
  if (by_rank) {
    report->kept.assign(wanted.begin(), wanted.end());
    return;
  }
  const std::set<std::string_view> will_do(request.one_will_do.begin(), request.one_will_do.end());
  for (const std::string& fqn : wanted) {
    const bool any = on_difference == OnDifferenceAtLoad::kFirst || will_do.contains(fqn);
    (any ? report->merged : *refused).push_back(fqn);
  }
}

/// Returns a line with the first names, in natural order, and how many there are if not all are
/// shown.
std::string Sentence(std::string_view title, std::vector<std::string> names) {
  constexpr std::size_t kMaxNamed = 10;
  if (names.empty()) {
    return {};
  }
  const auto shown = static_cast<std::ptrdiff_t>(std::min(names.size(), kMaxNamed));
  std::partial_sort(names.begin(), names.begin() + shown, names.end(), NaturalLess);
  std::string text = "\n  " + std::string(title);
  text += names.size() > kMaxNamed ? ", " + std::to_string(names.size()) + " entries: " : ": ";
  for (std::size_t i = 0; i < names.size() && i < kMaxNamed; ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > kMaxNamed) {
    text += " and " + std::to_string(names.size() - kMaxNamed) + " more";
  }
  return text;
}

/// As in Python.
std::string_view StrictName(Strict strict) {
  return strict == Strict::kOff ? "False" : strict == Strict::kWanted ? "True" : "\"exact\"";
}

/// Returns the error of ranks that differ in LoadOptions::strict, which holds for all of them.
Status CheckStrict(Strict of_0, std::size_t rank, Strict of_rank) {
  return of_0 == of_rank
             ? Status::Ok()
             : InvalidArgument("ranks differ in strict (" + std::string(StrictName(of_0)) +
                               " on rank 0, " + std::string(StrictName(of_rank)) + " on rank " +
                               std::to_string(rank) + "); give all ranks the same arguments");
}

/// Merges the differences of all ranks, on the coordinator; `needs` receives each rank's.
Result<LoadDifferences> Merge(const Metadata& metadata,
                              const std::vector<std::string>& contributions,
                              std::vector<std::string>* needs) {
  std::set<std::string> missing;
  std::set<std::string> mismatched;
  std::set<std::string> several;
  std::set<ResizedTensor> resized;
  LoadDifferences merged;
  merged.unwanted.assign(metadata.tensors.size() + metadata.objects.size(), '\1');
  for (std::size_t rank = 0; rank < contributions.size(); ++rank) {
    VARVE_ASSIGN_OR_RETURN(LoadDifferences one, DecodeFields<LoadDifferences>(contributions[rank]));
    if (one.save_id != metadata.save_id || one.unwanted.size() != merged.unwanted.size()) {
      return FailedPrecondition("rank " + std::to_string(rank) +
                                " sees another checkpoint than rank 0 (save " +
                                ToString(one.save_id) + " and " + ToString(metadata.save_id) +
                                "); all ranks must load from one shared file system");
    }
    merged.strict = rank == 0 ? one.strict : merged.strict;
    VARVE_RETURN_IF_ERROR(CheckStrict(merged.strict, rank, one.strict));
    needs->push_back(std::move(one.need));
    missing.insert(one.missing.begin(), one.missing.end());
    mismatched.insert(one.mismatched.begin(), one.mismatched.end());
    several.insert(one.several.begin(), one.several.end());
    resized.insert(one.resized.begin(), one.resized.end());
    merged.cast_helps = merged.cast_helps || one.cast_helps;
    merged.fit_helps = merged.fit_helps || one.fit_helps;
    for (std::size_t i = 0; i < merged.unwanted.size(); ++i) {
      merged.unwanted[i] = static_cast<char>(merged.unwanted[i] & one.unwanted[i]);
    }
  }
  merged.save_id = metadata.save_id;
  merged.missing.assign(missing.begin(), missing.end());
  merged.mismatched.assign(mismatched.begin(), mismatched.end());
  merged.several.assign(several.begin(), several.end());
  merged.resized.assign(resized.begin(), resized.end());
  return merged;
}

std::vector<std::string> UnwantedNames(const Metadata& metadata, const std::string& unwanted) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < unwanted.size(); ++i) {
    if (unwanted[i] != '\0') {
      names.push_back(i < metadata.tensors.size()
                          ? metadata.tensors[i].fqn
                          : metadata.objects[i - metadata.tensors.size()].fqn);
    }
  }
  return names;
}

/// Returns the error for differences that `options` do not allow.
Status CheckDifferences(const LoadDifferences& merged, const std::vector<std::string>& unexpected,
                        const LoadOptions& options) {
  const bool lacking = !merged.missing.empty() || !merged.mismatched.empty();
  if (options.strict == Strict::kOff ||
      (!lacking && (options.strict == Strict::kWanted || unexpected.empty()))) {
    return Status::Ok();
  }
  std::string remedy = "a load with strict=False takes what fits";
  if (!lacking) {
    remedy = "a load with strict=True leaves the rest alone";
  } else {
    const bool cast_helps = merged.cast_helps && !options.cast;
    const bool fit_helps = merged.fit_helps && options.fit != Fit::kOverlap;
    remedy += cast_helps ? ", cast=True converts floating-point types" : "";
    remedy += fit_helps ? ", fit=\"overlap\" fills the part that both have" : "";
  }
  return InvalidArgument("the checkpoint and the destination differ; nothing was loaded (" +
                         remedy + ")" + Sentence("missing from the checkpoint", merged.missing) +
                         Sentence("mismatched", merged.mismatched) +
                         Sentence("unexpected in the checkpoint", unexpected));
}

/// Returns the error of this rank's reads as the others are to see it: without its targets.
Status ForOthers(const Status& read) {
  return read.code() == StatusCode::kCancelled  // Wherever in a file it was.
             ? Status(read.code(), "was interrupted").With(read.details())
             : WithoutDestination(read);
}

/// Returns the sum of phases, under one name.
Phase InOne(std::string name, const std::vector<Phase>& phases) {
  Phase sum{.name = std::move(name)};
  for (const Phase& phase : phases) {
    sum.seconds += phase.seconds;
    sum.bytes += phase.bytes;
  }
  return sum;
}

/// Returns the error for names whose values differed between ranks of another world.
Status CheckOneValue(const LoadDifferences& merged, std::uint32_t saved, std::size_t loading) {
  if (merged.several.empty()) {
    return Status::Ok();
  }
  return InvalidArgument(
      "the " + std::to_string(saved) +
      " ranks that saved held different values under one name, and this load is by " +
      std::to_string(loading) + ": " + NameSome(merged.several) +
      "; nothing was loaded. one_will_do=[names] gives all ranks the lowest rank's value of these "
      "names, and on_difference=\"first\" of all; keys= leaves names out. What each rank has for "
      "itself is better saved under a name of its own (PerRank)");
}

}  // namespace

Result<LoadReport> Load(CheckpointReader& reader, const LoadRequest& request,
                        const LoadOptions& options, Coordinator& coordinator) {
  const auto start = Clock::now();
  const Metadata& metadata = reader.metadata();
  std::string what;
  LoadReport report;
  report.copied_ahead = request.copied_ahead;
  std::vector<TargetTensor> usable;
  // Once all ranks have read, or one has failed before they did.
  const std::unique_ptr<CheckpointReader, void (*)(CheckpointReader*)> ends_sharing(
      coordinator.size() > 1 ? &reader : nullptr, [](CheckpointReader* one) { one->EndSharing(); });
  // Each step between the exchanges runs in Guarded: a rank that runs out of memory takes part.
  report.phases = reader.TakePhases();
  auto mine = Guarded([&]() -> Contribution {
    const PhaseTimer timer(&report.phases, "plan");
    what = "load " + reader.path();
    const bool by_rank = options.on_difference == OnDifferenceAtLoad::kKeep &&
                         metadata.world_size == static_cast<std::uint32_t>(coordinator.size());
    if (by_rank) {
      reader.TakeValuesOf(static_cast<std::uint32_t>(coordinator.rank()));
    }
    VARVE_ASSIGN_OR_RETURN(LoadDifferences found,
                           Compare(metadata, request, options, &usable, &report.loaded));
    ChooseValues(WantedVariants(metadata, request, usable), request, by_rank, options.on_difference,
                 &report, &found.several);
    const Status fillable = CheckDestinations(reader, usable, options);
    if (auto compared = InOne("compare", reader.TakePhases()); compared.bytes > 0) {
      AddPhase(&report.phases, std::move(compared));
    }
    VARVE_RETURN_IF_ERROR(fillable);
    if (coordinator.size() > 1 && options.share) {
      found.need = reader.NeedOf(usable, true);
    }
    return EncodeFields(found);
  });
  const auto decide = [&](const std::vector<std::string>& all) -> Result<std::vector<std::string>> {
    std::vector<std::string> needs;
    VARVE_ASSIGN_OR_RETURN(const LoadDifferences merged, Merge(metadata, all, &needs));
    VARVE_RETURN_IF_ERROR(CheckOneValue(merged, metadata.world_size, all.size()));
    VARVE_RETURN_IF_ERROR(
        CheckDifferences(merged, UnwantedNames(metadata, merged.unwanted), options));
    LoadReply reply{EncodeFields(merged), {}};
    std::vector<std::string> replies;
    VARVE_ASSIGN_OR_RETURN(auto sharing, reader.ShareNeeds(needs));
    for (std::string& one : sharing) {
      reply.sharing = std::move(one);
      replies.push_back(EncodeFields(reply));
    }
    return replies;
  };
  std::optional<PhaseTimer> timer(std::in_place, &report.phases, "exchange");
  VARVE_ASSIGN_OR_RETURN(const std::string reply,
                         Exchange(coordinator, what, std::move(mine),
                                  Clock::now() + options.timeout, std::cref(decide)));
  timer.reset();
  const std::uint64_t storage_before = reader.storage_bytes();
  const Status read = Guarded([&] {
    VARVE_ASSIGN_OR_RETURN(const auto decoded, DecodeFields<LoadReply>(reply));
    VARVE_ASSIGN_OR_RETURN(auto merged, DecodeFields<LoadDifferences>(decoded.merged));
    report.missing = std::move(merged.missing);
    report.mismatched = std::move(merged.mismatched);
    report.resized = std::move(merged.resized);
    report.unexpected = UnwantedNames(metadata, merged.unwanted);
    if (coordinator.size() > 1) {  // Else the caller may have said by whom.
      VARVE_RETURN_IF_ERROR(reader.BeginSharing(decoded.sharing));
    }
    VARVE_ASSIGN_OR_RETURN(report.bytes_read, reader.ReadTensors(usable, options));
    return Status::Ok();
  });
  for (Phase& phase : reader.TakePhases()) {
    report.device_bytes += phase.name == "device" ? phase.bytes : 0;
    AddPhase(&report.phases, std::move(phase));
  }
  timer.emplace(&report.phases, "exchange");
  const Status agreed = Agree(coordinator, what, Guarded([&] { return ForOthers(read); }),
                              Clock::now() + options.timeout);
  report.storage_bytes = reader.storage_bytes() - storage_before;  // For others, until now.
  if (!agreed.ok()) {
    return Guarded([&] {
      return WithDestination(
          agreed, read.ok() ? "this rank has read all of its tensors" : read.details().destination);
    });
  }
  timer.reset();
  FlushTraceOf(coordinator.rank());
  report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return report;
}

Result<LoadReport> Load(CheckpointReader& reader, const LoadRequest& request,
                        const LoadOptions& options) {
  const auto coordinator = MakeSingleProcessCoordinator();
  return Load(reader, request, options, *coordinator);
}

}  // namespace varve
