"""Names, places and sizes that are not what a reader takes them for."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

from attack import CORRUPT, INVALID, MAX, attack, file
from formats import (
    ITEM,
    NONE,
    Dcp,
    archive,
    chunk,
    dct,
    f32,
    floats,
    hf_folder,
    key,
    legacy,
    native,
    num,
    pickled,
    safetensors,
    stored,
    tensor,
    text,
)

# ---- paths that lead out ----


def _with_path(folder: Path, path: str) -> Path:
    dcp = Dcp()
    dcp.storage[1] = stored(path, 0, len(ITEM))
    (folder / "outside").write_bytes(ITEM)
    return dcp.write(folder)


@attack(INVALID, "does not lie in the checkpoint")
def dcp_path_climbs_out(folder: Path, canary: Path) -> Path:
    """torch joins relative_path to the directory: another file's bytes become a tensor."""
    return _with_path(folder, "../outside")


@attack(INVALID, "does not lie in the checkpoint")
def dcp_path_is_absolute(folder: Path, canary: Path) -> Path:
    """Joined to a directory, an absolute path replaces it."""
    return _with_path(folder, str(folder / "outside"))


@attack(INVALID, "does not lie in the checkpoint")
def dcp_path_has_a_zero_byte(folder: Path, canary: Path) -> Path:
    """What is checked goes to the end, what is opened to the zero."""
    return _with_path(folder, "__0_0.distcp\0/../..")


@attack(INVALID, "no plain path inside the folder")
def hf_path_climbs_out(folder: Path, canary: Path) -> Path:
    """As for DCP, by the index of a Hugging Face folder."""
    (folder / "outside").write_bytes(safetensors({"w": f32(0, 32, [8])}))
    return hf_folder(folder, json.dumps({"weight_map": {"w": "../outside"}}).encode())


@attack(INVALID, "no plain path inside the folder")
def hf_path_is_absolute(folder: Path, canary: Path) -> Path:
    """The same."""
    return hf_folder(folder, json.dumps({"weight_map": {"w": "/etc/passwd"}}).encode())


@attack(CORRUPT, "which is not there")
def torch_file_names_a_storage_outside(folder: Path, canary: Path) -> Path:
    """A program that unpacks the archive into a directory writes elsewhere."""
    root = dct(text("a"), floats(4).replace(text("0"), text("../../../outside")))
    return file(folder, "state.pt", archive(root, **{"../../../outside": bytes(16)}))


# ---- places that overlap ----


@attack(CORRUPT, "overlap")
def dcp_chunks_overlap(folder: Path, canary: Path) -> Path:
    """Which bytes are loaded depends on the order of reading."""
    dcp = Dcp()
    dcp.state[1] = tensor((6,), chunk((0,), (4,)), chunk((2,), (4,)))
    dcp.storage[2] = key("w", 2)
    return dcp.write(folder)


@attack(CORRUPT, '"a" and "b" overlap')
def safetensors_entries_overlap(folder: Path, canary: Path) -> Path:
    """Two tensors share bytes: one file, two meanings."""
    header = {"a": f32(0, 20, [5]), "b": f32(16, 32, [4])}
    return file(folder, "a.safetensors", safetensors(header))


@attack(CORRUPT, 'hole or overlap before tensor "b"')
def native_entries_overlap(folder: Path, canary: Path) -> Path:
    """The same, with right checksums."""
    header = {"a": f32(0, 20, [5]), "b": f32(16, 32, [4])}
    return native(folder, header, xxh3="0" * 64)


# ---- sizes ----


@attack(CORRUPT, "malformed size")
def dcp_size_is_two_to_the_63(folder: Path, canary: Path) -> Path:
    """Multiplied in 64 bits, the size is negative or small."""
    dcp = Dcp()
    dcp.state[1] = tensor((2**63,), chunk((0,), (4,)))
    return dcp.write(folder)


@attack(CORRUPT, "larger than 2^62 bytes")
def dcp_sizes_multiply_to_zero(folder: Path, canary: Path) -> Path:
    """2^32 times 2^32 is 0 in 64 bits: a buffer of nothing, filled with everything."""
    dcp = Dcp()
    dcp.state[1] = tensor((2**32, 2**32), chunk((0, 0), (2**32, 2**32)))
    dcp.storage = [key("w", 0, 0), stored("__0_0.distcp", 0, len(ITEM))]
    return dcp.write(folder)


