"""Stores of the tests: the one of docs/storage.md, one in memory, and broken ones."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from varve.storage import ObjectInfo, ObjectStore, one_level

PAGE = (Path(__file__).parents[2] / "docs" / "storage.md").read_text()


def sqlite_store() -> Any:
    """The class in docs/storage.md."""
    section = PAGE.partition("## A store of your own")[2]
    text = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert text is not None
    names: dict[str, Any] = {"__name__": "of_the_page"}
    exec(text[1].partition("varve.register_storage")[0], names)
    return names["SqliteStore"]


class MemoryStore(ObjectStore):
    """A store in this process, with uploads that are listed."""

    part_bytes = 1 << 20

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, tuple[bytes, float, str]] = {}
        self.uploads: dict[str, tuple[str, float, dict[str, bytes]]] = {}
        self.number = 0
        self.calls: list[str] = []

    def _new(self) -> str:
        self.number += 1
        return str(self.number)

    def head(self, name: str) -> ObjectInfo:
        with self.lock:
            self.calls.append("head")
            if name not in self.objects:
                raise FileNotFoundError(name)
            content, modified, version = self.objects[name]
            return ObjectInfo(name, len(content), modified, version)

    def read(self, name: str, offset: int, into: memoryview, version: str) -> None:
        with self.lock:
            self.calls.append("read")
            if name not in self.objects:
                raise FileNotFoundError(name)
            content, _, now = self.objects[name]
        if version not in ("", now):
            raise OSError(116, "replaced")
        if offset + len(into) > len(content):
            raise EOFError(name)
        into[:] = content[offset : offset + len(into)]

    def list(self, prefix: str, unfinished: bool) -> Iterable[ObjectInfo]:
        with self.lock:
            self.calls.append("list")
            if unfinished:
                return [
                    ObjectInfo(name, modified=begun, upload=upload)
                    for upload, (name, begun, _) in self.uploads.items()
                    if name.startswith(prefix)
                ]
            objects = self.objects.items()
            return one_level(
                prefix, [ObjectInfo(name, len(one[0]), one[1], one[2]) for name, one in objects]
            )

    def put(self, name: str, data: memoryview, if_absent: bool) -> None:
        content = bytes(data)
        with self.lock:
            self.calls.append("put")
            if if_absent and name in self.objects:
                raise FileExistsError(name)
            self.objects[name] = (content, time.time(), self._new())

    def remove(self, names: Sequence[str]) -> None:
        with self.lock:
            for name in names:
                self.objects.pop(name, None)

    def start_upload(self, name: str, part_bytes: int) -> str:
        with self.lock:
            upload = self._new()
            self.uploads[upload] = (name, time.time(), {})
            return upload

    def upload_part(self, name: str, upload: str, number: int, data: memoryview) -> str:
        content = bytes(data)
        with self.lock:
            self.uploads[upload][2][f"part {number}"] = content
        return f"part {number}"

    def end_upload(self, name: str, upload: str, parts: Sequence[str] | None) -> None:
        with self.lock:
            _, _, found = self.uploads.pop(upload, ("", 0.0, {}))
            if parts is not None:
                content = b"".join(found[part] for part in parts)
                self.objects[name] = (content, time.time(), self._new())


class DropsBytes(MemoryStore):
    def put(self, name: str, data: memoryview, if_absent: bool) -> None:
        super().put(name, data[:-1] if len(data) > 100_000 else data, if_absent)


class Overwrites(MemoryStore):
    def put(self, name: str, data: memoryview, if_absent: bool) -> None:
        super().put(name, data, False)


class LooksBeforeItPuts(MemoryStore):
    """What a program writes that has no conditional write: right alone, wrong with others."""

    def put(self, name: str, data: memoryview, if_absent: bool) -> None:
        if if_absent:
            with self.lock:
                there = name in self.objects
            time.sleep(0.01)
            if there:
                raise FileExistsError(name)
        super().put(name, data, False)


class ListsLate(MemoryStore):
    def list(self, prefix: str, unfinished: bool) -> Iterable[ObjectInfo]:
        return [
            one
            for one in super().list(prefix, unfinished)
            if unfinished or time.time() - one.modified > 0.2
        ]


class ListsAPage(MemoryStore):
    def list(self, prefix: str, unfinished: bool) -> Iterable[ObjectInfo]:
        return list(super().list(prefix, unfinished))[:1000]


class ListsAllLevels(MemoryStore):
    def list(self, prefix: str, unfinished: bool) -> Iterable[ObjectInfo]:
        if unfinished:
            return super().list(prefix, unfinished)
        with self.lock:
            return [
                ObjectInfo(name, len(one[0]), one[1], one[2])
                for name, one in self.objects.items()
                if name.startswith(prefix)
            ]


class ShowsParts(MemoryStore):
    def upload_part(self, name: str, upload: str, number: int, data: memoryview) -> str:
        part = super().upload_part(name, upload, number, data)
        super().put(name, data, False)
        return part


class JoinsPartsAsTheyCome(MemoryStore):
    def end_upload(self, name: str, upload: str, parts: Sequence[str] | None) -> None:
        there = None if parts is None else list(self.uploads[upload][2])
        super().end_upload(name, upload, there)


class KeepsMemory(MemoryStore):
    def put(self, name: str, data: memoryview, if_absent: bool) -> None:
        super().put(name, data, if_absent)
        with self.lock:
            _, modified, version = self.objects[name]
            self.objects[name] = (memoryview(data), modified, version)  # type: ignore[assignment]


class ReadsWhatReplacedIt(MemoryStore):
    def read(self, name: str, offset: int, into: memoryview, version: str) -> None:
        super().read(name, offset, into, "")


class RemovesStrictly(MemoryStore):
    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            with self.lock:
                if name not in self.objects:
                    raise FileNotFoundError(name)
        super().remove(names)


#: Each broken store, and the test that finds it.
BROKEN: dict[type[MemoryStore], str] = {
    DropsBytes: "test_what_was_put_is_read_back",
    Overwrites: "test_put_if_absent_never_takes_a_name",
    LooksBeforeItPuts: "test_of_many_that_put_if_absent_one_succeeds",
    ListsLate: "test_what_was_written_is_listed_at_once",
    ListsAPage: "test_a_long_list_is_complete",
    ListsAllLevels: "test_a_list_is_one_level",
    ShowsParts: "test_an_upload_is_whole_or_absent",
    JoinsPartsAsTheyCome: "test_an_upload_is_whole_or_absent",
    KeepsMemory: "test_put_keeps_a_copy_of_the_memory_it_was_given",
    ReadsWhatReplacedIt: "test_an_object_that_was_replaced_is_not_read_on",
    RemovesStrictly: "test_removing_what_is_not_there_is_a_success",
}
