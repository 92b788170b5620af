"""Plain values of a checkpoint, by their names."""

from __future__ import annotations

from typing import Any

from varve import _core
from varve._arguments import first_names
from varve._values import NeedsClassesError
from varve.errors import UnsupportedError


def plain_values(
    reader: _core.Reader, where: str, names: list[str], allow_pickle: bool
) -> list[Any]:
    """Returns the plain values of these names.

    Raises UnsupportedError; if some need classes that nothing here makes, it says which, and which
    names can be read.
    """
    try:
        return reader.objects(names, allow_pickle)
    except NeedsClassesError as error:
        if error.with_pickle:
            raise
    blocked: dict[str, list[str]] = {}
    everything = reader.object_names()
    for name in everything:
        try:
            reader.objects([name], allow_pickle)
        except NeedsClassesError as error:
            blocked[name] = error.classes
    tops = dict.fromkeys(fqn.split(".")[0] for fqn in (*reader.tensor_names(), *everything))
    stuck = {name.split(".")[0] for name in blocked}
    free = [top for top in tops if top not in stuck]
    wanted = {name: classes for name, classes in blocked.items() if name in names}
    classes = sorted({each for needed in wanted.values() for each in needed})
    named = [f'"{name}"' for name in wanted if name]
    listed = ", in ".join(first_names(each, 5) for each in (classes, named) if each)
    raise UnsupportedError(
        f"{where}: this file of torch.save holds objects of classes that Varve does not "
        f"make: {listed}. allow_pickle=True cannot open them: they are parts of the file's one "
        "pickle, which only torch.load(..., weights_only=False) runs as a whole. "
        + (
            f"The rest can be read: keys={free[:10]!r}"
            if free
            else "Nothing in it can be read without them"
        )
        + (f" and {len(free) - 10} more" if len(free) > 10 else ""),
        path=where,
    )