@attack(CORRUPT, "_StorageInfo")
def dcp_extent_ends_beyond_64_bits(folder: Path, canary: Path) -> Path:
    """Offset plus length wraps around to a place inside the file."""
    dcp = Dcp()
    dcp.storage[1] = stored("__0_0.distcp", MAX, len(ITEM))
    return dcp.write(folder)


@attack(CORRUPT, "no chunk holds [0:16777216]", reads=("verify", "convert", "read"))
def dcp_tensor_is_all_hole(folder: Path, canary: Path) -> Path:
    """Torch reports success and leaves what was in memory before."""
    dcp = Dcp()
    dcp.state[1], dcp.storage = tensor((1 << 24,)), []
    return dcp.write(folder)


@attack(CORRUPT, "no chunk holds", reads=("verify", "convert"))
def dcp_tensor_is_an_endless_hole(folder: Path, canary: Path) -> Path:
    """The same, of an exbibyte: a reader that allocates it first needs all memory or all disk."""
    dcp = Dcp()
    dcp.state[1], dcp.storage = tensor((1 << 58,)), []
    return dcp.write(folder)


@attack(CORRUPT, "cannot come from the")
def dcp_tensor_repeats_its_bytes(folder: Path, canary: Path) -> Path:
    """An item of stride 0: some hundred bytes in the file, an exbibyte in memory."""
    dcp = Dcp()
    item = archive(floats(1, (1 << 58,), stride=(0,)), bytes(4))
    dcp.state[1] = tensor((1 << 58,), chunk((0,), (1 << 58,)))
    dcp.storage = [key("w", 0), stored("__0_0.distcp", 0, len(item))]
    dcp.files["__0_0.distcp"] = item
    return dcp.write(folder)


@attack(CORRUPT, "reaches beyond the file")
def safetensors_header_is_endless(folder: Path, canary: Path) -> Path:
    """A reader that believes the length asks for 2^63 bytes."""
    return file(folder, "a.safetensors", struct.pack("<Q", 2**63) + b"{}" + bytes(64))


@attack(CORRUPT, "do not fit float32")
def safetensors_shape_multiplies_to_its_bytes(folder: Path, canary: Path) -> Path:
    """2^62 times 4 times 2 is 2^65: 32 bytes to who counts in 64 bits is nothing."""
    header = {"a": f32(0, 32, [2**62, 2**62, 8])}
    return file(folder, "a.safetensors", safetensors(header))


@attack(CORRUPT, "are no range of the file's 32 bytes")
def safetensors_offsets_are_two_to_the_63(folder: Path, canary: Path) -> Path:
    """Added to the length of the header they point before the file."""
    header = {"a": {"dtype": "F32", "shape": [8], "data_offsets": [2**63, 2**63 + 32]}}
    return file(folder, "a.safetensors", safetensors(header))


@attack(CORRUPT, "larger than 2^62 bytes")
def native_shape_is_two_to_the_63(folder: Path, canary: Path) -> Path:
    """A tensor whose stored piece is small and whose whole is not."""
    tensors = {
        "w": {"fqn": "w", "dtype": "float32", "shape": [2**63], "offsets": [0], "sizes": [8]}
    }
    return native(folder, tensors=tensors)


@attack(CORRUPT, "exceeds 100000000")
def native_header_is_endless(folder: Path, canary: Path) -> Path:
    """As for safetensors."""
    path = native(folder)
    for data in path.iterdir():
        data.write_bytes(struct.pack("<Q", 2**63) + data.read_bytes()[8:])
    return path


@attack(CORRUPT, "does not lie in its storage")
def torch_file_tensor_lies_outside_its_storage(folder: Path, canary: Path) -> Path:
    """Offset 2^62: what is read is other memory of the process."""
    root = dct(text("a"), floats(4, offset=2**62))
    return file(folder, "state.pt", archive(root, bytes(16)))


@attack(CORRUPT, "ends within the storage")
def legacy_torch_file_storage_is_endless(folder: Path, canary: Path) -> Path:
    """A storage of 2^63-1 elements in a file of some bytes."""
    return file(folder, "state.pt", legacy(dct(text("a"), floats(4)), (MAX,)))


