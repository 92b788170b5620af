"""How what is inside a tensor that is made of others follows the shards of a DTensor around it.

Decided on each rank alone, by shapes and, for classes whose shapes do not tell, by the table below. An inner
tensor that does not follow counts as a replica: if ranks hold different values of it, they are kept by
rank, and only the same layout loads them.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch

#: Of inner tensors of classes where shapes alone do not tell. A digit for each dimension is the dimension of
#: the tensor that it follows, "-" is one that follows none; there may be several, of which the one with the right
#: number of dimensions counts. "flat" has a number for each block of the elements in row-major order. What
#: fits none of these is the same on all ranks, or packed in a way that only the class knows ("whole").
_RULES: dict[str, dict[str, str]] = {
    "torch.sparse.semi_structured:SparseSemiStructuredTensorCUTLASS": {"*": "whole"},
    "torch.sparse.semi_structured:SparseSemiStructuredTensorCUSPARSELT": {"*": "whole"},
    "torchao.optim.subclass_8bit:OptimState8bit": {"scale": "flat", "qmap": "whole"},
    "torchao.optim.subclass_4bit:OptimState4bit": {
        "codes": "flat",
        "scale": "flat",
        "qmap": "whole",
    },
    "torchao.optim.subclass_fp8:OptimStateFp8": {"scale": "flat"},
    "torchao.prototype.float8_opaque_tensor:Float8OpaqueTensor": {"qdata": "whole"},
    "torchao.prototype.gptq.observer:GPTQObserverTensor": {
        "total_batches": "0",
        "hessian": "0--",
    },
    "torchao.prototype.quantization.codebook.codebook_quantized_tensor:CodebookQuantizedTensor": {
        "codebook": "whole"
    },
    "torchao.prototype.quantization.codebook_groupwise.codebook_quantized_tensor:"
    "CodebookQuantizedPackedTensor": {"*": "whole"},
    "torchao.prototype.quantization.int4:Int4OpaqueTensor": {"*": "whole"},
    "torchao.prototype.quantization.int8_lut_tensor.int8_lut_tensor:Int8LutTensor": {"*": "whole"},
    "torchao.prototype.quantization.uintx.uintx_bit_packed_tensor:UIntxBitPackedTensor": {
        "*": "10"
    },
    "torchao.quantization:Int4PlainInt32Tensor": {
        "scale": "10 021",
        "zero_point": "10 021",
        "act_pre_scale": "1",
    },
    "torchao.quantization:Int4PreshuffledTensor": {
        "group_scale": "10 1-0",
        "group_zero": "10",
        "row_scale": "0",
    },
    "torchao.quantization:Int4Tensor": {
        "scale": "10 021",
        "zero_point": "10 021",
        "act_pre_scale": "1",
    },
    "torchao.quantization:Int4TilePackedTo4dTensor": {
        "qdata": "01--",
        "scale_and_zero": "10-",
        "act_pre_scale": "1",
    },
    "torchao.quantization:Int8Tensor": {"act_pre_scale": "1"},
    "torchao.quantization:IntxOpaqueTensor": {"*": "whole"},
    "torchao.quantization.quantize_.workflows.float8.float8_sparse_2x4_1d_data_1d_metadata_tensor:"
    "Float8Sparse2x4_1DData1DMetadataTensor": {"qdata_and_metadata": "whole"},
    "torchao.quantization.quantize_.workflows.float8.float8_sparse_2x4_2d_data_2d_metadata_tensor:"
    "Float8Sparse2x4_2DData2DMetadataTensor": {"sparse_metadata": "whole"},
    "torchao.quantization.quantize_.workflows.nf4.nf4_tensor:NF4Tensor": {
        "quantized_data": "flat",
        "quantization_factor": "flat",
        "quantized_scalers": "flat",
        "nf4": "whole",
    },
    "torchao.sparsity.blocksparse:BlockSparseTensor": {"*": "whole"},
}


def rule(kind: str, name: str, attributes: Any) -> str | None:
    """Returns how an inner tensor of a class follows; None where its shape tells."""
    if name == "scale" and isinstance(attributes, dict) and attributes.get("is_swizzled_scales"):
        return "whole"  # Of blocks of 128 rows, which a shard need not have.
    rules = _RULES.get(kind, {})
    return rules.get(name, rules.get("*"))


def of_whole(attributes: Any, local: tuple[int, ...], whole: tuple[int, ...]) -> Any:
    """Returns the attributes of a tensor's shard as they are of the whole: what is the shard's shape is the whole's.

    Sizes of blocks are such a shape where one block is the whole tensor.
    """
    kinds = (list, tuple, torch.Size)

    def replace(value: Any) -> Any:
        is_shape = type(value) in kinds and tuple(value) == local
        return type(value)(whole) if is_shape else value

    return attributes if local == whole else _mapped(attributes, replace)


def on_device(attributes: Any, device: torch.device) -> Any:
    """Returns attributes in which all devices are this one."""
    return _mapped(attributes, lambda value: device if isinstance(value, torch.device) else value)


def _mapped(value: Any, replace: Callable[[Any], Any]) -> Any:
    """Returns a value, or what is to replace it or a part of it; the value itself where nothing is."""
    new = replace(value)
    if new is not value:
        return new
    if isinstance(value, dict):
        return {key: _mapped(item, replace) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_mapped(item, replace) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        changed = {name: _mapped(item, replace) for name, item in fields.items()}
        if all(changed[name] is item for name, item in fields.items()):
            return value
        made = copy.copy(value)
        for name, item in changed.items():
            object.__setattr__(made, name, item)
        return made
    return value
