"""The class that a store of objects is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class ObjectInfo:
    """An object, a folder or an unfinished upload.

    Attributes:
        name: In the store, "bucket/run/x". The name of a folder ends with "/".
        size: Bytes.
        modified: When it was written, of an upload when it was begun: Unix time in seconds; 0 where that
            is not known. `varve gc` removes only what is known to be a day old.
        version: Another text after each `put`, an ETag for example; "" where the store has none.
        upload: The id of an unfinished upload; "" for all else.
    """

    name: str
    size: int = 0
    modified: float = 0.0
    version: str = ""
    upload: str = ""


class ObjectStore:
    """A store of objects. Subclass it, and give an instance to `varve.register_storage`.

    `head`, `read`, `list`, `put` and `remove` must be there. With the three of uploads a large file
    goes to the store in parts; without them it is held in memory until it is whole.

    Names have no scheme: `mem://bucket/run/x` is "bucket/run/x", components with "/" between them, none
    of them empty, "." or "..". Memory that a method is given belongs to it until it returns: copy what
    is needed after that. Several threads call the methods at once. A method waits and retries for as
    long as its users want: the engine does not call it again, and Ctrl-C ends a save when it returns.

    What must hold: an object is visible whole or not at all, and is read and listed as soon as the
    method that wrote it has returned. Of several `put` of one name with `if_absent` exactly one succeeds.

    Raises:
        FileNotFoundError: There is no such object.
        FileExistsError: `put` with `if_absent`, and the name is taken.
        PermissionError: Access is refused; nothing was changed.
        NotImplementedError: The store cannot do it.
        OSError: Any other failure; with errno ENOSPC or EDQUOT the store is full, with ESTALE the
            object was replaced. Errors of `varve.errors` are taken as they are. All else counts as a
            failure that may pass.
    """

    #: Bytes of the parts of an upload, and of the largest object that one `put` gets. At least 1 MiB.
    #: Files of more than 10,000 parts get larger ones.
    part_bytes: ClassVar[int] = 16 << 20

    def head(self, name: str) -> ObjectInfo:
        """Returns size, time and version of an object; raises FileNotFoundError."""
        raise NotImplementedError

    def read(self, name: str, offset: int, into: memoryview, version: str) -> None:
        """Fills `into`, all of it, with the object's bytes from `offset` on.

        Raises EOFError where the object ends before, and OSError with errno ESTALE where `version` is
        not "" and the object has another one.
        """
        raise NotImplementedError

    def list(self, prefix: str, unfinished: bool) -> Iterable[ObjectInfo]:
        """Returns the objects right below `prefix`, which is "" or ends with "/", and the folders there.

        Objects that lie deeper are listed as one folder for each next component: `one_level` does that
        with a list of all names. In any order; nothing where there is no such object.

        With `unfinished` returns instead all unfinished uploads below `prefix`, at any depth, or
        nothing where the store cannot know them: then a rule of the store's has to end old ones.
        """
        raise NotImplementedError

    def put(self, name: str, data: memoryview, if_absent: bool) -> None:
        """Writes a whole object in the place of any that is there.

        With `if_absent` raises FileExistsError where there is one, and NotImplementedError where the
        store cannot do that: saves then go on with a weaker rule and a warning, or are refused
        (`publish` of `register_storage`).
        """
        raise NotImplementedError

    def remove(self, names: Sequence[str]) -> None:
        """Removes objects, at most 1000. One that is not there is a success."""
        raise NotImplementedError

    def start_upload(self, name: str, part_bytes: int) -> str:
        """Begins an upload and returns its id. All parts but the last will have `part_bytes`."""
        raise NotImplementedError

    def upload_part(self, name: str, upload: str, number: int, data: memoryview) -> str:
        """Takes part `number`, counted from 1; returns what `end_upload` gets for it.

        Parts come in any order, the first one often last, and several at once.
        """
        raise NotImplementedError

    def end_upload(self, name: str, upload: str, parts: Sequence[str] | None) -> None:
        """Makes the object visible, of these parts in their order. None gives the upload up.

        An upload that is not there, or has ended, is given up with success.
        """
        raise NotImplementedError


def has_uploads(store: ObjectStore) -> bool:
    """Returns whether a store has the three methods of uploads."""
    return all(
        getattr(type(store), name) is not getattr(ObjectStore, name)
        for name in ("start_upload", "upload_part", "end_upload")
    )


def one_level(prefix: str, objects: Iterable[ObjectInfo]) -> list[ObjectInfo]:
    """Returns what `ObjectStore.list` does, from all objects of a store, or all below `prefix`."""
    found: dict[str, ObjectInfo] = {}
    for one in objects:
        if one.name.startswith(prefix):
            folder, slash, _ = one.name[len(prefix) :].partition("/")
            name = prefix + folder + slash
            found[name] = ObjectInfo(name) if slash else one
    return list(found.values())
