"""Checkpoints of each format put together by hand, so that any one thing in them can be a lie."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

# ---- pickles: each function gives the opcodes that push one object, so they nest as the objects do ----

NONE = b"N"
EMPTY_DICT = b"}"


def num(value: int) -> bytes:
    content = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(content)]) + content


def text(value: str) -> bytes:
    content = value.encode()
    return b"X" + struct.pack("<I", len(content)) + content


def tup(*items: bytes) -> bytes:
    return b"(" + b"".join(items) + b"t"


def lst(*items: bytes) -> bytes:
    return b"](" + b"".join(items) + b"e"


def dct(*pairs: bytes) -> bytes:
    return b"}(" + b"".join(pairs) + b"u"


def glob(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def call(callee: bytes, *arguments: bytes) -> bytes:
    return callee + tup(*arguments) + b"R"


def new(module: str, name: str, **attributes: bytes) -> bytes:
    pairs = [part for key, value in attributes.items() for part in (text(key), value)]
    return glob(module, name) + b")\x81" + dct(*pairs) + b"b"


def pickled(root: bytes) -> bytes:
    return b"\x80\x02" + root + b"."


def remember(item: bytes, place: int) -> bytes:
    """The item, which `recall(place)` then pushes again."""
    return item + b"q" + bytes([place])


def recall(place: int) -> bytes:
    return b"h" + bytes([place])


def same(item: bytes, count: int, place: int) -> bytes:
    """A list of one item that stands in it `count` times."""
    return lst(remember(item, place), recall(place) * (count - 1))


def touch(canary: Path) -> bytes:
    """What Python's pickle, opening it, runs."""
    return call(glob("os", "system"), text(f"touch '{canary}'"))


# ---- torch.save ----


def floats(count: int, size: tuple[int, ...] | None = None, **lies: Any) -> bytes:
    """A float32 tensor over storage 0, which holds `count` elements."""
    size = (count,) if size is None else size
    stride = lies.get("stride", (1,) * len(size))
    storage = tup(
        text("storage"), glob("torch", "FloatStorage"), text("0"), text("cpu"), num(count)
    )
    return call(
        glob("torch._utils", "_rebuild_tensor_v2"),
        storage + b"Q",
        num(lies.get("offset", 0)),
        tup(*map(num, size)),
        tup(*map(num, stride)),
        b"\x89",
        call(glob("collections", "OrderedDict")),
    )


def archive(root: bytes, storage: bytes = b"", **more: bytes) -> bytes:
    """A zip file as torch.save writes it; `root` is the pickled object."""
    records = {"data.pkl": pickled(root), "byteorder": b"little", "data/0": storage, **more}
    return zipped({f"archive/{name}": content for name, content in records.items()})


