/// `.distcp` files: what they are made of, what was written, and how. For savers with a plan of
/// their own, such as PyTorch's planners, and for saves in DCP's format.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "varve/checkpoint.h"
#include "varve/options.h"
#include "varve/status.h"
#include "varve/storage.h"
#include "varve/tensor.h"

namespace varve {

/// A tensor of a `.distcp` file: `part` of the elements that `source` holds, which are `box` of the
/// whole. Its bytes must stay valid and unchanged until the file is written; not on a CUDA device.
struct DcpTensor {
  DType dtype = DType::kUInt8;
  Box box;
  Box part;
  TensorSource source;
  bool bare = false;  ///< Without an archive: the items around it make one.
};

/// One item of a `.distcp` file.
struct DcpItem {
  std::string fqn;                               ///< For messages.
  std::variant<DcpTensor, std::string> content;  ///< A string is an archive of torch.save already.
  bool on_page = false;                          ///< A string: lies at a multiple of 4096.
  std::uint64_t filler_bytes = 0;                ///< A string: kTorchFiller that comes behind it.
};

/// Returns the item of a tensor of these sizes, all of which `source` holds.
DcpItem WholeDcpTensor(std::string fqn, DType dtype, const Dims& sizes, TensorSource source);

struct DcpExtent {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  /// Of a tensor: bytes from `offset` to its elements, row-major and packed. 0 for other items, and
  /// for tensors that are bare.
  std::uint64_t payload = 0;
};

/// A written file.
struct DcpFile {
  std::vector<DcpExtent> items;  ///< In the order given.
  std::uint64_t size = 0;
  std::uint64_t block_bytes = 0;
  std::vector<std::uint32_t> block_crc32c;  ///< Of every block of the file; the last may be short.
  bool direct = false;
};

/// Writes `items` one behind the other, each tensor as an archive of torch.save, and makes the
/// content of the file durable; its name is not. A tensor of at least kDirectAlignment bytes has its
/// archive and its payload at multiples of that; what is smaller lies packed without gaps, so that
/// many small values cost what they hold. The same items always give the same bytes. Beside the
/// pipeline's blocks it takes about 1 KiB of memory for each tensor. Errors: AlreadyExists;
/// OutOfSpace; Unavailable; Unimplemented for a dtype torch.save has no name for; InvalidArgument
/// naming the tensor for sizes that overflow, for strides that do not fit the sizes, and where there
/// is no memory to read; those of reading a device.
Result<DcpFile> WriteDcpFile(const std::string& path, const std::vector<DcpItem>& items,
                             const SaveOptions& options = {}, Storage& storage = AnyStorage());

/// Encodes the receipt that a rank sends to the coordinator for its file: the place of each item and
/// the checksums, without `direct`. Before the file is written, the same without checksums is its
/// layout.
Bytes EncodeDcpFile(const DcpFile& file);
/// Decodes a receipt. Errors: DataLoss, also for an item that ends beyond 2^64.
Result<DcpFile> DecodeDcpFile(std::string_view bytes);

/// Returns a fingerprint of each item, by which ranks find replicas that differ: of all bytes up to
/// 64 KiB, else of 64 samples of 64 bytes. Items with equal fingerprints, dtypes and sizes count as
/// equal. 0 for items without memory: archives, empty tensors, those that are produced. Errors:
/// those of reading a device.
Result<std::vector<std::uint64_t>> FingerprintDcpItems(const std::vector<DcpItem>& items);

}  // namespace varve
