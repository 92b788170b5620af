"""Writes DCP checkpoints in every way Varve has, for read.py: write.py DIRECTORY.

Runs with Varve's own environment. Each checkpoint NAME gets a NAME.json with what is in it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import states
import torch

import varve
import varve.torch
import varve.torch.dcp as dcp

RANKS = 3


def expect(directory: Path, name: str, state: dict[str, Any], **head: Any) -> None:
    """`ranks`: who saved, `local`: without collectives, so that only as many ranks can load it."""
    head = {"ranks": 1, "local": False, "needs": [], **head}
    text = json.dumps({**head, "entries": states.entries(state)}, indent=1)
    (directory / f"{name}.json").write_text(text)


def command(*arguments: object) -> None:
    binary = Path(sys.executable).parent / "varve"
    subprocess.run([binary, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def write_single(directory: Path) -> None:
    state = states.single()
    varve.torch.save(state, directory / "save-1", format="dcp")
    dcp.save(dict(state), checkpoint_id=directory / "dropin-1")
    writer = dcp.FileSystemWriter(directory / "dropin-threads-1", thread_count=2)
    dcp.save(dict(state), storage_writer=writer)
    writer = dcp.FileSystemWriter(directory / "dropin-files-1", single_file_per_rank=False)
    dcp.save(dict(state), storage_writer=writer)
    dcp.async_save(dict(state), checkpoint_id=directory / "dropin-async-1").result()

    sources = directory / "sources"
    sources.mkdir()
    varve.torch.save(state, sources / "native-1")
    torch.save(state, sources / "state.pt")
    varve.convert(sources / "native-1", directory / "convert-1", "dcp")
    command("convert", sources / "state.pt", directory / "convert-torch-save", "--to", "dcp")
    command("convert", directory / "dropin-1", directory / "convert-dcp", "--to", "dcp")
    for name in ("save-1", "dropin-1", "dropin-threads-1", "dropin-files-1", "dropin-async-1"):
        expect(directory, name, state)
    for name in ("convert-1", "convert-torch-save", "convert-dcp"):
        expect(directory, name, state)

    some = {key: value for key, value in state["tensors"].items() if "contiguous" in key}
    some = {key: t for key, t in some.items() if str(t.dtype)[6:] in states.SAFETENSORS_DTYPES}
    varve.torch.save(some, sources / "native-some")
    file = sources / "some.safetensors"
    command("convert", sources / "native-some", file, "--to", "safetensors")
    command("convert", file, directory / "convert-safetensors", "--to", "dcp")
    expect(directory, "convert-safetensors", some)


def write_new_dtypes(directory: Path) -> None:
    """What the metadata then names is not there in older versions of torch."""
    for name in states.NEW_DTYPES:
        state = {name: states.bits(name, (4, 6), getattr(torch, name))}
        varve.torch.save(state, directory / f"save-{name}", format="dcp")
        expect(directory, f"save-{name}", state, needs=[name])


def write_sharded(directory: Path) -> None:
    """On every rank."""
    state = states.sharded(states.on_mesh(RANKS))
    varve.torch.save(state, directory / "save-3", format="dcp")
    varve.torch.save(state, directory / "sources" / "native-3")
    dcp.save(dict(state), checkpoint_id=directory / "dropin-3")
    writer = dcp.FileSystemWriter(directory / "dropin-threads-3", thread_count=2)
    dcp.save(dict(state), storage_writer=writer)
    dcp.save(dict(state), checkpoint_id=directory / "dropin-local-3", use_collectives=False)


def main() -> None:
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True)
    write_single(directory)
    write_new_dtypes(directory)
    states.ranks(RANKS, write_sharded, directory)
    command("convert", directory / "sources" / "native-3", directory / "convert-3", "--to", "dcp")
    # An uncoordinated DCP checkpoint becomes one that torch reshards.
    source = directory / "dropin-local-3"
    command("convert", source, directory / "convert-local-3", "--to", "dcp")
    state = states.sharded(states.whole)
    for name in ("save-3", "dropin-3", "dropin-threads-3", "convert-3", "convert-local-3"):
        expect(directory, name, state, ranks=RANKS)
    expect(directory, "dropin-local-3", state, ranks=RANKS, local=True)
    print(f"varve {varve.__version__}, torch {torch.__version__}: wrote {directory}")


if __name__ == "__main__":
    main()
