#include "storage/objects/upload_machine.h"

#include <algorithm>

namespace varve {
namespace {

using namespace upload_event;

template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

UploadAction Break(UploadState* state) {
  state->is = UploadStep::kBroken;
  return UploadAction::kNone;
}

UploadAction TakeFullPart(UploadState* state) {
  switch (state->is) {
    case UploadStep::kGathering: state->is = UploadStep::kBeginning; return UploadAction::kBegin;
    case UploadStep::kBeginning:
    case UploadStep::kOpen:
    case UploadStep::kBroken: return UploadAction::kNone;
    default: return Break(state);
  }
}

UploadAction TakeSentPart(UploadState* state, const PartSent& event) {
  const bool is_first = state->uploaded.emplace(event.part, event.uploaded).second;
  return is_first ? UploadAction::kNone : Break(state);
}

/// Asks for the completion where all parts of the object have been sent. Zeros behind the end may
/// have been, too.
UploadAction TakeParts(UploadState* state, std::uint64_t count) {
  state->uploaded.erase(state->uploaded.lower_bound(count), state->uploaded.end());
  if (state->is != UploadStep::kOpen || state->uploaded.size() != count) {
    return Break(state);
  }
  state->is = UploadStep::kCompleting;
  return UploadAction::kComplete;
}

UploadAction TakeCarried(UploadState* state) {
  if (state->is != UploadStep::kPutting && state->is != UploadStep::kCompleting) {
    return Break(state);
  }
  state->is = UploadStep::kDone;
  return UploadAction::kNone;
}

UploadAction TakeUnclear(UploadState* state) {
  if (state->is != UploadStep::kCompleting) {
    return Break(state);
  }
  state->is = UploadStep::kLooking;
  return UploadAction::kLook;
}

UploadAction TakeLooked(UploadState* state, bool ours) {
  if (state->is != UploadStep::kLooking || !ours) {
    return Break(state);
  }
  state->is = UploadStep::kDone;
  return UploadAction::kNone;
}

UploadAction TakeEnd(UploadState* state) {
  const bool open = state->is != UploadStep::kDone && state->is != UploadStep::kEnded;
  if (open) {
    state->is = UploadStep::kEnded;
  }
  return open && !state->id.empty() ? UploadAction::kEnd : UploadAction::kNone;
}

}  // namespace

UploadAction Step(UploadState* state, const UploadEvent& event) {
  return std::visit(Overloaded{
                        [&](const PartIsFull&) { return TakeFullPart(state); },
                        [&](const Begun& begun) {
                          state->id = begun.id;
                          state->is = state->is == UploadStep::kBeginning ? UploadStep::kOpen
                                                                          : UploadStep::kBroken;
                          return UploadAction::kNone;
                        },
                        [&](const PartSent& sent) { return TakeSentPart(state, sent); },
                        [&](const SyncedSmall&) {
                          if (state->is != UploadStep::kGathering) {
                            return Break(state);
                          }
                          state->is = UploadStep::kPutting;
                          return UploadAction::kPut;
                        },
                        [&](const SyncedParts& synced) { return TakeParts(state, synced.count); },
                        [&](const Carried&) { return TakeCarried(state); },
                        [&](const Refused&) { return Break(state); },
                        [&](const Unclear&) { return TakeUnclear(state); },
                        [&](const Looked& looked) { return TakeLooked(state, looked.ours); },
                        [&](const GivenUp&) { return TakeEnd(state); },
                    },
                    event);
}

}  // namespace varve
