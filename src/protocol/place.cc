#include "protocol/place.h"

#include "base/bytes.h"

namespace varve::protocol {

std::string EncodePlace(const Place& place) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.String(place.directory);
  out.U8(place.is_below ? 1 : 0);
  out.Varint(place.rank);
  out.Varint(place.number);
  return bytes;
}

Result<Place> DecodePlace(std::string_view bytes) {
  ByteReader in(bytes);
  Place place;
  place.directory = in.String();
  place.is_below = in.U8() != 0;
  place.rank = static_cast<std::uint32_t>(in.Varint());
  place.number = in.Varint();
  // The name must not lead anywhere else.
  if (!in.Finish().ok() || place.directory.empty() ||
      place.directory.find('/') != std::string::npos) {
    return InvalidArgument(
        "the plan does not say where to write: its storage_data, as PrepareGlobalPlan made it, was "
        "lost on the way");
  }
  return place;
}

}  // namespace varve::protocol
