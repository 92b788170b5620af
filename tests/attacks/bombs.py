"""Pickles that would run code, archives that grow, and what is nested deeper than a stack."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

from attack import CORRUPT, DATA, INVALID, READ, UNSUPPORTED, attack, file
from formats import (
    EMPTY_DICT,
    NONE,
    VALUE,
    Dcp,
    archive,
    call,
    dct,
    floats,
    glob,
    hf_folder,
    key,
    legacy,
    lst,
    native,
    num,
    pickled,
    safetensors,
    stored,
    text,
    touch,
    tup,
    zipped,
)

# ---- pickles that would run code ----


@attack(CORRUPT, "os.system")
def dcp_index_is_a_call(folder: Path, canary: Path) -> Path:
    """torch.distributed.checkpoint.load unpickles .metadata without restriction: runs a command."""
    return Dcp().write(folder, touch(canary))


@attack(CORRUPT, '"w" is neither')
def dcp_index_holds_a_call(folder: Path, canary: Path) -> Path:
    """The same, deep in an index that is otherwise in order."""
    dcp = Dcp()
    dcp.state[1] = touch(canary)
    return dcp.write(folder)


@attack(CORRUPT, '"builtins.eval"')
def dcp_index_takes_its_callee_from_the_stack(folder: Path, canary: Path) -> Path:
    """STACK_GLOBAL hides the name from a scan for GLOBAL opcodes."""
    callee = text("builtins") + text("eval") + b"\x93"
    return Dcp().write(folder, call(callee, text(f"open({str(canary)!r}, 'w')")))


@attack(CORRUPT, "os.system")
def dcp_index_of_a_rank_is_a_call(folder: Path, canary: Path) -> Path:
    """As the first, in the index of a rank that saved without collectives."""
    return Dcp().write(folder, touch(canary), name="__0.metadata")


@attack(UNSUPPORTED, "os.system", reads=READ)
def dcp_value_is_a_call(folder: Path, canary: Path) -> Path:
    """torch unpickles plain values without restriction while it loads."""
    return Dcp().value("step", archive(touch(canary))).write(folder)


@attack(UNSUPPORTED, "os.system", reads=READ)
def torch_file_is_a_call(folder: Path, canary: Path) -> Path:
    """torch.load(weights_only=False) runs a command."""
    return file(folder, "state.pt", archive(touch(canary)))


@attack(UNSUPPORTED, "os.system", reads=READ)
def legacy_torch_file_is_a_call(folder: Path, canary: Path) -> Path:
    """The same, before zip."""
    return file(folder, "state.pt", legacy(dct(text("a"), touch(canary))))


@attack(UNSUPPORTED, "os.system", reads=READ)
def torch_file_calls_by_inst(folder: Path, canary: Path) -> Path:
    """INST of protocol 0 imports and calls in one opcode."""
    root = b"(" + text(f"touch '{canary}'") + b"ios\nsystem\n"
    return file(folder, "state.pt", archive(dct(text("a"), root)))


@attack(UNSUPPORTED, "os.system", reads=READ)
def torch_file_calls_by_obj(folder: Path, canary: Path) -> Path:
    """OBJ takes the callee from the stack."""
    root = b"(" + glob("os", "system") + text(f"touch '{canary}'") + b"o"
    return file(folder, "state.pt", archive(dct(text("a"), root)))


@attack(UNSUPPORTED, "extension registry")
def torch_file_calls_by_the_extension_registry(folder: Path, canary: Path) -> Path:
    """EXT1 names a callee by a number that only the attacked process can resolve."""
    return file(folder, "state.pt", archive(b"\x82\x01" + tup(text(str(canary))) + b"R"))


@attack(UNSUPPORTED, "TorchScript")
def torch_file_is_a_program(folder: Path, canary: Path) -> Path:
    """torch.load hands an archive with code/ to the TorchScript interpreter."""
    code = {"code/__torch__.py": b"import os", "constants.pkl": pickled(b")")}
    return file(folder, "state.pt", archive(floats(4), bytes(16), **code))


# ---- zip bombs ----


@attack(UNSUPPORTED, "compressed")
def torch_file_is_deflated(folder: Path, canary: Path) -> Path:
    """64 KiB that become 64 MiB, and could become more."""
    return file(
        folder,
        "state.pt",
        zipped({"archive/data.pkl": b"(" * (64 << 20)}, zipfile.ZIP_DEFLATED),
    )


@attack(CORRUPT, "overlaps record")
def torch_file_has_records_that_overlap(folder: Path, canary: Path) -> Path:
    """Many records share one body: what is unpacked is many times the file."""
    whole = bytearray(archive(dct(text("a"), floats(4)), bytes(16), **{"data/1": bytes(16)}))
    first = whole.rindex(b"archive/data/0") - 4
    second = whole.rindex(b"archive/data/1") - 4
    whole[second : second + 4] = whole[first : first + 4]  # Where the local header begins.
    return file(folder, "state.pt", bytes(whole))


@attack(CORRUPT, "does not end where the end records begin")
def torch_file_claims_four_billion_records(folder: Path, canary: Path) -> Path:
    """A reader that reserves memory for the records asks for terabytes."""
    end = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, 2**32, 2**32, 2**38, 0)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, 4, 1)
    old = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 65535, 65535, 2**32 - 1, 2**32 - 1, 0)
    return file(folder, "state.pt", b"PK\3\4" + end + locator + old)


def zstd_bomb(blocks: int) -> bytes:
    """A zstd frame of blocks of 128 KiB, each a repeated byte: four bytes."""
    block = (131072 << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    last = (131072 << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"\0"
    return b"\x28\xb5\x2f\xfd\x00\x38" + block * (blocks - 1) + last


@attack(CORRUPT, "zstd stream holds more", reads=DATA)
def dcp_tensor_is_a_zstd_bomb(folder: Path, canary: Path) -> Path:
    """256 KiB that become 8 GiB."""
    dcp = Dcp()
    more = {"transform_descriptors": lst(text("stream.zstd/1"))}
    dcp.files["bomb"] = zstd_bomb(1 << 16)
    dcp.storage[1] = stored("bomb", 0, len(dcp.files["bomb"]), **more)
    return dcp.write(folder)


@attack(INVALID, "use one another so often")
def torch_file_doubles_its_lists(folder: Path, canary: Path) -> Path:
    """Fifty lists, each holding the one before twice: 2^50 elements when they are copied."""
    nested = lst(num(1)) + b"q\0"
    for i in range(1, 51):
        nested = b"](" + nested + b"h" + bytes([i - 1]) + b"eq" + bytes([i])
    return file(folder, "state.pt", archive(dct(text("a"), nested)))


@attack(INVALID, "repeats its storage of 4 bytes")
def torch_file_has_a_tensor_of_stride_0(folder: Path, canary: Path) -> Path:
    """Four bytes in the file, an exbibyte in memory."""
    root = dct(text("a"), floats(1, (1 << 58,), stride=(0,)))
    return file(folder, "state.pt", archive(root, bytes(4)))


# ---- nesting ----


@attack(INVALID, "MARK")
def pickle_of_a_hundred_thousand_marks(folder: Path, canary: Path) -> Path:
    """A reader that recurses overflows its stack."""
    return Dcp().write(folder, b"(" * 100_000 + b"t" * 100_000)


@attack(CORRUPT, "not the index")
def pickle_of_a_million_tuples(folder: Path, canary: Path) -> Path:
    """TUPLE1 nests without a MARK; the stack overflows when the tree is walked or freed."""
    return Dcp().write(folder, NONE + b"\x85" * 1_000_000)


@attack(UNSUPPORTED, "more than 200 levels of nesting", reads=READ)
def torch_file_value_nests_deep(folder: Path, canary: Path) -> Path:
    """As above, as a value."""
    return file(folder, "state.pt", archive(dct(text("a"), NONE + b"\x85" * 100_000)))


@attack(INVALID, "nests deeper than 200 levels")
def torch_file_dicts_nest_deep(folder: Path, canary: Path) -> Path:
    """Each dict holds the next: names of two thousand parts."""
    nested = EMPTY_DICT
    for _ in range(2000):
        nested = b"}" + text("a") + nested + b"s"
    return file(folder, "state.pt", archive(nested))


@attack(INVALID, "deeper than 200 levels")
def dcp_path_of_names_is_deep(folder: Path, canary: Path) -> Path:
    """planner_data that builds 201 containers into each other."""
    dcp = Dcp()
    parts = ["a"] * 201
    fqn = ".".join(parts)
    dcp.state += [text(fqn), VALUE]
    dcp.storage += [key(fqn), stored("__0_0.distcp", 0, 1)]
    dcp.planner = dct(text(fqn), tup(*map(text, parts)))
    return dcp.write(folder)


@attack(CORRUPT, "too deep")
def safetensors_header_nests_deep(folder: Path, canary: Path) -> Path:
    """JSON of a hundred thousand lists."""
    return file(
        folder, "a.safetensors", safetensors(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    )


@attack(CORRUPT, "too deep")
def hf_index_nests_deep(folder: Path, canary: Path) -> Path:
    """The same."""
    return hf_folder(folder, b'{"weight_map":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


@attack(CORRUPT, "varve.json")
def native_record_nests_deep(folder: Path, canary: Path) -> Path:
    """The same, in 60 KB."""
    path = native(folder)
    (path / "varve.json").write_bytes(b"[" * 30_000 + b"]" * 30_000)
    return path