@attack(CORRUPT, "reaches beyond the end")
def pickle_text_is_endless(folder: Path, canary: Path) -> Path:
    """BINUNICODE8 of 2^63 bytes."""
    return Dcp().write(folder, b"\x8d" + struct.pack("<Q", 2**63) + b"x")


@attack(CORRUPT, "not the index")
def pickle_memo_has_a_far_entry(folder: Path, canary: Path) -> Path:
    """LONG_BINPUT at 2^32-1: a memo that is an array takes 32 GiB."""
    return Dcp().write(folder, NONE + b"r\xff\xff\xff\xff")


# ---- names that come twice ----


@attack(CORRUPT, '"w" is there twice')
def dcp_name_twice(folder: Path, canary: Path) -> Path:
    """A reader that keeps the first and one that keeps the last read different checkpoints."""
    dcp = Dcp()
    dcp.state += [text("w"), tensor((4,), chunk((0,), (4,)))]
    return dcp.write(folder)


@attack(CORRUPT, "two entries for one chunk")
def dcp_place_twice(folder: Path, canary: Path) -> Path:
    """The same, for the place of a chunk."""
    dcp = Dcp()
    dcp.storage += [key("w", 0), stored("__0_0.distcp", len(ITEM), len(ITEM))]
    return dcp.write(folder)


@attack(CORRUPT, "duplicate name")
def safetensors_name_twice(folder: Path, canary: Path) -> Path:
    """JSON leaves open which of two members counts."""
    entry = json.dumps(f32(0, 32, [8]))
    header = f'{{"a":{entry},"a":{entry}}}'.encode()
    return file(folder, "a.safetensors", safetensors(header))


@attack(CORRUPT, "duplicate name")
def hf_name_twice(folder: Path, canary: Path) -> Path:
    """The same."""
    return hf_folder(folder, b'{"weight_map":{"w":"a.safetensors","w":"b.safetensors"}}')


@attack(CORRUPT, "is there twice")
def torch_file_record_twice(folder: Path, canary: Path) -> Path:
    """One scanner checks the first data.pkl, the loader opens the second."""
    whole = archive(dct(text("a"), floats(4)), bytes(16), **{"data.pkX": pickled(NONE)})
    return file(folder, "state.pt", whole.replace(b"data.pkX", b"data.pkl"))


@attack(INVALID, "two entries of the state are called")
def torch_file_key_twice(folder: Path, canary: Path) -> Path:
    """1 and "1" are two keys and, flattened, one name."""
    root = dct(num(1), floats(4), text("1"), floats(4))
    return file(folder, "state.pt", archive(root, bytes(16)))


@attack(CORRUPT, "both as a tensor and as an object")
def native_name_twice(folder: Path, canary: Path) -> Path:
    """One name for a tensor and for a value."""
    header = {"w": f32(0, 16, [4]), "__varve__.values.rank00000": _bytes(16, 32)}
    return native(folder, header, objects={"w": [16, 32]})


def _bytes(begin: int, end: int) -> dict[str, object]:
    return {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}


# ---- what is no file ----


@attack(INVALID, "not a regular file")
def dcp_index_is_a_pipe(folder: Path, canary: Path) -> Path:
    """Opening a named pipe waits for a writer, for ever."""
    path = Dcp().write(folder)
    (path / ".metadata").unlink()
    os.mkfifo(path / ".metadata")
    return path


@attack(INVALID, "not a regular file")
def safetensors_file_is_a_pipe(folder: Path, canary: Path) -> Path:
    """The same."""
    path = hf_folder(folder, b'{"weight_map":{"w":"a.safetensors"}}')
    (path / "a.safetensors").unlink()
    os.mkfifo(path / "a.safetensors")
    return path


@attack(INVALID, "not a regular file")
def hf_file_is_a_link_to_a_device(folder: Path, canary: Path) -> Path:
    """/dev/zero never ends."""
    path = hf_folder(folder, b'{"weight_map":{"w":"a.safetensors"}}')
    (path / "a.safetensors").unlink()
    (path / "a.safetensors").symlink_to("/dev/zero")
    return path


@attack(CORRUPT, "__0_0.distcp has 0 bytes")
def dcp_data_is_a_link_to_itself(folder: Path, canary: Path) -> Path:
    """Resolving it does not end."""
    path = Dcp().write(folder)
    (path / "__0_0.distcp").unlink()
    (path / "__0_0.distcp").symlink_to("__0_0.distcp")
    return path
