#include "save/dcp_items.h"

#include <array>
#include <cassert>
#include <cstddef>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/checked.h"
#include "base/fields.h"
#include "format/data_file.h"
#include "interop/torch/encode.h"
#include "pipeline/file_writer.h"
#include "save/file_work.h"
#include "save/fingerprint.h"
#include "save/tensor_source.h"
#include "tensor/box.h"
#include "varve/storage.h"

namespace varve {
namespace {

// The content of gaps: a page of zeros between items, one of filler before payloads.
using Page = std::array<char, kTorchItemAlignment>;
constexpr Page PageOf(char byte) {
  Page page{};
  page.fill(byte);
  return page;
}
constexpr Page kZeros = PageOf('\0');
constexpr Page kFiller = PageOf(kTorchFiller);

/// Returns true for a tensor whose payload is worth a page of its own. Sizes are checked later:
/// what overflows is refused either way.
bool IsLarge(const DcpTensor& tensor) {
  const auto elements = CheckedProduct(tensor.part.sizes);
  const auto bytes = elements ? CheckedMul(*elements, ItemSize(tensor.dtype)) : std::nullopt;
  return bytes && *bytes >= kDirectAlignment;
}

/// Collects the segments of a file, front to back. Their literals live in this or in the items.
class DcpLayout {
 public:
  explicit DcpLayout(std::span<const DcpItem> items) {
    texts_.reserve(items.size() * 2);
    segments_.reserve(items.size() * 5);
    extents_.reserve(items.size());
  }

  Status Add(const DcpItem& item) {
    if (const auto* tensor = std::get_if<DcpTensor>(&item.content)) {
      const Status status = AddTensor(*tensor, static_cast<std::uint32_t>(extents_.size()));
      return status.ok() ? status : status.Annotate("tensor \"" + item.fqn + "\"");
    }
    const std::string& text = std::get<std::string>(item.content);
    if (item.on_page) {
      AddFiller(kZeros, RoundUp(size_, kTorchItemAlignment) - size_);
    }
    extents_.push_back({size_, text.size() + item.filler_bytes});
    AddLiteral(AsByteSpan(text));
    AddFiller(kFiller, item.filler_bytes);
    return Status::Ok();
  }

  /// Returns all that is known before the writing. This must live as long as the segments are used.
  DcpWork Work() { return {size_, std::move(segments_), std::move(extents_), nullptr}; }

 private:
  Status AddTensor(const DcpTensor& tensor, std::uint32_t number) {
    if (tensor.bare) {
      VARVE_RETURN_IF_ERROR(CheckSource(tensor.source, tensor.box));
      const std::uint64_t bytes = Volume(tensor.part.sizes) * ItemSize(tensor.dtype);
      extents_.push_back({size_, bytes});
      return AddPayload(tensor, bytes, number);
    }
    const bool align = IsLarge(tensor);
    // Without the payload's CRC, which is known only when the bytes have passed. DCP never looks at
    // it, and Varve has checksums of the file's blocks.
    VARVE_ASSIGN_OR_RETURN(
        TensorArchive archive,
        EncodeTensorArchive(tensor.dtype, tensor.part.sizes, std::nullopt, align));
    VARVE_RETURN_IF_ERROR(CheckSource(tensor.source, tensor.box));
    if (align) {
      AddFiller(kZeros, RoundUp(size_, kTorchItemAlignment) - size_);
    }
    extents_.push_back({size_, archive.size(), archive.head.size()});
    AddText(archive.head.substr(0, archive.head.size() - archive.filler_bytes));
    AddFiller(kFiller, archive.filler_bytes);
    VARVE_RETURN_IF_ERROR(AddPayload(tensor, archive.payload_bytes, number));
    AddText(std::move(archive.tail));
    return Status::Ok();
  }

  Status AddPayload(const DcpTensor& tensor, std::uint64_t bytes, std::uint32_t number) {
    if (bytes > 0) {
      FileSegment payload{.bytes = bytes, .owner = number};
      VARVE_RETURN_IF_ERROR(
          ReadFrom(tensor.source, tensor.dtype, tensor.box, tensor.part, &payload));
      segments_.push_back(std::move(payload));
      size_ += bytes;
    }
    return Status::Ok();
  }

  void AddText(std::string text) {
    // Short strings hold their bytes in themselves: they must not move.
    assert(texts_.size() < texts_.capacity());
    texts_.push_back(std::move(text));
    AddLiteral(AsByteSpan(texts_.back()));
  }

