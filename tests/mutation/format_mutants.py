"""Mutants of what reads and writes indexes, see mutants.py."""

from __future__ import annotations

from mutant import Mutant

INTEROP = (
    "Zip*:*Torch*:*Pickle*:*Safetensors*:Hf*:*Hfai*:*Olmo*:*Dcp*:*Golden*:Open*:Fuzz*:*RecordSums*"
    ":Overlap*:Globs*:*Archive*"
)
MANIFEST = "Manifest*:Cells*:AddPlace*:ChunkCollector*:OpenIndex*:*Golden*:*Upload*"

FORMAT_MUTANTS = (
    # ---- manifests ----
    Mutant(
        "manifest-chunk-outside-its-file",
        "src/format/manifest_decode.cc",
        "return run.begin >= common_begin_ && run.begin <= common_end_ &&",
        "return run.begin <= common_end_ &&",
        MANIFEST,
    ),
    Mutant(
        "manifest-run-of-files-that-are-not-there",
        "src/format/manifest_decode.cc",
        "if (run.file() >= out_.files.size() || last < 0 ||",
        "if (run.file() >= out_.files.size() ||",
        MANIFEST,
    ),
    Mutant(
        "manifest-grid-of-other-cells",
        "src/format/manifest_decode.cc",
        "if (!cells || cells->count() != record.chunk_count()) {",
        "if (!cells) {",
        MANIFEST,
    ),
    Mutant(
        "manifest-of-more-chunks-than-its-bytes",
        "src/format/manifest_decode.cc",
        "if (chunks > kMostChunks - chunks_ || (listed && chunks > most_listed_ - listed_)) {",
        "if (false) {",
        MANIFEST,
    ),
    Mutant(
        "manifest-of-another-size-than-its-record-says",
        "src/catalogue/open.cc",
        "if (file->size() != record.manifest_bytes || record.frame_bytes > kMaxFrameBytes) {",
        "if (record.frame_bytes > kMaxFrameBytes) {",
        MANIFEST,
    ),
    # ---- interop bounds ----
    Mutant(
        "zip-record-beyond-its-room",
        "src/interop/zip/directory.cc",
        "if (!whole || *whole > record.limit || record.limit > directory_begin) {",
        "if (!whole) {",
        INTEROP,
    ),
    Mutant(
        "zip-compressed",
        "src/interop/zip/directory.cc",
        "if (stored_bytes != record.size) {",
        "if (false) {",
        INTEROP,
    ),
    Mutant(
        "torch-tensor-beyond-its-storage",
        "src/interop/torch/tensor.cc",
        "if (!last || *last >= storage_bytes / item_bytes) {",
        "if (!last) {",
        INTEROP,
    ),
    Mutant(
        "torch-storage-beyond-its-record",
        "src/interop/torch/tensor.cc",
        "if (!taken || *taken > storages_[*storage].bytes) {",
        "if (!taken) {",
        INTEROP,
    ),
    Mutant(
        "torch-bomb",
        "src/interop/torch/tensor.cc",
        "if (*bytes > kAnyTensorBytes && *bytes / kMaxRepeats > storage_bytes) {",
        "if (false) {",
        INTEROP,
    ),
    Mutant(
        "safetensors-beyond-the-file",
        "src/interop/safetensors/decode.cc",
        "if (range.size() != 2 || range[0] > range[1] || range[1] > file.size - data_begin) {",
        "if (range.size() != 2 || range[0] > range[1]) {",
        INTEROP,
    ),
    Mutant(
        "safetensors-bytes-of-another-shape",
        "src/interop/safetensors/decode.cc",
        "if (!bytes || *bytes != range[1] - range[0]) {",
        "if (!bytes) {",
        INTEROP,
    ),
    Mutant(
        "safetensors-overlap",
        "src/interop/safetensors/decode.cc",
        "if (order[i]->begin < order[i - 1]->end) {",
        "if (false) {",
        INTEROP,
    ),
    Mutant(
        "pickle-depth",
        "src/interop/pickle/opcodes.cc",
        "if (marks_.size() >= max_depth_) {",
        "if (false) {",
        INTEROP,
    ),
    Mutant(
        "pickle-frame-beyond-the-end",
        "src/interop/pickle/opcodes.cc",
        "return size <= input_.size() - position_ || ",
        "return true || ",
        INTEROP,
    ),
    Mutant(
        "olmo-replicas-that-differ",
        "src/interop/olmo/pieces.cc",
        "if (left != right) {",
        "if (false) {",
        INTEROP,
    ),
)
