"""Lies in the rank files of OLMo's `local` layout."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from attack import CORRUPT, INVALID, MAX, READ, UNSUPPORTED, attack
from formats import (
    NONE,
    archive,
    dct,
    floats,
    lst,
    num,
    recall,
    remember,
    same,
    size,
    text,
    touch,
    tup,
)

TRUE = b"\x88"


def handle(**lies: bytes) -> bytes:
    """A flat parameter's shard of 4 elements: all of "w", whose shape is (4,)."""
    infos = tup(tup(TRUE, num(0), num(4), num(0), num(3)))
    attributes = {
        "data": floats(4),
        "_fqns": lst(text("w")),
        "_shapes": lst(size(4)),
        "_shard_numel_padded": num(0),
        "_shard_param_infos": infos,
        **lies,
    }
    pairs = [
        part for key, value in attributes.items() for part in (text(f"flat_param.{key}"), value)
    ]
    return dct(*pairs)


def info(at: int, count: int, first: int, last: int) -> bytes:
    """`_shard_param_infos` of one parameter."""
    return tup(tup(TRUE, num(at), num(count), num(first), num(last)))


def module(handles: bytes, name: str = "") -> bytes:
    return dct(text("name"), text(name), text("handles"), handles)


def model(modules: bytes | None = None, storage: bytes = bytes(16), **lies: bytes) -> bytes:
    listed = lst(module(lst(handle(**lies)))) if modules is None else modules
    return archive(dct(text("modules"), listed), storage)


def optimizer(moment: bytes | None = None, params: bytes | None = None) -> bytes:
    group = dct(
        *(text("params"), lst(num(0)) if params is None else params),
        *(text("param_names"), lst(text("w"))),
    )
    state = dct(num(0), dct(text("m"), floats(4) if moment is None else moment))
    return archive(dct(text("state"), state, text("param_groups"), lst(group)), bytes(16))


def local(folder: Path, *models: bytes, ranks: int | None = None, **files: bytes) -> Path:
    """The keys of `files` are `FOLDER_RANK`."""
    path = folder / "step1"
    path.mkdir()
    named = {f"model_{rank}": content for rank, content in enumerate(models)} | files
    for name, content in named.items():
        below, rank = name.split("_")
        (path / below).mkdir(exist_ok=True)
        (path / below / f"rank{rank}.pt").write_bytes(content)
    (path / "metadata.yaml").write_text(f"world_size: {len(models) if ranks is None else ranks}\n")
    (path / "config.yaml").write_text("run_name: made\n")
    return path


@attack(CORRUPT, '"w" has no shape that a tensor can have')
def olmo_local_shape_overflows(folder: Path, canary: Path) -> Path:
    """The product of the sizes is 0 in 64 bits."""
    return local(folder, model(_shapes=lst(size(2**32, 2**32))))


@attack(CORRUPT, "no chunk holds", reads=("verify", "convert"))
def olmo_local_shape_is_endless(folder: Path, canary: Path) -> Path:
    """An exbibyte of memory for four stored elements."""
    return local(folder, model(_shapes=lst(size(2**58))))


@attack(CORRUPT, "contradicts itself")
def olmo_local_piece_begins_before_the_shard(folder: Path, canary: Path) -> Path:
    """Read as unsigned, the offset is huge; as signed, it leads before the storage."""
    return local(folder, model(_shard_param_infos=info(-4, 4, 0, 3)))


@attack(CORRUPT, "lie outside of its 4 elements")
def olmo_local_piece_wraps_around(folder: Path, canary: Path) -> Path:
    """Offset plus length is a small number in 64 bits."""
    return local(folder, model(_shard_param_infos=info(MAX - 1, 4, 0, 3)))


@attack(CORRUPT, "contradicts itself")
def olmo_local_piece_ends_before_it_begins(folder: Path, canary: Path) -> Path:
    """Inclusive ends: the length is computed as a huge number."""
    return local(folder, model(_shard_param_infos=info(0, 1, 3, 0)))


@attack(CORRUPT, "store different values of it")
def olmo_local_pieces_overlap(folder: Path, canary: Path) -> Path:
    """Two ranks store element 2: which one is loaded depends on the order of reading."""
    first = model(_shard_param_infos=info(0, 3, 0, 2))
    second = model(_shard_param_infos=info(0, 2, 2, 3), storage=b"\1" * 16)
    return local(folder, first, second)


@attack(CORRUPT, "rank1.pt is missing")
def olmo_local_claims_four_billion_ranks(folder: Path, canary: Path) -> Path:
    """A reader that makes room for the ranks asks for terabytes."""
    return local(folder, model(), ranks=2**32 - 1)


@attack(CORRUPT, "world_size is no number of ranks")
def olmo_local_claims_more_ranks_than_there_are_numbers(folder: Path, canary: Path) -> Path:
    return local(folder, model(), ranks=10**30)


@attack(CORRUPT, "is not a part of the flat shard")
def olmo_local_padding_is_larger_than_the_shard(folder: Path, canary: Path) -> Path:
    """The place of the padding is computed as size minus padding."""
    return local(folder, model(_shard_numel_padded=num(2**62)))


@attack(CORRUPT, "does not lie in its storage")
def olmo_local_shard_lies_outside_its_storage(folder: Path, canary: Path) -> Path:
    """What is read is other memory of the process."""
    return local(folder, model(data=floats(4, offset=2**40)))


@attack(CORRUPT, "is no contiguous 1-d tensor")
def olmo_local_shard_repeats_its_bytes(folder: Path, canary: Path) -> Path:
    """Stride 0: sixteen bytes in the file, a gibibyte in memory."""
    return local(folder, model(data=floats(4, (256,), stride=(0,))))


