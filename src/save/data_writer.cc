#include "save/data_writer.h"

#include <cstddef>
#include <memory>
#include <utility>

#include "base/checksum.h"
#include "pipeline/file_writer.h"
#include "save/tensor_source.h"
#include "save/ties.h"
#include "tensor/box.h"

namespace varve {
namespace {

Result<std::vector<FileSegment>> Segments(const State& state, const FilePlan& plan,
                                          std::string_view structure) {
  std::vector<FileSegment> segments;
  segments.reserve(plan.header.chunks.size() + plan.header.objects.size() + 1);
  for (std::size_t i = 0; i < plan.header.chunks.size(); ++i) {
    const StoredChunk& chunk = plan.header.chunks[i];
    const SourceTensor& source = state.tensors[plan.chunk_items[i]];
    FileSegment segment{.bytes = chunk.bytes.end - chunk.bytes.begin, .owner = plan.chunk_items[i]};
    VARVE_RETURN_IF_ERROR(
        ReadFrom(source.source, source.dtype, source.box, plan.chunk_boxes[i], &segment)
            .Annotate("tensor \"" + source.fqn + "\""));
    segments.push_back(std::move(segment));
  }
  for (const std::uint32_t item : plan.object_items) {
    const std::string& encoded = state.objects[item].encoded;
    segments.push_back({.bytes = encoded.size(), .literal = AsByteSpan(encoded)});
  }
  if (!structure.empty()) {
    segments.push_back({.bytes = structure.size(), .literal = AsByteSpan(structure)});
  }
  return segments;
}

}  // namespace

Result<LocalPlan> MakeLocalPlan(const State& state) {
  LocalPlan plan;
  plan.tensors.reserve(state.tensors.size());
  for (const SourceTensor& tensor : state.tensors) {
    plan.tensors.emplace_back(tensor.fqn, tensor.dtype, tensor.shape, tensor.box);
  }
  for (const SourceObject& object : state.objects) {
    plan.objects.push_back({object.fqn, object.encoded.size(), Xxh3(AsByteSpan(object.encoded))});
  }
  plan.structure = state.structure;
  VARVE_RETURN_IF_ERROR(CheckLocalPlan(plan));
  for (const SourceTensor& tensor : state.tensors) {
    VARVE_RETURN_IF_ERROR(
        CheckSource(tensor.source, tensor.box).Annotate("tensor \"" + tensor.fqn + "\""));
  }
  VARVE_RETURN_IF_ERROR(FindTies(state, &plan));
  return plan;
}

Result<FileWork> PrepareDataFile(const State& state, const FilePlan& plan, std::string structure) {
  const auto text = std::make_shared<const std::string>(std::move(structure));
  VARVE_ASSIGN_OR_RETURN(std::vector<FileSegment> segments, Segments(state, plan, *text));
  VARVE_ASSIGN_OR_RETURN(FileWork work, DescribeDataFile(plan));
  work.segments = std::move(segments);
  work.keep = text;
  work.name_of = [&state](std::uint32_t owner) { return state.tensors[owner].fqn; };
  return work;
}

Result<FileWork> DescribeDataFile(const FilePlan& plan) {
  std::uint32_t unfilled = 0;
  VARVE_ASSIGN_OR_RETURN(Bytes header, EncodeHeader(plan.header, &unfilled));
  FileWork work;
  work.size = header.size() + plan.header.data_bytes;
  work.data_begin = header.size();
  work.block_bytes = plan.header.identity.block_bytes;
  work.finish = [header = std::move(header)](WrittenSegments data) -> Result<FinishedFile> {
    WriteReceipt receipt;
    receipt.header_bytes = header.size();
    receipt.block_crc32c = std::move(data.block_crc32c);
    FinishedFile finished;
    finished.header = header;
    VARVE_RETURN_IF_ERROR(
        FillHeader(receipt.block_crc32c, data.contents, &finished.header, &receipt.header_crc32c));
    finished.receipt = EncodeReceipt(receipt);
    return finished;
  };
  return work;
}

}  // namespace varve
