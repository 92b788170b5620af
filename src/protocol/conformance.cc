// The checks. Each makes its own checkpoints under its own ids, so none depends on another.

#include <cstddef>
#include <utility>

#include "protocol/conformance_bench.h"
#include "protocol/conformance_planners.h"
#include "protocol/conformance_samples.h"
#include "protocol/hook.h"
#include "varve/protocol/storage_layer.h"

namespace varve::protocol {
namespace {

Status WholeTensorsAndValuesComeBack(Bench& bench) {
  const std::string id = bench.NewId();
  VARVE_RETURN_IF_ERROR(bench.Save(id, 1, [](int) { return Assorted<Holding>(1); }));
  return bench.Load(id, 1, [](int) { return Assorted<Wanting>(1); });
}

Status ShardsOfSeveralRanksComeBack(Bench& bench) {
  const std::string id = bench.NewId();
  VARVE_RETURN_IF_ERROR(bench.Save(id, kRanks, UsualHolding(1)));
  return bench.Load(id, kRanks, UsualWanting(1));
}

Status ShardsLoadIntoAnotherLayout(Bench& bench) {
  const std::string id = bench.NewId();
  VARVE_RETURN_IF_ERROR(bench.Save(id, kRanks, UsualHolding(1)));
  VARVE_RETURN_IF_ERROR(bench.Load(id, 2, [](int rank) {
    Wanting wanting(1);
    wanting.Add(ColumnsOf(rank, 2));
    wanting.Add(NameOfRank(2 - rank), Value::Str("of rank " + std::to_string(2 - rank)));
    return wanting;
  }));
  return bench.Load(id, 1, [](int) {
    Wanting wanting(1);
    wanting.Add(Whole("matrix", DType::kFloat32, kShape));
    return wanting;
  });
}

Status PartsLoadWithoutTouchingWhatIsAround(Bench& bench) {
  const std::string id = bench.NewId();
  VARVE_RETURN_IF_ERROR(bench.Save(id, kRanks, UsualHolding(1)));
  return bench.Load(id, 1, [](int) {
    Wanting wanting(1, 2);
    wanting.Add({"matrix", DType::kFloat32, kShape, {{1, 3}, {4, 2}}});
    wanting.Add({"replicated", DType::kInt64, {5}, {{2}, {1}}});
    return wanting;
  });
}

Status ARankWithNothingToWriteTakesPart(Bench& bench) {
  const std::string id = bench.NewId();
  VARVE_RETURN_IF_ERROR(
      bench.Save(id, 2, [](int rank) { return rank == 0 ? Holding(1) : Assorted<Holding>(1); }));
  return bench.Load(id, 2, [](int rank) { return rank == 0 ? Assorted<Wanting>(1) : Wanting(1); });
}

Status ManySmallThingsComeBack(Bench& bench) {
  const auto add_all = [](auto part) {
    for (std::uint64_t i = 0; i < 200; ++i) {
      const std::string name = "layer." + std::to_string(i);
      part.Add(Whole(name + ".weight", DType::kFloat32, {i % 7 + 1, i % 3 + 1}));
      part.Add(name + ".value", Value::Int(static_cast<std::int64_t>(i)));
    }
    return part;
  };
  const std::string id = bench.NewId();
  VARVE_RETURN_IF_ERROR(bench.Save(id, 2, [&](int) { return add_all(Holding(1)); }));
  return bench.Load(id, 2, [&](int) { return add_all(Wanting(1)); });
}

Value ToValue(const char* key) { return Value::Str(key); }
Value ToValue(Value value) { return value; }

Value Leaf(ValueKind kind) {
  Value leaf;
  leaf.kind = kind;
  leaf.text = kind == ValueKind::kTensorLeaf ? "torch" : "";
  return leaf;
}

/// Returns a dict of the keys and values that follow each other.
template <class... Rest>
Value Dict(Rest&&... rest) {
  Value dict;
  dict.kind = ValueKind::kDict;
  (dict.items.push_back(ToValue(std::forward<Rest>(rest))), ...);
  return dict;
}

Status MetadataComesBack(Bench& bench) {
  const std::string id = bench.NewId();
  Holding holding(1);
  holding.Add(Whole("model.weight", DType::kFloat32, kShape));
  holding.Add("step", StepOf(1));
  holding.state().structure = EncodeValue(Dict(
      "model", Dict("weight", Leaf(ValueKind::kTensorLeaf)), "step", Leaf(ValueKind::kObjectLeaf)));
  const auto writer = bench.subject().make_writer();
  CallOptions options;
  options.checkpoint_id = id;
  VARVE_ASSIGN_OR_RETURN(const StateMetadata saved,
                         protocol::Save(holding.state(), *writer, options));
  VARVE_ASSIGN_OR_RETURN(const StateMetadata read, bench.ReadMetadata(id));
  VARVE_RETURN_IF_ERROR(CheckMetadata(read));
  if (read.state_dict_metadata != saved.state_dict_metadata) {
    return Unmet("ReadMetadata gives other names, sizes, dtypes or chunks than Finish was given");
  }
  return read.planner_data == saved.planner_data
             ? Status::Ok()
             : Unmet("ReadMetadata gives other planner_data than Finish was given");
}

Status AMissingCheckpointIsNotFound(Bench& bench) { return bench.CheckAbsent(bench.NewId()); }

Status NothingShowsBeforeFinish(Bench& bench) {
  const std::string id = bench.NewId();
  WatchedSavePlanner watched([&](const WriteItem&) { return bench.CheckAbsent(id); });
  return bench.Save(id, 1, [](int) { return Assorted<Holding>(1); }, {&watched});
}

/// Runs a save in which one rank has no content for the last of its items.
Status SaveThatFails(Bench& bench, const std::string& id, int failing_rank, std::uint8_t salt) {
  std::vector<std::unique_ptr<WatchedSavePlanner>> planners;
  std::vector<SavePlanner*> pointers;
  for (int rank = 0; rank < kRanks; ++rank) {
    planners.push_back(std::make_unique<WatchedSavePlanner>(
        [fails = rank == failing_rank, name = NameOfRank(rank)](const WriteItem& item) {
          return fails && item.index.fqn == name ? FailedPrecondition("no content today")
                                                 : Status::Ok();
        }));
    pointers.push_back(planners.back().get());
  }
  const Status status = bench.Save(id, kRanks, UsualHolding(salt), pointers);
  if (status.code() == StatusCode::kAlreadyExists) {
    return Status::Ok();  // The save was refused before that.
  }
  return MustFail(
      status, "no content today",
      "a save whose planner failed in ResolveData on rank " + std::to_string(failing_rank));
}

Status AFailedSaveShowsNothing(Bench& bench) {
  for (const int rank : {0, 2}) {
    const std::string id = bench.NewId();
    VARVE_RETURN_IF_ERROR(SaveThatFails(bench, id, rank, 1));
    VARVE_RETURN_IF_ERROR(bench.CheckAbsent(id));
    // The unfinished save does not block the next one.
    VARVE_RETURN_IF_ERROR(
        bench.Save(id, kRanks, UsualHolding(2)).Annotate("a save after one that failed"));
    VARVE_RETURN_IF_ERROR(bench.Load(id, kRanks, UsualWanting(2)));
  }
  return Status::Ok();
}

Status AFailedSaveLeavesThePreviousCheckpointWhole(Bench& bench) {
  for (const int rank : {0, 2}) {
    const std::string id = bench.NewId();
    VARVE_RETURN_IF_ERROR(bench.Save(id, kRanks, UsualHolding(1)));
    VARVE_RETURN_IF_ERROR(SaveThatFails(bench, id, rank, 2));
    VARVE_RETURN_IF_ERROR(
        bench.Load(id, kRanks, UsualWanting(1)).Annotate("the previous checkpoint"));
  }
  return Status::Ok();
}

Status AReplacedCheckpointIsTheNewOneAlone(Bench& bench) {
  const std::string id = bench.NewId();
  VARVE_RETURN_IF_ERROR(bench.Save(id, 1, [](int) { return Assorted<Holding>(1); }));
  const Status second = bench.Save(id, kRanks, UsualHolding(2));
  if (second.code() == StatusCode::kAlreadyExists) {
    return bench.Load(id, 1, [](int) { return Assorted<Wanting>(1); });
  }
  VARVE_RETURN_IF_ERROR(second);
  VARVE_RETURN_IF_ERROR(bench.Load(id, kRanks, UsualWanting(2)));
  VARVE_ASSIGN_OR_RETURN(const StateMetadata metadata, bench.ReadMetadata(id));
  return metadata.HasBytes("list") ? Unmet("names of the replaced checkpoint are still there")
                                   : Status::Ok();
}

Status AWriteThatFailsIsReported(Bench& bench) {
  const auto& break_storage = bench.subject().break_storage;
  if (!break_storage) {
    return Status::Ok();
  }
  const std::string id = bench.NewId();
  VARVE_RETURN_IF_ERROR(bench.Save(id, 1, [](int) { return Assorted<Holding>(1); }));
  WatchedSavePlanner breaking([&](const WriteItem&) {
    break_storage(true);
    return Status::Ok();
  });
  const Status status = bench.Save(id, 1, [](int) { return Assorted<Holding>(2); }, {&breaking});
  break_storage(false);
  VARVE_RETURN_IF_ERROR(MustFail(status, "", "a save whose storage failed"));
  return bench.Load(id, 1, [](int) { return Assorted<Wanting>(1); })
      .Annotate("the previous checkpoint");
}

Status ContentIsHeldWhileItIsWritten(Bench& bench) {
  const std::string id = bench.NewId();
  LendingSavePlanner lending;
  VARVE_RETURN_IF_ERROR(bench.Save(id, 1, [](int) { return Assorted<Holding>(1); }, {&lending}));
  return bench.Load(id, 1, [](int) { return Assorted<Wanting>(1); });
}

Status WhatThePlannerRefusesFailsTheLoad(Bench& bench) {
  using Hook = RefusingLoadPlanner::Hook;
  const std::string id = bench.NewId();
  VARVE_RETURN_IF_ERROR(bench.Save(id, 1, [](int) { return Assorted<Holding>(1); }));
  const std::vector<std::pair<Hook, std::string>> hooks = {{Hook::kLoadBytes, "LoadBytes"},
                                                           {Hook::kResolveTensor, "ResolveTensor"},
                                                           {Hook::kCommitTensor, "CommitTensor"}};
  for (const auto& [hook, name] : hooks) {
    RefusingLoadPlanner refusing(hook);
    const Status status = bench.Load(id, 1, [](int) { return Assorted<Wanting>(1); }, {&refusing});
    VARVE_RETURN_IF_ERROR(
        MustFail(status, "refused by the planner", "a load whose planner failed in " + name));
  }
  return Status::Ok();
}

Status EachItemIsDeliveredOnce(Bench& bench) {
  const std::string id = bench.NewId();
  VARVE_RETURN_IF_ERROR(bench.Save(id, kRanks, UsualHolding(1)));
  CountingLoadPlanner counting;
  const auto wanting = [](int) {
    Wanting all(1);
    all.Add(Whole("matrix", DType::kFloat32, kShape));
    all.Add(Whole("replicated", DType::kInt64, {5}));
    all.Add("step", StepOf(1));
    return all;
  };
  VARVE_RETURN_IF_ERROR(bench.Load(id, 1, wanting, {&counting}));
  return counting.Check();
}

Status OneWriterAndReaderServeSeveralCheckpoints(Bench& bench) {
  const auto writer = bench.subject().make_writer();
  const auto reader = bench.subject().make_reader();
  std::vector<CallOptions> options(2);
  for (std::uint8_t i = 0; i < 2; ++i) {
    options[i].checkpoint_id = bench.NewId();
    Holding holding = Assorted<Holding>(i);
    VARVE_RETURN_IF_ERROR(protocol::Save(holding.state(), *writer, options[i]).status());
  }
  for (const std::uint8_t i : {std::uint8_t{1}, std::uint8_t{0}}) {
    Wanting wanting = Assorted<Wanting>(i);
    VARVE_RETURN_IF_ERROR(protocol::Load(wanting.state(), *reader, options[i]));
    VARVE_RETURN_IF_ERROR(wanting.Check());
  }
  return Status::Ok();
}

struct Check {
  const char* name;
  Status (*run)(Bench&);
};

constexpr Check kChecks[] = {
    {"WholeTensorsAndValuesComeBack", WholeTensorsAndValuesComeBack},
    {"ShardsOfSeveralRanksComeBack", ShardsOfSeveralRanksComeBack},
    {"ShardsLoadIntoAnotherLayout", ShardsLoadIntoAnotherLayout},
    {"PartsLoadWithoutTouchingWhatIsAround", PartsLoadWithoutTouchingWhatIsAround},
    {"ARankWithNothingToWriteTakesPart", ARankWithNothingToWriteTakesPart},
    {"ManySmallThingsComeBack", ManySmallThingsComeBack},
    {"MetadataComesBack", MetadataComesBack},
    {"AMissingCheckpointIsNotFound", AMissingCheckpointIsNotFound},
    {"NothingShowsBeforeFinish", NothingShowsBeforeFinish},
    {"AFailedSaveShowsNothing", AFailedSaveShowsNothing},
    {"AFailedSaveLeavesThePreviousCheckpointWhole", AFailedSaveLeavesThePreviousCheckpointWhole},
    {"AReplacedCheckpointIsTheNewOneAlone", AReplacedCheckpointIsTheNewOneAlone},
    {"AWriteThatFailsIsReported", AWriteThatFailsIsReported},
    {"ContentIsHeldWhileItIsWritten", ContentIsHeldWhileItIsWritten},
    {"WhatThePlannerRefusesFailsTheLoad", WhatThePlannerRefusesFailsTheLoad},
    {"EachItemIsDeliveredOnce", EachItemIsDeliveredOnce},
    {"OneWriterAndReaderServeSeveralCheckpoints", OneWriterAndReaderServeSeveralCheckpoints},
};

}  // namespace

std::vector<ConformanceClaim> RunStorageConformance(const ConformanceSubject& subject) {
  std::vector<ConformanceClaim> outcomes;
  Bench bench(subject);
  for (const Check& check : kChecks) {
    const Status status = CallHook(check.name, [&] { return check.run(bench); });
    outcomes.push_back({check.name, status.ok(), status.message()});
  }
  return outcomes;
}

std::string DescribeFailures(const std::vector<ConformanceClaim>& claims) {
  std::string text;
  for (const ConformanceClaim& check : claims) {
    if (!check.passed) {
      text += check.message + "\n";  // Begins with its name.
    }
  }
  return text;
}

}  // namespace varve::protocol