  void AddFiller(const Page& page, std::uint64_t bytes) {
    AddLiteral(AsByteSpan({page.data(), page.size()}).first(bytes));
  }

  void AddLiteral(std::span<const std::byte> bytes) {
    if (!bytes.empty()) {
      segments_.push_back({bytes.size(), bytes, std::nullopt});
      size_ += bytes.size();
    }
  }

  std::uint64_t size_ = 0;
  std::vector<std::string> texts_;
  std::vector<FileSegment> segments_;
  std::vector<DcpExtent> extents_;
};

/// Orders copies of items on devices behind the work that is queued there.
Status AwaitDevices(std::span<const DcpItem> items) {
  DeviceWaits waits;
  for (const DcpItem& item : items) {
    if (const auto* const tensor = std::get_if<DcpTensor>(&item.content)) {
      VARVE_RETURN_IF_ERROR(waits.Add(tensor->source, item.fqn));
    }
  }
  return Status::Ok();
}

}  // namespace

DcpItem WholeDcpTensor(std::string fqn, DType dtype, const Dims& sizes, TensorSource source) {
  const Box box = WholeBox(sizes);
  return {std::move(fqn), DcpTensor{dtype, box, box, std::move(source)}};
}

Result<DcpWork> LayOutDcpItems(std::span<const DcpItem> items) {
  const auto layout = std::make_shared<DcpLayout>(items);
  for (const DcpItem& item : items) {
    VARVE_RETURN_IF_ERROR(layout->Add(item));
  }
  DcpWork work = layout->Work();
  work.keep = layout;
  return work;
}

Result<DcpFile> WriteDcpFile(const std::string& path, const std::vector<DcpItem>& items,
                             const SaveOptions& options, Storage& storage) {
  VARVE_ASSIGN_OR_RETURN(const std::string where, ResolvePath(path, storage));
  VARVE_RETURN_IF_ERROR(AwaitDevices(items));
  if (options.block_bytes == 0 || options.block_bytes % kDataAlignment != 0 ||
      options.block_bytes > kMaxBlockBytes) {
    return InvalidArgument("block_bytes must be a multiple of 4096 up to 8 MiB, not " +
                           std::to_string(options.block_bytes));
  }
  VARVE_ASSIGN_OR_RETURN(DcpWork laid_out, LayOutDcpItems(items));
  DcpFile written;
  written.items = std::move(laid_out.items);
  written.size = laid_out.size;
  written.block_bytes = options.block_bytes;
  FileWork work;
  work.size = laid_out.size;
  work.block_bytes = options.block_bytes;
  work.segments = std::move(laid_out.segments);
  work.finish = [&](WrittenSegments data) -> Result<FinishedFile> {
    written.block_crc32c = std::move(data.block_crc32c);
    return FinishedFile{};
  };
  VARVE_ASSIGN_OR_RETURN(const WrittenShare share,
                         WriteFileWork(storage, where, work, nullptr, options));
  written.direct = share.direct;
  return written;
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, DcpExtent>& item) {
  archive(item.offset, item.length, item.payload);
  archive.Check([&] { return CheckedAdd(item.offset, item.length).has_value(); },
                "an item beyond the end of any file");
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, DcpFile>& file) {
  archive(file.size, file.block_bytes, file.items);
  archive.Fixed(file.block_crc32c);
}

Bytes EncodeDcpFile(const DcpFile& file) { return EncodeFields(file); }
Result<DcpFile> DecodeDcpFile(std::string_view bytes) { return DecodeFields<DcpFile>(bytes); }

Result<std::vector<std::uint64_t>> FingerprintDcpItems(const std::vector<DcpItem>& items) {
  VARVE_RETURN_IF_ERROR(AwaitDevices(items));
  std::vector<std::uint64_t> fingerprints(items.size());
  std::vector<ShardToHash> shards;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto* const tensor = std::get_if<DcpTensor>(&items[i].content);
    if (tensor == nullptr || IsProduced(tensor->source) || AddressOf(tensor->source) == nullptr ||
        CheckedProduct(tensor->part.sizes).value_or(0) == 0) {
      continue;
    }
    const StridedMemory memory = MemoryOf(tensor->source, tensor->dtype, tensor->box);
    shards.push_back({Region(tensor->part, memory, tensor->part), items[i].fqn,
                      DeviceOf(tensor->source), &fingerprints[i]});
  }
  VARVE_RETURN_IF_ERROR(FillFingerprints(shards, CheckReplicas::kSamples));
  return fingerprints;
}

}  // namespace varve
