"""Lies in checkpoints that are files of several ranks, each with a pickle: the parts of hfai."""

from __future__ import annotations

from pathlib import Path

from attack import CORRUPT, READ, UNSUPPORTED, attack
from formats import archive, dct, floats, lst, num, size, text, touch, tup

INCOMPLETE = "PreconditionError"


def part(
    *large: bytes, shards: bytes | None = None, small: bytes = b"}", more: tuple[bytes, ...] = ()
) -> bytes:
    """A part with one model and no optimizer, and a storage of four float32."""
    root = dct(
        *(text("__nshards__"), num(2) if shards is None else shards),
        *(text("__version__"), text("2.0.0")),
        *(text("model"), lst(tup(small, dct(*large) if large else b"}"))),
        *(text("optimizer"), b"]"),
        *more,
    )
    return archive(root, bytes(16))


def folder_of(folder: Path, *parts: bytes) -> Path:
    path = folder / "latest.pt"
    path.mkdir()
    for rank, content in enumerate(parts):
        (path / f"PART_{rank:03d}.pt").write_bytes(content)
    return path


@attack(INCOMPLETE, "and 999989 more are missing", reads=("inspect", "verify", "convert", *READ))
def hfai_claims_a_million_parts(folder: Path, canary: Path) -> Path:
    """A list of a million names, or a loop over them."""
    return folder_of(folder, part(shards=num(1_000_000)))


@attack(CORRUPT, "__nshards__ is -1")
def hfai_claims_a_negative_number_of_parts(folder: Path, canary: Path) -> Path:
    """Sizes that are computed from it wrap."""
    return folder_of(folder, part(shards=num(-1)))


@attack(CORRUPT, "larger than 2^62 bytes")
def hfai_shape_overflows(folder: Path, canary: Path) -> Path:
    """The product of the sizes is 0 in 64 bits."""
    huge = part(text("w"), tup(size(2**32, 2**32), floats(4)))
    return folder_of(folder, huge, huge)


@attack(CORRUPT, "elements instead of")
def hfai_shape_is_larger_than_its_pieces(folder: Path, canary: Path) -> Path:
    """A terabyte of memory for eight stored elements."""
    huge = part(text("w"), tup(size(2**20, 2**18), floats(4)))
    return folder_of(folder, huge, huge)


@attack(CORRUPT, "negative")
def hfai_shape_is_negative(folder: Path, canary: Path) -> Path:
    """Two negative sizes, whose product fits."""
    odd = part(text("w"), tup(tup(num(-2), num(-4)), floats(4)))
    return folder_of(folder, odd, odd)


@attack(CORRUPT, "does not lie in its storage")
def hfai_piece_lies_outside_its_storage(folder: Path, canary: Path) -> Path:
    """What is read is other memory of the process."""
    odd = part(text("w"), tup(size(8), floats(4, offset=2**40)))
    return folder_of(folder, odd, odd)


@attack(CORRUPT, "is stored whole in PART_000.pt and in pieces elsewhere")
def hfai_tensor_is_whole_and_in_pieces(folder: Path, canary: Path) -> Path:
    """Readers disagree about which of two contents counts."""
    piece = tup(size(8), floats(4))
    both = part(text("w"), piece, small=dct(text("w"), floats(4)))
    return folder_of(folder, both, part(text("w"), piece))


@attack(UNSUPPORTED, "os.system", reads=READ)
def hfai_value_runs_a_program(folder: Path, canary: Path) -> Path:
    """One of the caller's entries, which torch.load(weights_only=False) runs."""
    first = part(more=(text("step"), touch(canary)))
    return folder_of(folder, first, part())
