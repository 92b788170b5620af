/// The states of one upload: an object that is written in parts, or by one PUT where it is small.
/// It has no threads, memory of the parts, connections or clock, so that the simulator can drive
/// it.
///
/// | state      | it waits for                                  | becomes
/// |------------|-----------------------------------------------|------------------------------------
/// | kGathering | a part that is full; or Sync                  | kBeginning; kPutting
/// | kBeginning | the upload's id                               | kOpen, kBroken
/// | kOpen      | parts; Sync                                   | kCompleting, kBroken
/// | kPutting   | the answer to the PUT of the whole object     | kDone, kBroken
/// | kCompleting| the answer to the completion                  | kDone, kLooking, kBroken
/// | kLooking   | what the server has under the name            | kDone, kBroken
/// | kDone      | the object is there, whole                    | (the end)
/// | kBroken    | the end of the writer, which ends the upload  | kEnded
/// | kEnded     | there is nothing to end, or it was tried      | (the end)
///
/// Each request may be applied though its answer was lost, and may be applied again later:
///   1. A beginning that is sent again leaves an upload of unknown id. Only a sweep finds it.
///   2. A part that is sent again has the same bytes and number: it replaces itself.
///   3. A completion that is sent again meets no upload ("NoSuchUpload") where the first was
///      carried out. But it also meets none where another program has ended the upload. So the
///      answer says nothing: the object under the name is looked at. It carries the mark that the
///      beginning gave it. Its size would not do: an older object may have that size too.
///   4. An upload is ended once no part is on its way any more: a part that comes later than the
///      end would stay at some servers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>

namespace varve {

enum class UploadStep : std::uint8_t {
  kGathering,
  kBeginning,
  kOpen,
  kPutting,
  kCompleting,
  kLooking,
  kDone,
  kBroken,
  kEnded,
};

struct UploadState {
  UploadStep is = UploadStep::kGathering;
  std::string id;  ///< Empty: not begun, as far as is known.
  /// What the store returned for the parts that were sent, by number from 0 on.
  std::map<std::uint64_t, std::string> uploaded;
};

namespace upload_event {
/// All bytes of a part are there. It is sent once the upload is open. PartSent, Refused or Unclear
/// follows.
struct PartIsFull {};
struct Begun {
  std::string id;
};
struct PartSent {
  std::uint64_t part = 0;
  std::string uploaded;  ///< What the store returned for it.
};
/// All bytes are written and fit one PUT.
struct SyncedSmall {};
/// All bytes are written, and parts [0, `count`) are the object.
struct SyncedParts {
  std::uint64_t count = 0;
};
/// The request that the state waits for, or the one of a part, was carried out.
struct Carried {};
/// It was refused, and was not carried out.
struct Refused {};
/// It is not known whether it was carried out: no answer, or one that means nothing.
struct Unclear {};
/// The object under the name carries the mark of this upload, or another one, or is not there.
struct Looked {
  bool ours = false;
};
/// The writer ends; no request is on its way.
struct GivenUp {};
}  // namespace upload_event

using UploadEvent =
    std::variant<upload_event::PartIsFull, upload_event::Begun, upload_event::PartSent,
                 upload_event::SyncedSmall, upload_event::SyncedParts, upload_event::Carried,
                 upload_event::Refused, upload_event::Unclear, upload_event::Looked,
                 upload_event::GivenUp>;

/// The request that follows a step.
enum class UploadAction : std::uint8_t {
  kNone,
  kBegin,     ///< Begun, Refused or Unclear follows.
  kPut,       ///< Of the whole object. Carried, Refused or Unclear follows.
  kComplete,  ///< With `uploaded`. Likewise.
  kLook,      ///< Looked follows.
  kEnd,       ///< Of the upload. Nothing follows.
};

/// Takes an event. An event that the state does not wait for breaks the upload.
UploadAction Step(UploadState* state, const UploadEvent& event);

}  // namespace varve
