/// From an assignment to the layout of a rank's data file.
#pragma once

#include <string>
#include <vector>

#include "format/data_file.h"
#include "plan/save_plan.h"

namespace varve {

/// A data file before its checksums are known.
struct FilePlan {
  DataFileHeader header;                    ///< Laid out; checksums still zero.
  std::vector<std::uint32_t> chunk_items;   ///< For each header.chunks: index into the local plan.
  std::vector<std::uint32_t> object_items;  ///< For each header.objects likewise.
  /// For each header.chunks: its box in the whole tensor, also where it is a variant's.
  std::vector<Box> chunk_boxes;
};

/// Returns the variant that an item is stored as; null for most.
const VariantAssignment* FindVariant(const std::vector<VariantAssignment>& variants,
                                     std::uint32_t item);

/// Returns the name under which a file has a tensor's shard that is stored as a variant.
std::string NameInFile(const PlannedTensor& item, const VariantAssignment& variant);

/// Returns the same for a plain value.
std::string NameInFile(const ObjectItem& item, const VariantAssignment& variant);

/// Lays out the file of an assignment. Errors: InvalidArgument when the assignment does not fit the
/// plan or sizes overflow.
Result<FilePlan> PlanFile(const LocalPlan& plan, const RankAssignment& assignment,
                          const FileIdentity& identity);

/// The checksums a rank found while writing; with its FilePlan they make up the header. Compact,
/// so that the coordinator can build the manifest without reading the files back.
struct WriteReceipt {
  std::uint64_t header_bytes = 0;
  std::uint32_t header_crc32c = 0;
  std::vector<std::uint32_t> block_crc32c;
};

Bytes EncodeReceipt(const WriteReceipt& receipt);
Result<WriteReceipt> DecodeReceipt(std::string_view bytes);

/// Checks that a receipt is of so many bytes of data. Errors: Internal.
Status CheckReceipt(const WriteReceipt& receipt, std::uint64_t data_bytes,
                    std::uint64_t block_bytes);

/// Fills the plan's checksums from a receipt. Errors: CheckReceipt's.
Status ApplyReceipt(const WriteReceipt& receipt, DataFileHeader* header);

}  // namespace varve
