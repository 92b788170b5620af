"""Makes and compares the tensors of wrapped_classes.MATRIX, and finds the classes that it must have."""

from __future__ import annotations

import importlib
import importlib.util
import re
import zlib
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from wrapped_classes import COLUMNS, MATRIX, ROWS, Inner, Row

#: Rows that torch's planner cannot describe: the drop-in refuses them, as torch does.
NOT_PLANNED = (
    *("SparseSemiStructured", "SparseSemiStructured of cuSPARSELt", "static Float8"),
    *("Float8Sparse2x4 1d", "Float8Sparse2x4 2d", "Float8Opaque", "Int4", "Int4 scaled before"),
    *("Int4PlainInt32", "Int4Preshuffled", "Int4TilePackedTo4d", "Int4Opaque", "Int8Lut"),
    *("IntxUnpackedToInt8", "IntxOpaque", "UIntxBitPacked", "Uintx", "Float8Training"),
    *("Int8QuantizedTraining", "BitNetPacked", "BlockSparse", "Codebook of CoreML"),
    *("Codebook by group", "GGUF", "GPTQObserver"),
)

_SHARDS = "a distributed tensor, tested with those"
_PLAIN = "stored as the plain tensor that it is"
_REFUSED = "refused by name, see test_what_cannot_be_taken_apart_is_refused_by_name"
_TRACED = "is there only while torch traces a function"
_BASE = "a base of others that makes no tensors"
_LACKS = "its module needs a package that is not installed"

#: The other subclasses of torch.Tensor, and why they are no rows.
REASONS: dict[str, str] = {
    "torch._subclasses.fake_tensor:FakeTensor": _REFUSED,
    "torch._subclasses.functional_tensor:FunctionalTensor": _TRACED,
    "torch.distributed._functional_collectives:AsyncCollectiveTensor": _SHARDS,
    "torch.distributed._local_tensor:LocalTensor": "all ranks of a simulation in one process",
    "torch.distributed._shard.sharded_tensor.api:ShardedTensor": _SHARDS,
    "torch.distributed._shard.sharded_tensor.api:ShardedTensorBase": _BASE,
    "torch.distributed.fsdp._flat_param:FlatParameter": _PLAIN,
    "torch.distributed.tensor._api:DTensor": _SHARDS,
    "torch.distributed.tensor._shards_wrapper:LocalShardsWrapper": _REFUSED,
    "torch.masked.maskedtensor.core:MaskedTensor": _REFUSED,
    "torch.nested._internal.nested_tensor:NestedTensor": "see test_wrapped.py",
    "torch.nn.attention.bias:CausalBias": _PLAIN,
    "torch.nn.parameter:Buffer": _PLAIN,
    "torch.nn.parameter:Parameter": _PLAIN,
    "torch.nn.parameter:UninitializedBuffer": _REFUSED,
    "torch.nn.parameter:UninitializedParameter": _REFUSED,
    "torch.nn.utils._expanded_weights.expanded_weights_impl:ExpandedWeight": _TRACED,
    "torch.onnx._internal.exporter._core:TorchTensor": "no tensor of torch but of ONNX",
    "torch.sparse.semi_structured:SparseSemiStructuredTensor": _BASE,
    "torchao._models.sam2.map_tensor:MapTensor": _LACKS,
    "torchao.prototype.autoround.multi_tensor:MultiTensor": _REFUSED,
    "torchao.prototype.moe_training.tensor:TrainingWeightWrapperBaseTensor": _BASE,
    "torchao.quantization.qat.affine_fake_quantized_tensor:_AffineFakeQuantizedTensor": _REFUSED,
    "torchao.swizzle.swizzle_tensor:SwizzleTensor": _REFUSED,
    "torchao.utils:TorchAOBaseTensor": _BASE,
}
if hasattr(torch.utils.dlpack, "ReadOnlyTensorWrapper"):  # Since torch 2.15.
    REASONS["torch.utils.dlpack:ReadOnlyTensorWrapper"] = "refuses every operation itself"


def kind_of(row: Row) -> Any:
    """Returns the class of a row."""
    module, _, name = row.kind.partition(":")
    return getattr(importlib.import_module(module), name)


def _filled(seed: str, inner: Inner) -> torch.Tensor:
    """Returns an inner tensor of bytes that only the seed decides; floating-point ones have NaNs too."""
    dtype, shape, _ = inner
    generator = torch.Generator().manual_seed(zlib.crc32(seed.encode()))
    count = torch.Size(shape).numel() * dtype.itemsize
    content = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)
    return content.view(dtype).reshape(shape)


def make(name: str, seed: int = 0, part: int = 0, parts: int = 1, device: str = "cpu") -> Any:
    """Returns the tensor of a row, or one of the parts that its rows are cut into."""
    row = MATRIX[name]
    inner = {}
    for each, spec in row.inner.items():
        tensor = _filled(f"{name} {each} {seed}", spec)
        dim = spec[2]
        cut = tensor if dim is None else tensor.chunk(parts, dim)[part].clone()
        inner[each] = cut.to(device)
    rows = ROWS // parts
    with torch.device(device):
        attributes = row.attributes(rows)
    size = torch.Size((rows, COLUMNS))
    made = kind_of(row).__tensor_unflatten__(inner, attributes, size, (COLUMNS, 1))
    for each, tensor in inner.items():  # One class of torchao forgets a scale.
        setattr(made, each, tensor)
    return made


def unlike(a: Any, b: Any) -> str:
    """Returns in what a tensor that has come back is another than it was; "" where it is the same."""
    if type(a) is not type(b):
        return f"a {type(a).__name__}, not a {type(b).__name__}"
    if isinstance(a, DTensor):
        placed = (a.shape, a.placements) == (b.shape, b.placements)
        return unlike(a._local_tensor, b._local_tensor) if placed else "placed otherwise"
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{a.dtype} {list(a.shape)}, not {b.dtype} {list(b.shape)}"
    if not hasattr(type(a), "__tensor_flatten__"):
        pair = [each.detach().reshape(-1).view(torch.uint8) for each in (a, b)]
        return "" if torch.equal(*pair) else "other content"
    (names, attributes), (others, wanted) = a.__tensor_flatten__(), b.__tensor_flatten__()
    if names != others:
        return f"made of {names}, not {others}"
    if type(attributes) is not type(wanted) or repr(attributes) != repr(wanted):
        return f"attributes {attributes}, not {wanted}"
    for name in names:
        if said := unlike(getattr(a, name), getattr(b, name)):
            return f"{name}: {said}"
    return ""


def classes_in(*packages: str) -> set[str]:
    """Returns the subclasses of torch.Tensor at the top of a package's modules, as "module:name".

    They are read from the sources: some modules cannot be imported without a GPU.
    """
    bases: dict[str, list[str]] = {}
    for package in packages:
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.origin is not None
        root = Path(spec.origin).parent
        for file in root.rglob("*.py"):
            text = file.read_text(errors="replace")
            parts = (package, *file.relative_to(root).with_suffix("").parts)
            module = ".".join(parts).removesuffix(".__init__")
            for found in re.finditer(r"^class (\w+)\(([^)]*)\)", text, re.MULTILINE):
                names = [base.strip().split(".")[-1] for base in found[2].split(",")]
                bases[f"{module}:{found[1]}"] = names
    tensors, names = set(), {"Tensor", "Parameter"}
    while new := {kind for kind, of in bases.items() if kind not in tensors and names & {*of}}:
        tensors |= new
        names |= {kind.partition(":")[2] for kind in new}
    return tensors
