"""One-line mutants of safety checks, and the tests of their module: all but those of formats, and these."""

from __future__ import annotations

from format_mutants import FORMAT_MUTANTS
from mutant import Mutant

COMMIT = (
    "*Commit*:*Crash*:*Fault*:*Save*:*Overwrite*:*Garbage*:*Claim*:*Displaced*:*RanksApart*"
    ":EmptyDirectory*:Reader*:Remove*:Open*:NewestCheckpoint*"
)
GARBAGE = "*Garbage*:*Collector*:*Crash*:Olmo*:Remove*"
READERS = "HeaderBytes*:ReadFiles*:CheckBlocks*:*Read*:*RecordSums*:*RoundTrip*:*Golden*:Load*:Fuzz*:DecodeHeader*"
AGENT = (
    "*Session*:JobMachine*:*Agent*:*Deferred*:Orphan*:Executor*:*Lost*:NextJob*:StagedFile*"
    ":AsyncSave*:FileChannel*"
)
RELAYS = "Relay*:FrameMerger*:*ChannelOfRanks*:Channel.*"
PLAN = "Settle*:Balance*:*Plan*:Ties*:*Tie*:*Replica*:Fingerprint*:*Load*:Schedule*:Assign*"

MUTANTS = (
    # ---- commit ----
    Mutant(
        "commit-parent-not-synced",
        "src/publish/commit.cc",
        "if (Status status = storage_.SyncDirectory(ParentPath(path_)); !status.ok()) {",
        "if (Status status; !status.ok()) {",
        COMMIT,
    ),
    Mutant(
        "commit-staging-not-synced",
        "src/publish/commit.cc",
        "  VARVE_RETURN_IF_ERROR(storage_.SyncDirectory(staging_));\n  if (!marked_) {",
        "  if (!marked_) {",
        COMMIT,
    ),
    Mutant(
        "commit-sizes-not-compared",
        "src/publish/commit.cc",
        "} else if (found->size != file.size) {",
        "} else if (false) {",
        COMMIT,
    ),
    Mutant(
        "commit-missing-files-counted",
        "src/publish/commit.cc",
        "if (!missing.empty()) {",
        "if (false) {",
        COMMIT,
    ),
    Mutant(
        "commit-displaced-not-recovered",
        "src/publish/commit.cc",
        "  VARVE_RETURN_IF_ERROR(RecoverDisplaced(storage, path));  // Step 2.\n",
        "",
        COMMIT,
    ),
    Mutant(
        "commit-displacing-not-synced",
        "src/publish/commit.cc",
        "  Status status = storage_.SyncDirectory(ParentPath(path_));\n",
        "  Status status;\n",
        COMMIT,
    ),
    Mutant(
        "commit-only-copy-removed",
        "src/publish/commit.cc",
        "  VARVE_RETURN_IF_ERROR(storage_.SyncDirectory(ParentPath(path_)));\n  std::erase_if",
        "  std::erase_if",
        COMMIT,
    ),
    Mutant(
        "commit-folders-not-synced",
        "src/publish/commit.cc",
        "VARVE_RETURN_IF_ERROR(storage_.SyncDirectory(JoinPath(staging_, folder)));",
        "(void)folder;",
        COMMIT,
    ),
    Mutant(
        "repair-beside-a-save",
        "src/publish/repair.cc",
        "  VARVE_ASSIGN_OR_RETURN(const auto lock, LockUnlessSaved(storage_, path));\n",
        "",
        "Stop.Repair*",
    ),
    Mutant(
        "claim-damage-not-looked-for",
        "src/publish/claim.cc",
        "      (code == StatusCode::kNotFound && RemainsOfCheckpoint(storage, path));",
        "      code != StatusCode::kInternal;",
        COMMIT + ":Save*:Overwrite*",
    ),
    Mutant(
        "claim-replaces-what-is-no-checkpoint",
        "src/publish/claim.cc",
        "if (!IsCheckpoint(storage, path, *entries)) {",
        "if (false) {",
        COMMIT + ":Save*:Overwrite*",
    ),
    Mutant(
        "leftovers-not-synced-before",
        "src/publish/replaced.cc",
        "  bool synced = false;",
        "  bool synced = true;",
        COMMIT,
    ),
    # ---- garbage collection ----
    Mutant(
        "gc-file-parts-without-lock",
        "src/publish/garbage.cc",
        "if (const auto lock = storage_.Lock(lock_path); !lock.ok()) {",
        "if (const auto lock = storage_.Lock(lock_path); false) {",
        GARBAGE,
    ),
    Mutant(
        "gc-names-without-lock", "src/publish/garbage.cc", "if (!free) {", "if (false) {", GARBAGE
    ),
    Mutant(
        "gc-rank-parts-without-lock",
        "src/publish/garbage.cc",
        "storage_.Lock(RankLockPath(directory, *rank)); !lock.ok()) {",
        "storage_.Lock(RankLockPath(directory, *rank)); false) {",
        GARBAGE,
    ),
    Mutant(
        "gc-live-locks-removed",
        "src/publish/garbage.cc",
        "if (const auto lock = storage_.Lock(path); lock.ok()) {",
        "if (const auto lock = storage_.Lock(path); true) {",
        GARBAGE,
    ),
    Mutant(
        "gc-not-synced-before",
        "src/publish/garbage.cc",
        "      VARVE_RETURN_IF_ERROR(storage_.SyncDirectory(directory));\n      synced_",
        "      synced_",
        GARBAGE,
    ),
    Mutant(
        "gc-displaced-removed",
        "src/publish/garbage.cc",
        "if (stale->kind == StaleKind::kDisplaced && !HoldsCheckpoint(storage_, target)) {",
        "if (false) {",
        GARBAGE,
    ),
    Mutant(
        "gc-dry-run-removes",
        "src/publish/garbage.cc",
        "    if (dry_run_) {\n      return Status::Ok();",
        "    if (false) {\n      return Status::Ok();",
        GARBAGE,
    ),
    Mutant(
        "gc-olmo-whole-removed",
        "src/publish/garbage.cc",
        "if (!found || found->has_mark) {",
        "if (!found) {",
        "cli/test_olmo_unfinished.py",
    ),
    Mutant(
        "gc-olmo-recent-removed",
        "src/publish/garbage.cc",
        "if (IsRecent(std::max(",
        "if (false && IsRecent(std::max(",
        "cli/test_olmo_unfinished.py",
    ),
    # ---- readers ----
    Mutant(
        "read-block-checksum",
        "src/pipeline/file_reader.cc",
        "if (crc == reads.block_crc32c[i]) {",
        "if (true) {",
        READERS,
    ),
    Mutant(
        "read-header-checksum",
        "src/format/data_file.cc",
        "if (computed != want || stored != HexU32(want)) {",
        "if (false) {",
        READERS,
    ),
    Mutant(
        "read-header-size",
        "src/format/data_file.cc",
        "if (json_bytes > kMaxHeaderBytes) {",
        "if (false) {",
        READERS,
    ),
    Mutant(
        "read-aliases-without-bound",
        "src/format/data_file.cc",
        "if (total > kMaxAliasChunks) {",
        "if (false) {",
        READERS,
    ),
    # ---- writers ----
    Mutant(
        "write-changed-memory",
        "src/pipeline/staged_file.cc",
        "if (crc != wanted) {",
        "if (crc != wanted && wanted == 0) {",
        AGENT,
    ),
    Mutant(
        "write-lease-not-asked",
        "src/pipeline/staged_file.cc",
        "return !intact_ || intact_() ? Status::Ok()",
        "return true ? Status::Ok()",
        AGENT,
    ),
    Mutant(
        "write-direct-not-whole-pages",
        "src/pipeline/block_writers.cc",
        "file_.direct() ? RoundUp(block.bytes, kDirectAlignment) : block.bytes;",
        "block.bytes;",
        "WriteSegments*:StagedFile*:AsyncSave*",
    ),
    # ---- agent ----
    Mutant(
        "agent-lease-always-valid",
        "src/agent/session.cc",
        "const LeasedMemory memory{blocks, [&] { return job.lease->Valid(); }};",
        "const LeasedMemory memory{blocks, [] { return true; }};",
        AGENT,
    ),
    Mutant(
        "agent-tickets-out-of-order",
        "src/agent/session_machine.cc",
        "(first->first == state->next_ticket || !Lives(*state));",
        "true;",
        AGENT,
    ),
    Mutant(
        "agent-keeps-memory-that-is-not-its",
        "src/agent/session_machine.cc",
        "  state->memory_is_ours = false;\n",
        "",
        AGENT,
    ),
    Mutant(
        "agent-older-over-newer",
        "src/agent/session_machine.cc",
        "if (event.written) {",
        "if (false) {",
        AGENT,
    ),
    Mutant(
        "agent-writes-what-some-ranks-have",
        "src/agent/agreement.cc",
        "== theirs.ids.end();",
        "== theirs.ids.end() && false;",
        AGENT,
    ),
    Mutant(
        "agent-holds-memory-in-use",
        "src/agent/session.cc",
        "if (report.ok() && !job->save.image.blocks.empty() && state_.trainer != TrainerState::kBack) {",
        "if (report.ok() && !job->save.image.blocks.empty()) {",
        AGENT,
    ),
    Mutant(
        "agent-waits-for-ever",
        "src/agent/session.cc",
        "return until && Now() >= *until",
        "return until && false",
        AGENT,
    ),
    Mutant(
        "trainer-does-not-revoke-when-lost",
        "src/agent/executor.cc",
        "    if (*lost) {\n      GiveUp(ticket);",
        "    if (false) {\n      GiveUp(ticket);",
        AGENT,
    ),
    Mutant(
        "trainer-does-not-revoke-when-refused",
        "src/agent/executor.cc",
        "    if (!taken.ok()) {\n      GiveUp(ticket);",
        "    if (false) {\n      GiveUp(ticket);",
        AGENT,
    ),
    Mutant(
        "trainer-does-not-revoke-when-unanswered",
        "src/agent/executor_machine.cc",
        "const bool is_read = found->second != TicketState::kForgotten;",
        "const bool is_read = found->second == TicketState::kLost;",
        AGENT,
    ),
    Mutant(
        "trainer-does-not-withdraw",
        "src/async/submitter.cc",
        "    Withdraw(ranks, result.status());\n",
        "",
        AGENT,
    ),
    Mutant(
        "held-file-stays-valid",
        "src/agent/held_files.cc",
        "    const bool meant = held.session == session && held.ticket == ticket;\n"
        "    if (meant) {\n      held.page->Revoke();",
        "    const bool meant = held.session == session && held.ticket == ticket;\n"
        "    if (false) {\n      held.page->Revoke();",
        AGENT,
    ),
    # ---- plan ----
    Mutant("plan-overlap", "src/plan/settle.cc", "if (*overlap) {", "if (false) {", PLAN),
    Mutant(
        "plan-hole",
        "src/plan/settle.cc",
        "if (covered != Volume(first.shape())) {",
        "if (false) {",
        PLAN,
    ),
    Mutant(
        "plan-other-shape",
        "src/plan/settle.cc",
        "if (item.of != first.of && (item.dtype() != first.dtype() || item.shape() != first.shape())) {",
        "if (false) {",
        PLAN,
    ),
    Mutant(
        "plan-replicas-not-compared",
        "src/plan/settle.cc",
        "  settled.lacks_fingerprints = lacks_fingerprints;\n",
        "",
        PLAN,
    ),
    Mutant(
        "plan-alike-on-one-rank-alone",
        "src/plan/fold.cc",
        "        group = at->second;\n",
        "",
        PLAN,
    ),
    Mutant(
        "plan-folded-replicas-differ",
        "src/plan/settle.cc",
        "return shard.item().alike > 1 &&",
        "return shard.item().alike > 1 && false &&",
        PLAN,
    ),
    Mutant(
        "plan-of-another-call",
        "src/save/plans/gathered_plans.cc",
        "if (!sent.ok() || sent->head != heads_[rank].digest) {",
        "if (!sent.ok() && asked != 0) {",
        PLAN,
    ),
    Mutant(
        "plan-part-not-compared",
        "src/save/plans/gathered_plans.cc",
        "if (((asked & kAskedForTensors) != 0 && DigestOfPart(sent->tensors) != head.tensors) ||",
        "if (false ||",
        PLAN,
    ),
    Mutant(
        "plan-pattern-not-compared",
        "src/save/plans/gathered_plans.cc",
        "return agreement.pattern.IsThatOf(sums);",
        "return true;",
        PLAN,
    ),
    Mutant(
        "plan-of-another-agreement",
        "src/save/plans/gathered_plans.cc",
        "[&](const PlanAsBefore& one) { return one.agreement == agreement.id; });",
        "[&](const PlanAsBefore& one) { return one.agreement == agreement.id || true; });",
        PLAN,
    ),
    Mutant(
        "plan-contents-that-differ-not-told-apart",
        "src/plan/replica_pattern.cc",
        "if (distinct.size() != contents.size()) {",
        "if (false) {",
        PLAN,
    ),
    Mutant(
        "plan-sums-not-counted",
        "src/plan/replica_pattern.cc",
        "if (one.item >= given.size() || ",
        "if (",
        PLAN,
    ),
    Mutant(
        "plan-misses-not-weighed",
        "src/save/plans/agreements.cc",
        "weight_ += missed ? kMissWeight : 0;",
        "",
        PLAN,
    ),
    Mutant(
        "plan-pause-without-end",
        "src/save/plans/agreements.cc",
        "    --pause_;\n",
        "",
        PLAN,
    ),
    Mutant(
        "plan-other-options-as-before",
        "src/save/plans/agreements.cc",
        "if (one.terms == terms && one.structure == structure &&",
        "if ((one.terms == terms || true) && one.structure == structure &&",
        PLAN,
    ),
    Mutant(
        "kept-index-with-places-of-before",
        "src/save/plans/kept_index.cc",
        "if (kept->HasOtherSizes(settled, rank)) {",
        "if (false) {",
        PLAN,
    ),
    Mutant(
        "kept-index-of-a-header-that-has-grown",
        "src/save/plans/kept_index.cc",
        "if (receipt.header_bytes != file.data_begin) {",
        "if (false) {",
        PLAN,
    ),
    Mutant(
        "kept-index-of-the-structure-of-before",
        "src/save/plans/kept_index.cc",
        "if (extent.file == rank && plan.header.structure) {",
        "if (false) {",
        PLAN,
    ),
    Mutant(
        "plan-other-sizes-lost",
        "src/save/plans/agree.cc",
        "settled_->sizes = std::move(sizes);",
        "(void)sizes;",
        PLAN,
    ),
    Mutant(
        "load-hole",
        "src/plan/load_plan.cc",
        "if (covered != Volume(item.box.sizes)) {",
        "if (false) {",
        PLAN,
    ),
    Mutant(
        "load-other-shape",
        "src/plan/load_plan.cc",
        "if (tensor->dtype != item.dtype || tensor->shape != item.shape) {",
        "if (false) {",
        PLAN,
    ),
    # ---- relays ----
    Mutant(
        "relay-frames-overtake",
        "src/coordinate/channel/routed.cc",
        "      if (Meet(waiting->ranks, ranks)) {",
        "      if (false) {",
        RELAYS,
    ),
    Mutant(
        "relay-leader-first",
        "src/coordinate/channel/relay_state.cc",
        "    if (key != leader_) {\n      add",
        "    if (true) {\n      add",
        RELAYS,
    ),
    Mutant(
        "relay-others-not-lost",
        "src/coordinate/channel/relay_state.cc",
        "  if (!others.empty()) {",
        "  if (false) {",
        RELAYS,
    ),
    Mutant(
        "relay-frames-held",
        "src/coordinate/channel/relay_state.cc",
        "std::min(due_, now + kHold)",
        "due_",
        RELAYS,
    ),
    Mutant(
        "relay-lost-ranks-still-there",
        "src/coordinate/channel/relay_state.cc",
        "    if (rank != leader) {\n      state_.Lost(rank, LostWith(leader), leader);\n    }",
        "",
        RELAYS,
    ),
    *FORMAT_MUTANTS,
)
