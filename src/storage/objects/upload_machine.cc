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
  state->is = UploadIs::kBroken;
  return UploadAction::kNone;
}

UploadAction TakeFullPart(UploadState* state, std::uint64_t part) {
  if (!state->parts.emplace(part, PartIs::kWaiting).second) {
    return Break(state);  // Written twice.
  }
  switch (state->is) {
    case UploadIs::kGathering: state->is = UploadIs::kBeginning; return UploadAction::kBegin;
    case UploadIs::kBeginning:
    case UploadIs::kOpen:
    case UploadIs::kBroken: return UploadAction::kNone;
    default: return Break(state);
  }
}

UploadAction TakeSentPart(UploadState* state, const PartSent& event) {
  PartIs& part = state->parts[event.part];
  if (part != PartIs::kSending) {
    return Break(state);
  }
  part = PartIs::kSent;
  state->uploaded[event.part] = event.uploaded;
  return UploadAction::kNone;
}

/// Asks for the completion where all parts of the object have been sent. Zeros behind the end may
/// have been, too.
UploadAction TakeParts(UploadState* state, std::uint64_t count) {
  state->uploaded.erase(state->uploaded.lower_bound(count), state->uploaded.end());
  if (state->is != UploadIs::kOpen || state->uploaded.size() != count) {
    return Break(state);
  }
  state->is = UploadIs::kCompleting;
  return UploadAction::kComplete;
}

UploadAction TakeCarried(UploadState* state) {
  if (state->is != UploadIs::kPutting && state->is != UploadIs::kCompleting) {
    return Break(state);
  }
  state->is = UploadIs::kDone;
  return UploadAction::kNone;
}

UploadAction TakeUnclear(UploadState* state) {
  if (state->is != UploadIs::kCompleting) {
    return Break(state);
  }
  state->is = UploadIs::kLooking;
  return UploadAction::kLook;
}

UploadAction TakeLooked(UploadState* state, bool ours) {
  if (state->is != UploadIs::kLooking || !ours) {
    return Break(state);
  }
  state->is = UploadIs::kDone;
  return UploadAction::kNone;
}

UploadAction TakeEnd(UploadState* state) {
  const bool open = state->is != UploadIs::kDone && state->is != UploadIs::kEnded;
  if (open) {
    state->is = UploadIs::kEnded;
  }
  return open && !state->id.empty() ? UploadAction::kEnd : UploadAction::kNone;
}

}  // namespace

UploadAction Step(UploadState* state, const UploadEvent& event) {
  return std::visit(Overloaded{
                        [&](const PartIsFull& full) { return TakeFullPart(state, full.part); },
                        [&](const Begun& begun) {
                          state->id = begun.id;
                          state->is = state->is == UploadIs::kBeginning ? UploadIs::kOpen
                                                                        : UploadIs::kBroken;
                          return UploadAction::kNone;
                        },
                        [&](const PartSent& sent) { return TakeSentPart(state, sent); },
                        [&](const SyncedSmall&) {
                          if (state->is != UploadIs::kGathering) {
                            return Break(state);
                          }
                          state->is = UploadIs::kPutting;
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

bool TakePart(UploadState* state, std::uint64_t part) {
  const auto found = state->parts.find(part);
  if (state->is != UploadIs::kOpen || found == state->parts.end() ||
      found->second != PartIs::kWaiting) {
    return false;
  }
  found->second = PartIs::kSending;
  return true;
}

}  // namespace varve