def zipped(records: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as file:
        for name, content in {**records, "archive/version": b"3\n"}.items():
            file.writestr(zipfile.ZipInfo(name), content, method)
    return out.getvalue()


def legacy(root: bytes, sizes: tuple[int, ...] = ()) -> bytes:
    """What torch.save wrote before 1.6: pickles one after the other, then storages."""
    machine = dct(
        *(text("protocol_version"), num(1001), text("little_endian"), b"\x88"),
        *(
            text("type_sizes"),
            dct(text("short"), num(2), text("int"), num(4), text("long"), num(4)),
        ),
    )
    magic = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
    keys = pickled(lst(*(text(str(i)) for i in range(len(sizes)))) if sizes else b"]")
    content = b"".join(struct.pack("<q", size) + b"\0" * 16 for size in sizes)
    return magic + pickled(num(1001)) + pickled(machine) + pickled(root) + keys + content


# ---- DCP ----

METADATA = "torch.distributed.checkpoint.metadata"
FILESYSTEM = "torch.distributed.checkpoint.filesystem"
#: The stored form of [0, 1, 2, 3] in float32.
ITEM = archive(floats(4), struct.pack("<4f", 0, 1, 2, 3))


def size(*sizes: int) -> bytes:
    return call(glob("torch", "Size"), tup(*map(num, sizes)))


def chunk(offsets: tuple[int, ...], sizes: tuple[int, ...]) -> bytes:
    return new(METADATA, "ChunkStorageMetadata", offsets=size(*offsets), sizes=size(*sizes))


def tensor(shape: tuple[int, ...], *chunks: bytes) -> bytes:
    layout = call(glob("torch.serialization", "_get_layout"), text("torch.strided"))
    memory_format = call(glob(METADATA, "_MEM_FORMAT_ENCODING"), num(0))
    state = tup(glob("torch", "float32"), layout, b"\x89", memory_format, b"\x89")
    properties = glob(METADATA, "TensorProperties") + b")\x81" + state + b"b"
    return new(
        METADATA,
        "TensorStorageMetadata",
        properties=properties,
        size=size(*shape),
        chunks=lst(*chunks) if chunks else b"]",
    )


VALUE = glob(METADATA, "BytesStorageMetadata") + b")\x81"


def key(fqn: str, *offset: int) -> bytes:
    where = size(*offset) if offset else NONE
    return new(METADATA, "MetadataIndex", fqn=text(fqn), offset=where, index=NONE)


def stored(path: str, offset: int, length: int, **more: bytes) -> bytes:
    return new(
        FILESYSTEM,
        "_StorageInfo",
        relative_path=text(path),
        offset=num(offset),
        length=num(length),
        **more,
    )


class Dcp:
    """A whole checkpoint: "w", 8 elements of float32 in two chunks. Change it, then write it."""

    def __init__(self) -> None:
        name, each = "__0_0.distcp", len(ITEM)
        self.state = [text("w"), tensor((8,), chunk((0,), (4,)), chunk((4,), (4,)))]
        self.storage = [key("w", 0), stored(name, 0, each), key("w", 4), stored(name, each, each)]
        self.planner = NONE
        self.files = {name: ITEM * 2}

    def value(self, fqn: str, item: bytes, **more: bytes) -> Dcp:
        """Adds a plain value whose stored form is `item`."""
        self.state += [text(fqn), VALUE]
        self.storage += [key(fqn), stored(f"{fqn}.distcp", 0, len(item), **more)]
        self.files[f"{fqn}.distcp"] = item
        return self

    def index(self) -> bytes:
        return new(
            METADATA,
            "Metadata",
            state_dict_metadata=dct(*self.state),
            planner_data=self.planner,
            storage_data=dct(*self.storage),
        )

    def write(self, folder: Path, index: bytes | None = None, name: str = ".metadata") -> Path:
        path = folder / "dcp"
        path.mkdir()
        for file, content in self.files.items():
            (path / file).write_bytes(content)
        (path / name).write_bytes(pickled(self.index() if index is None else index))
        return path


# ---- safetensors, Hugging Face folders, Varve's own ----


def safetensors(header: bytes | dict[str, Any], data: bytes = b"\0" * 32) -> bytes:
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(content)) + content + data


def f32(begin: int, end: int, shape: list[int]) -> dict[str, Any]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}


def hf_folder(folder: Path, index: bytes) -> Path:
    path = folder / "hf"
    path.mkdir()
    (path / "a.safetensors").write_bytes(safetensors({"w": f32(0, 32, [8])}))
    (path / "model.safetensors.index.json").write_bytes(index)
    return path


def crc32c(content: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def native(folder: Path, header: dict[str, Any] | None = None, **lies: Any) -> Path:
    """A rank-local checkpoint of one rank with right checksums: "w", 8 elements, of docs/format.md."""
    path = folder / "native"
    path.mkdir()
    save_id = "ab" * 16
    varve = {
        "format": 1,
        "header_crc32c": "0" * 8,
        "save_id": save_id,
        **{"rank": 0, "world_size": 1, "coordinated": False, "created_ns": 1},
        "block_bytes": 1 << 20,
        "blocks_crc32c": f"{crc32c(bytes(32)):08x}",
        "xxh3": "0" * 32,
        **{"tensors": {}, "objects": {}, **lies},
    }
    inner = json.dumps(varve, separators=(",", ":"))
    entries = {"w": f32(0, 32, [8])} if header is None else header
    whole = json.dumps({"__metadata__": {"format": "pt", "varve": inner}, **entries}).encode()
    content = bytearray(safetensors(whole.ljust(4096 * (len(whole) // 4096 + 1) - 8), b""))
    mark = b'\\"header_crc32c\\":\\"'
    at = content.index(mark) + len(mark)
    content[at : at + 8] = f"{crc32c(bytes(content)):08x}".encode()
    (path / f"data-00000-of-00001-{save_id[:12]}.safetensors").write_bytes(content + bytes(32))
    return path
