#include "save/dcp_receipt.h"

#include "base/checked.h"
#include "base/fields.h"

namespace varve {

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

}  // namespace varve