@attack(INVALID, "use one another so often")
def olmo_local_modules_share_their_handles(folder: Path, canary: Path) -> Path:
    """Twenty thousand modules, each with the same list of twenty thousand handles."""
    handles = same(handle(_fqns=b"]", _shapes=b"]", _shard_param_infos=tup()), 20_000, 1)
    return local(folder, model(same(module(handles), 20_000, 2)))


@attack(INVALID, "use one another so often")
def olmo_local_handles_share_their_names(folder: Path, canary: Path) -> Path:
    """Twenty thousand names, which each of twenty thousand modules puts its own name before."""
    names = lst(*(text(f"w{i}") for i in range(20_000)))
    shared = handle(_fqns=names, _shapes=same(size(1), 20_000, 1))
    first = module(remember(lst(shared), 2), "m0")
    rest = [module(recall(2), f"m{i}") for i in range(1, 20_000)]
    return local(folder, model(lst(first, *rest)))


@attack(CORRUPT, "more padding than the file has bytes")
def olmo_local_paddings_share_a_storage(folder: Path, canary: Path) -> Path:
    """Each of a thousand flat parameters has the whole file for its padding."""
    elements = 1 << 20
    padding = handle(
        data=floats(elements),
        _fqns=b"]",
        _shapes=b"]",
        _shard_param_infos=tup(),
        _shard_numel_padded=num(elements),
    )
    return local(folder, model(lst(module(same(padding, 1000, 1))), bytes(4 * elements)))


@attack(CORRUPT, "larger than 2^62 bytes")
def olmo_local_moment_overflows(folder: Path, canary: Path) -> Path:
    """The model's bytes fit into 63 bits, those of a moment of a wider type do not."""
    wide = floats(2).replace(b"FloatStorage", b"DoubleStorage")
    half = {"_shapes": lst(size(2**60)), "_shard_param_infos": info(0, 2, 0, 1)}
    return local(folder, model(**half), optim_0=optimizer(wide))


@attack(CORRUPT, "which no group has")
def olmo_local_optimizer_names_nothing(folder: Path, canary: Path) -> Path:
    """An index into a list that is shorter."""
    return local(folder, model(), optim_0=optimizer(params=lst(num(7))))


@attack(UNSUPPORTED, "os.system", reads=READ)
def olmo_local_moment_runs_a_program(folder: Path, canary: Path) -> Path:
    """torch.load(weights_only=False) runs it, and OLMo opens its rank files so."""
    return local(folder, model(), optim_0=optimizer(touch(canary)))


@attack(CORRUPT, "has no name or no handles")
def olmo_local_module_is_a_call(folder: Path, canary: Path) -> Path:
    """The same, where a module should be."""
    return local(folder, model(lst(touch(canary))))


@attack(INVALID, "nests deeper than 200 levels")
def olmo_trainer_state_nests_deep(folder: Path, canary: Path) -> Path:
    """Each dict holds the next."""
    nested = b"}"
    for _ in range(2000):
        nested = b"}" + text("a") + nested + b"s"
    return local(folder, model(), train_0=archive(nested))


@attack(INVALID, "MARK")
def olmo_local_pickle_is_all_marks(folder: Path, canary: Path) -> Path:
    """A reader that recurses overflows its stack."""
    return local(folder, model(b"(" * 100_000 + b"t" * 100_000))


@attack(CORRUPT, "holds no dict with")
def olmo_local_memo_has_a_far_entry(folder: Path, canary: Path) -> Path:
    """LONG_BINPUT at 2^32-1: a memo that is an array takes 32 GiB."""
    return local(folder, archive(NONE + b"r\xff\xff\xff\xff"))


@attack(UNSUPPORTED, "at most 1073741824 are read")
def olmo_local_pickle_is_endless(folder: Path, canary: Path) -> Path:
    """Two gibibytes that take no room on the disk."""
    path = local(folder, model())
    _write_endless(path / "model" / "rank0.pt", 2 << 30)
    return path


def _write_endless(path: Path, length: int) -> None:
    """A zip file whose pickle is a hole of `length` bytes."""
    name = b"archive/data.pkl"
    head = (
        struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 0, 0, 0, 0, length, length, len(name), 0) + name
    )
    entry = struct.pack(
        "<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, length, length, len(name), 0, 0, 0, 0, 0, 0
    )
    directory = entry + name
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(directory), len(head) + length, 0)
    with path.open("wb") as file:
        file.write(head)
        file.seek(length, os.SEEK_CUR)
        file.write(directory + end)


@attack(INVALID, "not a regular file")
def olmo_local_rank_is_a_pipe(folder: Path, canary: Path) -> Path:
    """Opening a named pipe waits for a writer, for ever."""
    path = local(folder, model(), model())
    (path / "model" / "rank1.pt").unlink()
    os.mkfifo(path / "model" / "rank1.pt")
    return path


@attack(INVALID, "not a regular file")
def olmo_local_rank_is_a_link_to_a_device(folder: Path, canary: Path) -> Path:
    """/dev/zero never ends."""
    path = local(folder, model(), model())
    (path / "model" / "rank1.pt").unlink()
    (path / "model" / "rank1.pt").symlink_to("/dev/zero")
    return path


@attack(CORRUPT, "which is not there")
def olmo_local_storage_is_outside(folder: Path, canary: Path) -> Path:
    """A program that unpacks the archive into a directory writes elsewhere."""
    data = floats(4).replace(text("0"), text("../../../outside"))
    return local(folder, model(data=data))
