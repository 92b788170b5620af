"""Lies in the rank files of OLMo's `torch_legacy` layout, and in its safetensors dialect."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from attack import CORRUPT, INVALID, MAX, READ, UNSUPPORTED, attack
from formats import (
    NONE,
    archive,
    call,
    dct,
    floats,
    glob,
    lst,
    new,
    num,
    pickled,
    recall,
    remember,
    safetensors,
    same,
    size,
    text,
    touch,
    tup,
)

TRUE, FALSE = b"\x88", b"\x89"
TYPE = glob("torch.distributed._shard.sharded_tensor.api", "ShardedTensor")
DTENSOR = glob("torch.distributed.tensor", "DTensor")


def place(offsets: tuple[int, ...], sizes: tuple[int, ...], rank: int) -> bytes:
    """The metadata of a shard."""
    return new(
        "torch.distributed._shard.metadata",
        "ShardMetadata",
        shard_offsets=lst(*map(num, offsets)),
        shard_sizes=lst(*map(num, sizes)),
        placement=text(f"rank:{rank}/cpu"),
    )


def wrapped(kind: bytes, shape: tuple[int, ...], state: bytes) -> bytes:
    wrapper = tup(kind, glob("torch", "float32"), size(*shape), tup(*(num(1) for _ in shape)))
    rebuild = glob("torch._utils", "_rebuild_wrapper_subclass")
    return call(glob("torch._tensor", "_rebuild_from_type_v2"), rebuild, kind, wrapper, state)


def sharded(shape: tuple[int, ...], places: bytes, *own: bytes) -> bytes:
    """A ShardedTensor. `places` is the list of all shards, `own` those of this rank."""
    package = "torch.distributed._shard.sharded_tensor"
    metadata = new(f"{package}.metadata", "ShardedTensorMetadata", shards_metadata=places)
    return wrapped(TYPE, shape, tup(lst(*own) if own else b"]", metadata, NONE, NONE, FALSE))


def shard(metadata: bytes, tensor: bytes | None = None) -> bytes:
    return new(
        "torch.distributed._shard.sharded_tensor.shard",
        "Shard",
        metadata=metadata,
        tensor=floats(4) if tensor is None else tensor,
    )


def rank_of(tensor: bytes, storage: bytes = bytes(16), **more: bytes) -> bytes:
    pairs = [part for key, value in more.items() for part in (text(key), value)]
    return archive(dct(text("model"), dct(text("w"), tensor), *pairs), storage)


def legacy_ranks(folder: Path, *ranks: bytes) -> Path:
    path = folder / "step1"
    path.mkdir()
    for rank, content in enumerate(ranks):
        (path / f"rank{rank}.pt").write_bytes(content)
    (path / "config.yaml").write_text("run_name: made\n")
    return path


def alone(folder: Path, shape: tuple[int, ...], metadata: bytes) -> Path:
    """One rank with one shard."""
    return legacy_ranks(folder, rank_of(sharded(shape, lst(metadata), shard(metadata))))


@attack(CORRUPT, "larger than 2^62 bytes")
def olmo_legacy_shape_overflows(folder: Path, canary: Path) -> Path:
    """The product of the sizes is 0 in 64 bits."""
    return alone(folder, (2**32, 2**32), place((0, 0), (2, 2), 0))


@attack(CORRUPT, "no chunk holds", reads=("verify", "convert"))
def olmo_legacy_shape_is_endless(folder: Path, canary: Path) -> Path:
    """An exbibyte of memory for four stored elements."""
    return alone(folder, (2**58,), place((0,), (4,), 0))


@attack(CORRUPT, "no valid offsets")
def olmo_legacy_shard_begins_before_the_tensor(folder: Path, canary: Path) -> Path:
    """What is written is other memory of the process."""
    return alone(folder, (4,), place((-4,), (4,), 0))


@attack(CORRUPT, "reaches outside shape")
def olmo_legacy_shard_wraps_around(folder: Path, canary: Path) -> Path:
    """Offset plus size is a small number in 64 bits."""
    return alone(folder, (4,), place((MAX,), (4,), 0))


@attack(CORRUPT, "overlap")
def olmo_legacy_shards_overlap(folder: Path, canary: Path) -> Path:
    """Elements 2 and 3 are stored by both ranks, and differ."""
    first, second = place((0,), (4,), 0), place((2,), (4,), 1)
    both = lst(first, second)
    return legacy_ranks(
        folder,
        rank_of(sharded((6,), both, shard(first))),
        rank_of(sharded((6,), both, shard(second)), b"\1" * 16),
    )


@attack(CORRUPT, "placed on rank 999999, but the checkpoint has 1 ranks")
def olmo_legacy_claims_a_million_ranks(folder: Path, canary: Path) -> Path:
    """A reader that makes room for each rank, or looks for its file."""
    first, last = place((0,), (4,), 0), place((4,), (4,), 999_999)
    return legacy_ranks(folder, rank_of(sharded((8,), lst(first, last), shard(first))))


@attack(CORRUPT, "rank0.pt is missing")
def olmo_legacy_has_the_last_of_four_billion_ranks(folder: Path, canary: Path) -> Path:
    """The same, by the name of the only file."""
    path = alone(folder, (4,), place((0,), (4,), 0))
    (path / "rank0.pt").rename(path / f"rank{2**32 - 1}.pt")
    return path


@attack(CORRUPT, "is not in the tensor's metadata")
def olmo_legacy_lists_a_million_shards(folder: Path, canary: Path) -> Path:
    """A million are listed, ten thousand stored: ten billion comparisons, one by one."""
    listed, stored = place((0,), (4,), 0), place((4,), (4,), 0)
    places = same(listed, 1_000_000, 1)
    own = remember(shard(stored), 2) + recall(2) * 9_999
    return legacy_ranks(folder, rank_of(sharded((8,), places, own)))


@attack(CORRUPT, "more shards than a pickle of its size can list")
def olmo_legacy_tensors_share_their_shards(folder: Path, canary: Path) -> Path:
    """Ten thousand tensors with one list of ten thousand shards."""
    metadata = place((0,), (4,), 0)
    places = remember(same(metadata, 10_000, 1), 2)
    first = sharded((4,), places, shard(metadata))
    rest = [
        part
        for i in range(10_000)
        for part in (text(f"w{i}"), sharded((4,), recall(2), shard(recall(1))))
    ]
    return legacy_ranks(folder, rank_of(first, more=dct(*rest)))


@attack(CORRUPT, "is in rank0.pt and not in rank1.pt")
def olmo_legacy_keys_are_in_another_order(folder: Path, canary: Path) -> Path:
    """Two hundred thousand keys of the optimizer that each rank has in an order of its own."""
    keys = [f"key{i}" for i in range(200_000)]
    metadata = place((0,), (4,), 0)
    tensor = sharded((4,), lst(metadata), shard(metadata))

    def rank(names: list[str]) -> bytes:
        return rank_of(tensor, optim=dct(*(part for key in names for part in (text(key), NONE))))

    return legacy_ranks(folder, rank(keys), rank([*reversed(keys[:-1]), "other"]))


@attack(CORRUPT, "mesh has no shape")
def olmo_legacy_mesh_is_endless(folder: Path, canary: Path) -> Path:
    """The sizes of a mesh in tuples of tuples of ones: 300^5 of them."""
    ones = num(1)
    for level in range(5):
        ones = tup(remember(ones, level + 1), recall(level + 1) * 299)
    mesh = new(
        "torch.distributed.device_mesh",
        "DeviceMesh",
        _layout=new("torch.distributed._mesh_layout", "_MeshLayout", shape=tup(ones)),
        _coordinate_on_dim=lst(num(0)),
    )
    placements = tup(call(glob("torch.distributed.tensor.placement_types", "Replicate")))
    spec = new("torch.distributed.tensor", "DTensorSpec", mesh=mesh, placements=placements)
    state = dct(text("_spec"), spec, text("_local_tensor"), floats(4))
    return legacy_ranks(folder, rank_of(wrapped(DTENSOR, (4,), state)))


@attack(INVALID, "nests deeper than 200 levels")
def olmo_legacy_state_holds_itself(folder: Path, canary: Path) -> Path:
    """A dict that is its own item."""
    metadata = place((0,), (4,), 0)
    own = b"}q\x09" + text("a") + recall(9) + b"s"
    return legacy_ranks(folder, rank_of(sharded((4,), lst(metadata), shard(metadata)), more=own))


@attack(UNSUPPORTED, "os.system", reads=READ)
def olmo_legacy_value_runs_a_program(folder: Path, canary: Path) -> Path:
    """torch.load(weights_only=False) runs it, and OLMo opens its rank files so."""
    metadata = place((0,), (4,), 0)
    tensor = sharded((4,), lst(metadata), shard(metadata))
    return legacy_ranks(folder, rank_of(tensor, step=touch(canary)))


# ---- full, the safetensors dialect ----


def dialect(folder: Path, entries: dict[bytes, bytes]) -> Path:
    """`entries` maps pickled keys to the bytes of their uint8 tensors."""
    header: dict[str, Any] = {}
    data = b""
    for key, content in entries.items():
        name = base64.urlsafe_b64encode(key).decode()
        end = len(data) + len(content)
        header[name] = {"dtype": "U8", "shape": [len(content)], "data_offsets": [len(data), end]}
        data += content
    path = folder / "step1-unsharded"
    path.mkdir()
    (path / "model.safetensors").write_bytes(safetensors(header, data))
    (path / "config.yaml").write_text("run_name: made\n")
    return path


def path_key(*parts: bytes, is_pickled: bytes = FALSE) -> bytes:
    return pickled(tup(tup(*parts), is_pickled))


@attack(UNSUPPORTED, "os.system", reads=READ)
def olmo_dialect_value_runs_a_program(folder: Path, canary: Path) -> Path:
    """The original opens it with pickle.loads."""
    return dialect(folder, {path_key(text("step"), is_pickled=TRUE): pickled(touch(canary))})


@attack(INVALID, "a name of")
def olmo_dialect_name_is_endless(folder: Path, canary: Path) -> Path:
    """A path of one long text, sixty times."""
    long = remember(text("x" * 10_000), 1)
    return dialect(folder, {path_key(long, recall(1) * 59): b"1"})


@attack(INVALID, "many times larger than the file")
def olmo_dialect_values_grow(folder: Path, canary: Path) -> Path:
    """Thirty pickles of 30 KB, each a list of forty megabytes: a gibibyte."""
    value = pickled(same(text("x" * 20_000), 2_000, 1))
    keys = [path_key(text(f"step{i}"), is_pickled=TRUE) for i in range(30)]
    return dialect(folder, dict.fromkeys(keys, value))


@attack(CORRUPT, "is in the way of another entry")
def olmo_dialect_entry_is_in_the_way(folder: Path, canary: Path) -> Path:
    """One key is a tensor and a dict."""
    return dialect(folder, {path_key(text("a")): b"1", path_key(text("a"), text("b")): b"2"})
