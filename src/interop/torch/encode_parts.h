/// Functions that the encoders of torch.save's archives share. Private to them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "interop/pickle/writer.h"
#include "interop/zip/writer.h"
#include "varve/status.h"
#include "varve/tensor.h"
#include "varve/value.h"

namespace varve {

/// Storages begin at multiples of this in their archive, as torch.save places them.
inline constexpr std::uint64_t kTorchStorageAlignment = 64;

/// Returns the bytes of a packed tensor. Errors: InvalidArgument for sizes that overflow, among
/// them those that no torch can have because the steps between elements would, though there are
/// none.
Result<std::uint64_t> TorchTensorBytes(DType dtype, const Dims& sizes);

/// Writes a packed tensor, whose storage is the record `data/KEY`. Requires: TorchTensorBytes
/// accepts it.
void PickleTensor(DType dtype, const Dims& sizes, std::string_view key, PickleWriter* pickle);

/// A record that torch does not look at: a value of classes as Varve encodes it, where the pickle
/// has the plain value that stands for it. Values of more bytes have none.
inline constexpr std::string_view kValueRecord = "archive/varve_value";
inline constexpr std::uint64_t kMaxValueRecordBytes = std::uint64_t{1} << 20;

/// Adds every record but the storages. Requires: they are the first records.
void AddTorchRecords(std::string_view pickle, ZipWriter* zip, Bytes* out);

/// Adds the header of the storage `data/KEY`; returns as ZipWriter::AddHeader.
std::uint64_t AddTorchStorage(std::string_view key, std::uint64_t bytes, std::uint32_t crc32,
                              std::uint64_t alignment, ZipWriter* zip, Bytes* out);

/// Returns the int that a kInt of at most eight bytes is. Errors: InvalidArgument naming `what`.
Result<std::int64_t> IntOf(const Value& value, std::string_view what);
/// Returns the shape in a kTuple of ints that are not negative. Errors: InvalidArgument naming
/// `what`.
Result<Dims> ShapeOf(const Value& value, std::string_view what);

/// Writes a str. Errors: InvalidArgument for text that is not UTF-8.
Status PickleText(std::string_view text, PickleWriter* pickle);

/// Writes a range. Errors: InvalidArgument for one that Python would not have.
Status PickleRange(const Value& value, PickleWriter* pickle);

/// Returns the first characters, for messages.
std::string QuotedStart(std::string_view text);

/// Writes a datetime, date, time, timedelta, timezone or ZoneInfo: encode_time.cc. Errors:
/// InvalidArgument for one that Python would not have.
Status PickleTime(const Value& value, PickleWriter* pickle);

/// Writes a numpy scalar or array: encode_numpy.cc. Errors: InvalidArgument for a dtype without
/// fixed plain bytes, and when the bytes do not fit it and the shape.
Status PickleNumpyScalar(const Value& value, PickleWriter* pickle);
Status PickleNumpyArray(const Value& value, PickleWriter* pickle);

}  // namespace varve
