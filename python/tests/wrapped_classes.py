"""Tensors that are made of others, of every class that torch and torchao have: the rows of the matrix.

A row says what the inner tensors of a class are for `ROWS` x `COLUMNS` elements, and along which dimension
each is cut when the rows of the tensor are: None for one that is the same on all ranks. The tensors are made
by the class's own `__tensor_unflatten__`, so that what only a GPU quantizes is here too.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

ROWS, COLUMNS = 64, 128

#: Of an inner tensor: dtype, shape, and the dimension that is cut with the rows.
Inner = tuple[torch.dtype, tuple[int, ...], "int | None"]

F32, F8, BF16 = torch.float32, torch.float8_e4m3fn, torch.bfloat16
I8, U8, I32, I64 = torch.int8, torch.uint8, torch.int32, torch.int64
E8 = getattr(
    torch, "float8_e8m0fnu", U8
)  # Older torches lack it; torchao 0.18 runs on none of them.


class Row(NamedTuple):
    """A row of the matrix.

    Attributes:
        kind: The class, as "module:name".
        inner: Its inner tensors.
        attributes: Returns the attributes for `__tensor_unflatten__`, given a number of rows.
        elsewhere: The outcome of loading its shards in another world: "exact", or an error that only the same
            layout loads. "layout": the attributes describe a shard. "packed": each shard has its own inner
            tensor, which format="dcp" cannot hold.
    """

    kind: str
    inner: dict[str, Inner]
    attributes: Callable[[int], Any] = lambda rows: {}
    elsewhere: str = "exact"


def _size(rows: int) -> torch.Size:
    return torch.Size((rows, COLUMNS))


def _named(kind: str, value: str | None = None, **fields: Any) -> Any:
    """Returns a member of an enum, or an object of another class, by "module:name"."""
    module, _, name = kind.partition(":")
    found = getattr(importlib.import_module(module), name)
    return getattr(found, value) if value is not None else found(**fields)


_PREFERENCE = "torchao.quantization.quantize_.common.kernel_preference:KernelPreference"


def _float8(rows: int, block: list[int]) -> dict[str, Any]:
    return {
        "block_size": block,
        "mm_config": _named("torchao.float8.inference:Float8MMConfig", use_fast_accum=True),
        "act_quant_kwargs": _named(
            "torchao.quantization.quantize_.workflows.float8.float8_tensor:QuantizeTensorToFloat8Kwargs"
        ),
        "kernel_preference": _named(_PREFERENCE, "AUTO"),
        "dtype": BF16,
    }


def _int8(rows: int, block: list[int]) -> dict[str, Any]:
    return {"block_size": block, "dtype": BF16, "act_quant_kwargs": None, "reduce_range": False}


def _intx(rows: int) -> dict[str, Any]:
    return {
        "target_dtype": torch.int4,
        "block_size": [1, 32],
        "dtype": BF16,
        "activation_quantization": None,
    }


def _mx(element: str) -> Callable[[int], dict[str, Any]]:
    return lambda rows: {
        "elem_dtype": getattr(torch, element),
        "block_size": 32,
        "orig_dtype": BF16,
        "kernel_preference": _named(_PREFERENCE, "EMULATED"),
        "act_quant_kwargs": None,
        "is_swizzled_scales": False,
    }


def _nvfp4(swizzled: bool) -> Callable[[int], dict[str, Any]]:
    return lambda rows: {
        "block_size": 16,
        "orig_dtype": BF16,
        "is_swizzled_scales": swizzled,
        "use_triton_kernel": False,
        "act_quant_kwargs": None,
    }


def _training(rows: int) -> dict[str, Any]:
    module = "torchao.float8.float8_training_tensor"
    return {
        "_orig_dtype": BF16,
        "_linear_mm_config": _named(f"{module}:LinearMMConfig"),
        "_gemm_input_role": _named(f"{module}:GemmInputRole", "WEIGHT"),
        "_axiswise_dim": None,
    }


def _dynamic(rows: int) -> dict[str, Any]:
    config = _named("torchao.float8.float8_training_tensor:LinearMMConfig")
    return {"mm_config": config, "dtype": F8}


def _nf4(rows: int) -> dict[str, Any]:
    meta = _named(
        f"{_NF4}:SubclassTensorArgs",
        original_shape=_size(rows),
        original_strides=(COLUMNS, 1),
        storage_offset=0,
        dtype=BF16,
        device=torch.get_default_device(),
        requires_grad=False,
    )
    blocks = ROWS * COLUMNS // 64  # Its slices keep the number.
    return {"block_size": 64, "n_blocks": blocks, "scaler_block_size": 16, "tensor_meta": meta}


def _shaped(*block: int, **more: Any) -> Callable[[int], dict[str, Any]]:
    return lambda rows: {"block_size": [*block], "shape": _size(rows), **more}


_QUANTIZE = "torchao.quantization.quantize_.workflows"
_NF4 = f"{_QUANTIZE}.nf4.nf4_tensor"
_PROTOTYPE = "torchao.prototype.quantization"
_MOE = "torchao.prototype.moe_training"
_TRAINED = "torchao.prototype.quantized_training"
_OPTIM = "torchao.optim"
_CONFIG = f"{_TRAINED}.int8_mixed_precision:Int8MixedPrecisionTrainingConfig"

_CODES: dict[str, Inner] = {"qdata": (I8, (ROWS, COLUMNS), 0)}
_PACKED: dict[str, Inner] = {"qdata": (U8, (ROWS, COLUMNS // 2), 0)}
_GROUPS: Inner = (BF16, (COLUMNS // 32, ROWS), 1)
_ONE: Inner = (F32, (), None)
_FULL: Inner = (BF16, (ROWS, COLUMNS), 0)
_INT4 = {"qdata": (I8, (ROWS, COLUMNS // 2), 0), "scale": _GROUPS, "zero_point": _GROUPS}

MATRIX: dict[str, Row] = {
    "TwoTensor": Row(
        "torch.testing._internal.two_tensor:TwoTensor",
        {"a": _FULL, "b": _FULL},
        lambda rows: None,
    ),
    "ComplexTensor": Row(
        "torch._subclasses.complex_tensor._core:ComplexTensor",
        {"_re": (F32, (ROWS, COLUMNS), 0), "_im": (F32, (ROWS, COLUMNS), 0)},
    ),
    "SparseSemiStructured": Row(
        "torch.sparse.semi_structured:SparseSemiStructuredTensorCUTLASS",
        {
            "packed": (BF16, (ROWS, COLUMNS // 2), 0),
            "meta": (torch.int16, (ROWS, COLUMNS // 16), 0),
        },
        lambda rows: (_size(rows), False, 0, False),
        "packed",
    ),
    "SparseSemiStructured of cuSPARSELt": Row(
        "torch.sparse.semi_structured:SparseSemiStructuredTensorCUSPARSELT",
        {"packed": (BF16, (ROWS * COLUMNS * 9 // 16,), 0)},
        lambda rows: (_size(rows), False, 0, False),
        "packed",
    ),
    "Float8 by row": Row(
        f"{_QUANTIZE}.float8.float8_tensor:Float8Tensor",
        {"qdata": (F8, (ROWS, COLUMNS), 0), "scale": (F32, (ROWS, 1), 0)},
        lambda rows: _float8(rows, [1, COLUMNS]),
    ),
    "Float8 by tensor": Row(
        f"{_QUANTIZE}.float8.float8_tensor:Float8Tensor",
        {"qdata": (F8, (ROWS, COLUMNS), 0), "scale": (F32, (1, 1), None)},
        lambda rows: _float8(rows, [rows, COLUMNS]),
    ),
    "Float8 by block": Row(
        f"{_QUANTIZE}.float8.float8_tensor:Float8Tensor",
        {"qdata": (F8, (ROWS, COLUMNS), 0), "scale": (F32, (ROWS // 16, 2), 0)},
        lambda rows: _float8(rows, [16, 64]),
    ),
    "static Float8": Row(
        f"{_PROTOTYPE}.float8_static_quant.prototype_float8_tensor:PrototypeFloat8Tensor",
        {
            "qdata": (F8, (ROWS, COLUMNS), 0),
            "scale": (F32, (ROWS, 1), 0),
            "act_quant_scale": (F32, (1, 1), None),
        },
        lambda rows: {**_float8(rows, [1, COLUMNS]), "output_act_quant_kwargs": None},
    ),
    "Float8Sparse2x4 1d": Row(
        f"{_QUANTIZE}.float8.float8_sparse_2x4_1d_data_1d_metadata_tensor:"
        "Float8Sparse2x4_1DData1DMetadataTensor",
        {
            "qdata_and_metadata": (U8, (ROWS * COLUMNS * 5 // 8,), 0),
            "scale": (F32, (ROWS, 1), 0),
        },
        lambda rows: {
            "block_size": [1, COLUMNS],
            "original_shape": (rows, COLUMNS),
            "act_quant_kwargs": None,
            "dtype": BF16,
            "alg_id": 0,
        },
        "packed",
    ),
    "Float8Sparse2x4 2d": Row(
        f"{_QUANTIZE}.float8.float8_sparse_2x4_2d_data_2d_metadata_tensor:"
        "Float8Sparse2x4_2DData2DMetadataTensor",
        {
            "qdata": (F8, (ROWS, COLUMNS // 2), 0),
            "sparse_metadata": (U8, (ROWS, COLUMNS // 8), 0),
            "scale": (F32, (ROWS, 1), 0),
        },
        lambda rows: {"block_size": [1, COLUMNS], "act_quant_kwargs": None, "dtype": BF16},
        "packed",
    ),
    "Float8Opaque": Row(
        "torchao.prototype.float8_opaque_tensor.float8_opaque_tensor:Float8OpaqueTensor",
        {"qdata": (F8, (ROWS // 16, 2, COLUMNS // 2, 16), 0), "scale": (F32, (ROWS, 1), 0)},
        lambda rows: {"block_size": [1, COLUMNS], "act_quant_kwargs": None},
        "packed",
    ),
    "Int8 by row": Row(
        f"{_QUANTIZE}.int8.int8_tensor:Int8Tensor",
        {**_CODES, "scale": (F32, (ROWS, 1), 0), "zero_point": (I8, (ROWS, 1), 0)},
        lambda rows: _int8(rows, [1, COLUMNS]),
    ),
    "Int8 by group": Row(
        f"{_QUANTIZE}.int8.int8_tensor:Int8Tensor",
        {**_CODES, "scale": (F32, (ROWS, 4), 0), "act_pre_scale": (F32, (COLUMNS,), None)},
        lambda rows: _int8(rows, [1, 32]),
    ),
    "Int8 by tensor": Row(
        f"{_QUANTIZE}.int8.int8_tensor:Int8Tensor",
        {**_CODES, "scale": (F32, (1, 1), None), "act_quant_scale": (F32, (1, 1), None)},
        lambda rows: _int8(rows, [rows, COLUMNS]),
    ),
    "Int4": Row(
        f"{_QUANTIZE}.int4.int4_tensor:Int4Tensor", _INT4, _shaped(1, 32, activation_dtype=BF16)
    ),
    "Int4 scaled before": Row(
        f"{_QUANTIZE}.int4.int4_tensor:Int4Tensor",
        {**_INT4, "act_pre_scale": (BF16, (COLUMNS,), None)},
        _shaped(1, 32, activation_dtype=F8),
    ),
    "Int4PlainInt32": Row(
        f"{_QUANTIZE}.int4.int4_plain_int32_tensor:Int4PlainInt32Tensor",
        {
            "qdata": (I32, (ROWS, COLUMNS // 8), 0),
            "scale": _GROUPS,
            "zero_point": (I8, (COLUMNS // 32, ROWS), 1),
        },
        _shaped(1, 32),
    ),
    "Int4Preshuffled": Row(
        f"{_QUANTIZE}.int4.int4_preshuffled_tensor:Int4PreshuffledTensor",
        {
            "qdata": (I8, (ROWS, COLUMNS // 2), 0),
            "group_scale": (F8, (COLUMNS // 32, 8, ROWS), 2),
            "row_scale": (F32, (ROWS,), 0),
        },
        _shaped(1, 32),
    ),
    "Int4TilePackedTo4d": Row(
        f"{_QUANTIZE}.int4.int4_tile_packed_to_4d_tensor:Int4TilePackedTo4dTensor",
        {
            "qdata": (I32, (ROWS // 8, COLUMNS // 128, 32, 4), 0),
            "scale_and_zero": (BF16, (COLUMNS // 32, ROWS, 2), 1),
        },
        _shaped(1, 32),
    ),
    "Int4Opaque": Row(
        f"{_PROTOTYPE}.int4.int4_opaque_tensor:Int4OpaqueTensor",
        {**_PACKED, "scale_and_zero": (F32, (COLUMNS // 32, ROWS, 2), 1)},
        _shaped(1, 32, act_mapping_type=None),
        "packed",
    ),
    "Int8Lut": Row(
        f"{_PROTOTYPE}.int8_lut_tensor.int8_lut_tensor:Int8LutTensor",
        {"packed_weights": (U8, (1000 * ROWS,), 0)},
        _shaped(1, 32, bit_width=4, dtype=F32, packed_weights_has_bias=False),
        "packed",
    ),
    "IntxUnpackedToInt8": Row(
        f"{_QUANTIZE}.intx.intx_unpacked_to_int8_tensor:IntxUnpackedToInt8Tensor",
        {**_CODES, "scale": (BF16, (ROWS, 4), 0), "zero_point": (I8, (ROWS, 4), 0)},
        _intx,
    ),
    "IntxOpaque": Row(
        f"{_QUANTIZE}.intx.intx_opaque_tensor:IntxOpaqueTensor",
        {"packed_weights": (I8, (90 * ROWS,), 0)},
        _shaped(
            1,
            32,
            bit_width=4,
            dtype=F32,
            packed_weights_has_zeros=True,
            packed_weights_has_bias=False,
            intx_packing_format="opaque_torchao_auto",
        ),
        "packed",
    ),
    "UIntxBitPacked": Row(
        f"{_PROTOTYPE}.uintx.uintx_bit_packed_tensor:UIntxBitPackedTensor",
        {
            "qdata": (I32, (COLUMNS // 8, ROWS), 1),
            "scale": (torch.float16, (COLUMNS // 32, ROWS), 1),
            "zero_point": (torch.float16, (COLUMNS // 32, ROWS), 1),
        },
        lambda rows: {
            "gemlite_kwargs": {
                "in_features": COLUMNS,
                "out_features": rows,
                "packing_bitwidth": 32,
            },
            "bit_width": 4,
            "group_size": 32,
            "dtype": torch.float16,
        },
        "layout",
    ),
    "Uintx": Row(
        "torchao.prototype.dtypes.uintx.uintx_utils:UintxTensor",
        {"int2_shard": (U8, (ROWS, COLUMNS // 4), 0), "int1_shard": (U8, (ROWS, COLUMNS // 8), 0)},
        lambda rows: [_size(rows), 3, -1],
    ),
    "MX of 8 bits": Row(
        "torchao.prototype.mx_formats.mx_tensor:MXTensor",
        {"qdata": (F8, (ROWS, COLUMNS), 0), "scale": (E8, (ROWS, COLUMNS // 32), 0)},
        _mx("float8_e4m3fn"),
    ),
    "MX of 4 bits": Row(
        "torchao.prototype.mx_formats.mx_tensor:MXTensor",
        {**_PACKED, "scale": (E8, (ROWS, COLUMNS // 32), 0)},
        _mx("float4_e2m1fn_x2"),
    ),
    "NVFP4": Row(
        "torchao.prototype.mx_formats.nvfp4_tensor:NVFP4Tensor",
        {**_PACKED, "scale": (F8, (ROWS, COLUMNS // 16), 0), "per_tensor_scale": _ONE},
        _nvfp4(False),
    ),
    "NVFP4, swizzled": Row(
        "torchao.prototype.mx_formats.nvfp4_tensor:NVFP4Tensor",
        {**_PACKED, "scale": (F8, (ROWS // 2, COLUMNS // 4), None)},
        _nvfp4(True),
    ),
    "Float8Training": Row(
        "torchao.float8.float8_training_tensor:Float8TrainingTensor",
        {"_data": (F8, (ROWS, COLUMNS), 0), "_scale": _ONE},
        _training,
    ),
    "Float8 when multiplied": Row(
        "torchao.float8.fsdp_utils:WeightWithDynamicFloat8CastTensor", {"_tensor": _FULL}, _dynamic
    ),
    "Float8 when multiplied, scaled": Row(
        "torchao.float8.fsdp_utils:WeightWithDynamicFloat8CastTensor",
        {"_tensor": _FULL, "_precomputed_scale": _ONE},
        _dynamic,
    ),
    "Float8 for experts": Row(
        f"{_MOE}.tensor:Float8TrainingWeightWrapperTensor",
        {"_data": _FULL},
        lambda rows: {"config": _named(f"{_MOE}.config:Float8TrainingOpConfig")},
    ),
    "MXFP8 for experts": Row(
        f"{_MOE}.tensor:MXFP8TrainingWeightWrapperTensor",
        {"_data": _FULL},
        lambda rows: {"config": _named(f"{_MOE}.config:MXFP8TrainingOpConfig")},
    ),
    "Int8QuantizedTraining": Row(
        f"{_TRAINED}.int8:Int8QuantizedTrainingLinearWeight",
        {"int_data": (I8, (ROWS, COLUMNS), 0), "scale": (F32, (ROWS,), 0)},
        lambda rows: [],
    ),
    "Int8MixedPrecision": Row(
        f"{_TRAINED}.int8_mixed_precision:Int8MixedPrecisionTrainingLinearWeight",
        {"_data": _FULL},
        lambda rows: [_named(_CONFIG)],
    ),
    "BitNetTraining": Row(
        f"{_TRAINED}.bitnet:BitNetTrainingLinearWeight", {"_data": _FULL}, lambda rows: []
    ),
    "BitNetTraining, scaled": Row(
        f"{_TRAINED}.bitnet:BitNetTrainingLinearWeight",
        {"_data": _FULL, "_precomputed_scale": _ONE},
        lambda rows: [],
    ),
    "BitNetPacked": Row(
        f"{_TRAINED}.bitnet:BitNetPacked2bitLinearWeight",
        {"int_data": (I8, (ROWS, COLUMNS // 4), 0), "scale": _ONE},
        lambda rows: [],
    ),
    "NF4": Row(
        f"{_NF4}:NF4Tensor",
        {
            "quantized_data": (U8, (ROWS * COLUMNS // 2,), 0),
            "scaler_mean": _ONE,
            "quantization_factor": (BF16, (ROWS * COLUMNS // 1024,), 0),
            "quantized_scalers": (I8, (ROWS * COLUMNS // 64,), 0),
            "nf4": (BF16, (16,), None),
        },
        _nf4,
    ),
    "BlockSparse": Row(
        "torchao.sparsity.blocksparse:BlockSparseTensor",
        {
            "bsr_crow_indices": (I64, (ROWS // 16 + 1,), None),
            "bsr_col_indices": (I64, (32,), 0),
            "bsr_values": (BF16, (32, 16, 16), 0),
        },
        lambda rows: (_size(rows), False, 16),
        "packed",
    ),
    "Codebook": Row(
        f"{_PROTOTYPE}.codebook.codebook_quantized_tensor:CodebookQuantizedTensor",
        {
            "codes": (U8, (ROWS, COLUMNS), 0),
            "codebook": (F32, (256, 1, 1), None),
            "scales": (F32, (ROWS, 4, 1), 0),
        },
        lambda rows: [[1, 1], _size(rows), F32],
    ),
    "Codebook of CoreML": Row(
        f"{_PROTOTYPE}.codebook_coreml.codebook_quantized_tensor:CodebookQuantizedTensor",
        {"codes": (U8, (ROWS, COLUMNS), 0), "codebook": (F32, (4, 8, 16, 1), 0)},
        lambda rows: [torch.uint4, [16, 16], _size(rows), F32],
    ),
    "Codebook by group": Row(
        f"{_PROTOTYPE}.codebook_groupwise.codebook_quantized_tensor:CodebookQuantizedPackedTensor",
        {"packed_weight": (U8, (100 * ROWS,), 0)},
        lambda rows: {
            "bit_width": 4,
            "lut_block_size": [8, COLUMNS],
            "scale_block_size": [1, 32],
            "shape": _size(rows),
            "dtype": F32,
        },
        "packed",
    ),
    "GGUF": Row(
        f"{_PROTOTYPE}.gguf.gguf_quantized_tensor:GGUFQuantizedTensor",
        {
            "super_block_scale_scale": (F32, (ROWS,), 0),
            "super_block_min_scale": (F32, (ROWS,), 0),
            "quantized_block_scale": (F32, (ROWS, 8), 0),
            "quantized_block_min": (F32, (ROWS, 8), 0),
            "int_data": (U8, (ROWS, COLUMNS), 0),
        },
        lambda rows: (8, BF16, _size(rows)),
    ),
    "GPTQObserver": Row(
        "torchao.prototype.gptq.observer:GPTQObserverTensor",
        {
            "hp_data": _FULL,
            "total_batches": (I64, (1,), None),
            "hessian": (F32, (COLUMNS, COLUMNS), None),
        },
    ),
    "ActivationLogging": Row(
        "torchao.prototype.quant_logger.quant_logger:ActivationLoggingTensor",
        {"original_weight_tensor": _FULL},
        lambda rows: {"fqn": "layers.0.weight"},
    ),
    "OptimState8bit": Row(
        f"{_OPTIM}.subclass_8bit:OptimState8bit",
        {
            "codes": (U8, (ROWS, COLUMNS), 0),
            "scale": (F32, (ROWS * COLUMNS // 256,), 0),
            "qmap": (F32, (256,), None),
        },
        lambda rows: [True, BF16],
    ),
    "OptimState4bit": Row(
        f"{_OPTIM}.subclass_4bit:OptimState4bit",
        {
            "codes": (U8, (ROWS * COLUMNS // 2,), 0),
            "scale": (F32, (ROWS * COLUMNS // 128,), 0),
            "qmap": (F32, (16,), None),
        },
        lambda rows: [True, _size(rows), BF16],
    ),
    "OptimStateFp8": Row(
        f"{_OPTIM}.subclass_fp8:OptimStateFp8",
        {"codes": (F8, (ROWS, COLUMNS), 0), "scale": (F32, (ROWS * COLUMNS // 256,), 0)},
        lambda rows: [BF16],
    ),
}
