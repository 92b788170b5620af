"""How what is inside a tensor that is made of others follows the shards of a DTensor around it.

Decided on each rank alone, by shapes and, for classes whose shapes do not tell, by the table below. An inner
tensor that does not follow counts as a replica: if ranks hold different values of it, they are kept by
rank, and only the same layout loads them.
"""

from __future__ import annotations

import copy
import dataclasses
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
    if local == whole:
        return attributes
    if isinstance(attributes, dict):
        return {key: of_whole(value, local, whole) for key, value in attributes.items()}
    if isinstance(attributes, (list, tuple)):
        if type(attributes) in (list, tuple, torch.Size) and tuple(attributes) == local:
            return type(attributes)(whole)
        items = [of_whole(value, local, whole) for value in attributes]
        if all(new is old for new, old in zip(items, attributes, strict=True)):
            return attributes
        return type(attributes)(items) if type(attributes) in (list, tuple) else attributes
    if dataclasses.is_dataclass(attributes) and not isinstance(attributes, type):
        made = copy.copy(attributes)
        for field in dataclasses.fields(made):
            value = getattr(made, field.name)
            new = of_whole(value, local, whole)
            if new is not value:
                object.__setattr__(made, field.name, new)
        return made
    return attributes
