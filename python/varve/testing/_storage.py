"""Tests of the promises of a store, one for each."""

from __future__ import annotations

import errno
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import varve
from varve.storage import ObjectInfo, ObjectStore, register_storage, unregister_storage
from varve.storage._store import has_uploads

#: Threads that call a store at once.
_THREADS = 8

#: Last components that stores and what carries them have got wrong.
_ODD_NAMES = ["a b", "a+b=c&d", "100%", "%41", "é-ü-漢", "~*'()!$,;:@", "a#b?c", ".hidden", "a..b"]


def _bytes(size: int, seed: int = 1) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def _same(content: bytes, expected: bytes) -> None:
    """Fails with the first difference."""
    # pytest's own comparison of a megabyte takes hours where the variable CI is set.
    if content == expected:
        return
    size = min(len(content), len(expected))
    differ = (at for at in range(size) if content[at] != expected[at])
    at = next(differ, size)
    pytest.fail(
        f"{len(content)} bytes instead of {len(expected)}; from byte {at} on "
        f"{content[at : at + 16]!r} instead of {expected[at : at + 16]!r}"
    )


class StorageConformance:
    """The promises of a `varve.storage.ObjectStore`. Subclass it, and override `store`.

    Attributes:
        folder: Where the tests write: a name of one or more components. Each test has a folder of its own
            below it, and removes what it wrote. For a store whose first component is a bucket it begins
            with one that exists.
        slow_clock: Seconds that the times of the store may differ from this host's.
    """

    folder = "varve-conformance"
    slow_clock = 60.0

    @pytest.fixture
    def store(self) -> ObjectStore:
        """Returns the store that is tested."""
        raise NotImplementedError("override the fixture `store`: return your store")

    @pytest.fixture
    def at(self, store: ObjectStore) -> Iterator[str]:
        """Yields a folder of this test alone, and removes all objects in it at the end."""
        folder = f"{self.folder}/{uuid.uuid4().hex[:12]}"
        yield folder
        store.remove(self.names_below(store, f"{folder}/"))

    # ---- what the tests are written with ----

    def names_below(self, store: ObjectStore, prefix: str) -> list[str]:
        """Returns the names of all objects below `prefix`, as the engine finds them."""
        found: list[str] = []
        for one in store.list(prefix, False):
            found += self.names_below(store, one.name) if one.name.endswith("/") else [one.name]
        return found

    def read(self, store: ObjectStore, name: str) -> bytes:
        """Returns the content of an object."""
        info = store.head(name)
        content = bytearray(info.size)
        if content:
            store.read(name, 0, memoryview(content), info.version)
        return bytes(content)

    def listed(self, store: ObjectStore, prefix: str) -> dict[str, ObjectInfo]:
        """Returns what is right below `prefix`, by name; no name may come twice."""
        entries = list(store.list(prefix, False))
        by_name = {one.name: one for one in entries}
        assert len(by_name) == len(entries), f"list({prefix!r}) returns a name twice"
        return by_name

    def needs_uploads(self, store: ObjectStore) -> None:
        """Skips the test of a store without uploads."""
        if not has_uploads(store):
            pytest.skip("this store has no uploads in parts: start_upload is not overridden")

    def needs_if_absent(self, store: ObjectStore, at: str) -> None:
        """Skips the test of a store that says that it cannot write if absent."""
        try:
            store.put(f"{at}/asked", memoryview(b"x"), True)
        except NotImplementedError:
            pytest.skip("this store cannot put with if_absent; saves to it follow a weaker rule")

    def at_once(self, call: Callable[[int], Any]) -> list[Any]:
        """Returns what `call` returns for 0, 1, 2, ..., each on a thread; they begin together."""
        together = threading.Barrier(_THREADS)

        def one(number: int) -> Any:
            together.wait(60)
            return call(number)

        with ThreadPoolExecutor(_THREADS) as threads:
            return list(threads.map(one, range(_THREADS)))

    # ---- whole objects ----

    @pytest.mark.parametrize("size", [0, 1, 1000, (1 << 20) + 17])
    def test_what_was_put_is_read_back(self, store: ObjectStore, at: str, size: int) -> None:
        content = _bytes(size)
        store.put(f"{at}/x", memoryview(content), False)
        assert store.head(f"{at}/x").size == size
        _same(self.read(store, f"{at}/x"), content)

    def test_put_replaces_what_is_there(self, store: ObjectStore, at: str) -> None:
        for content in (b"something long", b"short"):
            store.put(f"{at}/x", memoryview(content), False)
            _same(self.read(store, f"{at}/x"), content)
            assert self.listed(store, f"{at}/")[f"{at}/x"].size == len(content)

    def test_put_keeps_a_copy_of_the_memory_it_was_given(self, store: ObjectStore, at: str) -> None:
        content = bytearray(_bytes(100_000))
        expected = bytes(content)
        view = memoryview(content)
        store.put(f"{at}/x", view, False)
        content[:] = bytes(len(content))
        view.release()  # Raises BufferError where the store goes on using it.
        _same(self.read(store, f"{at}/x"), expected)

    def test_a_name_of_which_another_is_the_beginning_is_another(
        self, store: ObjectStore, at: str
    ) -> None:
        store.put(f"{at}/x", memoryview(b"short"), False)
        store.put(f"{at}/x-and-more", memoryview(b"long"), False)
        store.remove([f"{at}/x"])
        assert self.names_below(store, f"{at}/") == [f"{at}/x-and-more"]

    @pytest.mark.parametrize("name", _ODD_NAMES)
    def test_names_of_all_characters_are_kept(self, store: ObjectStore, at: str, name: str) -> None:
        for one in (f"{at}/{name}", f"{at}/{name}-folder/x"):
            store.put(one, memoryview(b"content"), False)
            assert self.read(store, one) == b"content"
        listed = set(self.listed(store, f"{at}/"))
        assert listed == {f"{at}/{name}", f"{at}/{name}-folder/"}
        store.remove([f"{at}/{name}", f"{at}/{name}-folder/x"])
        assert self.listed(store, f"{at}/") == {}

    def test_the_time_of_an_object_is_when_it_was_written(
        self, store: ObjectStore, at: str
    ) -> None:
        store.put(f"{at}/x", memoryview(b"x"), False)
        modified = store.head(f"{at}/x").modified
        listed = self.listed(store, f"{at}/")[f"{at}/x"].modified
        for one in (modified, listed):
            assert one == 0 or abs(time.time() - one) < self.slow_clock
        assert bool(modified) == bool(listed)

    # ---- ranges ----

    @pytest.mark.parametrize(("offset", "size"), [(0, 10), (1, 1), (990, 10), (123, 456)])
    def test_a_range_is_the_bytes_of_that_range(
        self, store: ObjectStore, at: str, offset: int, size: int
    ) -> None:
        content = _bytes(1000)
        store.put(f"{at}/x", memoryview(content), False)
        around = bytearray(b"." * (size + 2))
        store.read(f"{at}/x", offset, memoryview(around)[1:-1], store.head(f"{at}/x").version)
        _same(bytes(around), b"." + content[offset : offset + size] + b".")

    def test_a_range_behind_the_end_is_an_error(self, store: ObjectStore, at: str) -> None:
        store.put(f"{at}/x", memoryview(b"0123456789"), False)
        for offset, size in ((8, 3), (10, 1), (100, 1)):
            with pytest.raises((EOFError, OSError)):
                store.read(f"{at}/x", offset, memoryview(bytearray(size)), "")

    def test_an_object_that_was_replaced_is_not_read_on(self, store: ObjectStore, at: str) -> None:
        store.put(f"{at}/x", memoryview(b"first"), False)
        version = store.head(f"{at}/x").version
        if not version:
            pytest.skip("this store has no versions: a load cannot see that a file was replaced")
        store.put(f"{at}/x", memoryview(b"other"), False)
        assert store.head(f"{at}/x").version != version
        with pytest.raises(OSError) as raised:
            store.read(f"{at}/x", 0, memoryview(bytearray(5)), version)
        assert raised.value.errno == errno.ESTALE

    def test_threads_read_at_once(self, store: ObjectStore, at: str) -> None:
        content = _bytes(100_000)
        store.put(f"{at}/x", memoryview(content), False)

        def piece(number: int) -> bool:
            into = bytearray(10_000)
            store.read(f"{at}/x", number * 10_000, memoryview(into), "")
            return bytes(into) == content[number * 10_000 :][:10_000]

        assert self.at_once(piece) == [True] * _THREADS

    # ---- what is not there ----

    def test_what_is_not_there_is_not_found(self, store: ObjectStore, at: str) -> None:
        store.put(f"{at}/folder/x", memoryview(b"x"), False)
        for name in (f"{at}/none", f"{at}/folder", f"{at}/folder/x/y", f"{at}/folder/"[:-1]):
            with pytest.raises(FileNotFoundError):
                store.head(name)
        with pytest.raises(FileNotFoundError):
            store.read(f"{at}/none", 0, memoryview(bytearray(1)), "")
        assert list(store.list(f"{at}/none/", False)) == []

    def test_removing_what_is_not_there_is_a_success(self, store: ObjectStore, at: str) -> None:
        store.put(f"{at}/x", memoryview(b"x"), False)
        for _ in range(2):
            store.remove([f"{at}/none", f"{at}/x"])
        with pytest.raises(FileNotFoundError):
            store.head(f"{at}/x")
        store.remove([])

    def test_removing_the_name_of_a_folder_removes_nothing(
        self, store: ObjectStore, at: str
    ) -> None:
        store.put(f"{at}/folder/x", memoryview(b"x"), False)
        store.put(f"{at}/y", memoryview(b"x"), False)
        store.remove([f"{at}/folder", f"{at}/y"])
        assert self.names_below(store, f"{at}/") == [f"{at}/folder/x"]

    def test_remove_takes_all_the_names_it_is_given(self, store: ObjectStore, at: str) -> None:
        names = [f"{at}/{number:04}" for number in range(30)]
        for name in (*names, f"{at}/kept"):
            store.put(name, memoryview(b"x"), False)
        store.remove(names)
        assert self.names_below(store, f"{at}/") == [f"{at}/kept"]

    # ---- lists ----

    def test_a_list_is_one_level(self, store: ObjectStore, at: str) -> None:
        for name in ("a", "b/1", "b/2", "b/c/3", "d.x", "d/4"):
            store.put(f"{at}/{name}", memoryview(b"xyz"), False)
        listed = self.listed(store, f"{at}/")
        assert set(listed) == {f"{at}/a", f"{at}/b/", f"{at}/d.x", f"{at}/d/"}
        assert listed[f"{at}/a"].size == 3
        assert set(self.listed(store, f"{at}/b/")) == {f"{at}/b/1", f"{at}/b/2", f"{at}/b/c/"}

    def test_what_was_written_is_listed_at_once(self, store: ObjectStore, at: str) -> None:
        for number in range(10):
            store.put(f"{at}/{number}", memoryview(b"x"), False)
            assert f"{at}/{number}" in self.listed(store, f"{at}/")
        for number in range(10):
            store.remove([f"{at}/{number}"])
            assert f"{at}/{number}" not in self.listed(store, f"{at}/")

    def test_a_long_list_is_complete(self, store: ObjectStore, at: str) -> None:
        names = {f"{at}/{number:05}" for number in range(1100)}  # Servers have pages of 1000.
        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(lambda name: store.put(name, memoryview(b""), False), names))
        assert set(self.listed(store, f"{at}/")) == names
        for first in range(0, 1100, 1000):
            store.remove(sorted(names)[first : first + 1000])
        assert self.listed(store, f"{at}/") == {}

    # ---- put if absent ----

    def test_put_if_absent_never_takes_a_name(self, store: ObjectStore, at: str) -> None:
        self.needs_if_absent(store, at)
        store.put(f"{at}/x", memoryview(b"first"), True)
        with pytest.raises(FileExistsError):
            store.put(f"{at}/x", memoryview(b"second"), True)
        assert self.read(store, f"{at}/x") == b"first"
        store.remove([f"{at}/x"])
        store.put(f"{at}/x", memoryview(b"third"), True)
        assert self.read(store, f"{at}/x") == b"third"

    def test_of_many_that_put_if_absent_one_succeeds(self, store: ObjectStore, at: str) -> None:
        self.needs_if_absent(store, at)
        for number in range(10):
            name = f"{at}/{number}"

            def one(number: int, name: str = name) -> bool:
                try:
                    store.put(name, memoryview(b"of %d" % number), True)
                except FileExistsError:
                    return False
                return True

            succeeded = self.at_once(one)
            assert succeeded.count(True) == 1
            assert self.read(store, name) == b"of %d" % succeeded.index(True)

    # ---- uploads in parts ----

    def test_an_upload_is_whole_or_absent(self, store: ObjectStore, at: str) -> None:
        self.needs_uploads(store)
        content = _bytes(2 * store.part_bytes + 1000)
        upload = store.start_upload(f"{at}/x", store.part_bytes)
        assert isinstance(upload, str) and upload
        parts = {}
        for number in (3, 2, 1):  # The first one comes last.
            piece = content[(number - 1) * store.part_bytes :][: store.part_bytes]
            parts[number] = store.upload_part(f"{at}/x", upload, number, memoryview(piece))
            assert self.listed(store, f"{at}/") == {}
            with pytest.raises(FileNotFoundError):
                store.head(f"{at}/x")
        store.end_upload(f"{at}/x", upload, [parts[1], parts[2], parts[3]])
        assert self.listed(store, f"{at}/")[f"{at}/x"].size == len(content)
        _same(self.read(store, f"{at}/x"), content)

    def test_parts_come_from_several_threads(self, store: ObjectStore, at: str) -> None:
        self.needs_uploads(store)
        pieces = [_bytes(store.part_bytes, seed) for seed in range(_THREADS - 1)] + [b"end"]
        upload = store.start_upload(f"{at}/x", store.part_bytes)
        parts = self.at_once(
            lambda i: store.upload_part(f"{at}/x", upload, i + 1, memoryview(pieces[i]))
        )
        store.end_upload(f"{at}/x", upload, parts)
        _same(self.read(store, f"{at}/x"), b"".join(pieces))

    def test_an_upload_that_is_given_up_leaves_nothing(self, store: ObjectStore, at: str) -> None:
        self.needs_uploads(store)
        upload = store.start_upload(f"{at}/x", store.part_bytes)
        store.upload_part(f"{at}/x", upload, 1, memoryview(_bytes(store.part_bytes)))
        for _ in range(2):
            store.end_upload(f"{at}/x", upload, None)
        assert self.listed(store, f"{at}/") == {}
        assert list(store.list(f"{at}/", True)) == []

    def test_uploads_of_one_name_do_not_meet(self, store: ObjectStore, at: str) -> None:
        self.needs_uploads(store)
        first, second = (store.start_upload(f"{at}/x", store.part_bytes) for _ in range(2))
        one = store.upload_part(f"{at}/x", first, 1, memoryview(b"of the first"))
        two = store.upload_part(f"{at}/x", second, 1, memoryview(b"of the second"))
        store.end_upload(f"{at}/x", first, [one])
        assert self.read(store, f"{at}/x") == b"of the first"
        store.end_upload(f"{at}/x", second, [two])
        assert self.read(store, f"{at}/x") == b"of the second"

    def test_unfinished_uploads_are_listed_if_they_can_be(
        self, store: ObjectStore, at: str
    ) -> None:
        self.needs_uploads(store)
        store.put(f"{at}/folder/whole", memoryview(b"x"), False)
        upload = store.start_upload(f"{at}/folder/x", store.part_bytes)
        store.upload_part(f"{at}/folder/x", upload, 1, memoryview(_bytes(store.part_bytes)))
        found = list(store.list(f"{at}/", True))
        store.end_upload(f"{at}/folder/x", upload, None)
        assert not any(one.upload for one in store.list(f"{at}/folder/", False))
        if not found:
            pytest.skip("this store cannot list uploads: `varve gc` does not remove old ones")
        assert [(one.name, one.upload) for one in found] == [(f"{at}/folder/x", upload)]

    # ---- checkpoints ----

    def test_checkpoints_are_saved_replaced_loaded_and_removed(
        self, store: ObjectStore, at: str
    ) -> None:
        scheme = f"test-{uuid.uuid4().hex[:8]}"
        register_storage(scheme, store)
        path = f"{scheme}://{at}/run/step-1"
        try:
            for seed in (1, 2):
                size = 2 * store.part_bytes + 12_345
                w = np.frombuffer(_bytes(size, seed), dtype=np.uint8)
                varve.save({"w": w, "step": seed}, path, overwrite=seed > 1)
                loaded = varve.read(path)
                assert loaded["step"] == seed
                assert np.array_equal(loaded["w"], w)
                assert varve.verify(path) == []
            with pytest.raises(varve.CheckpointExistsError):
                varve.save({"step": 3}, path)
            assert [one.name for one in varve.list_checkpoints(f"{scheme}://{at}/run")] == [
                "step-1"
            ]
            assert varve.collect_garbage(f"{scheme}://{at}/run") == []
            varve.remove(path)
            assert self.names_below(store, f"{at}/") == []
        finally:
            unregister_storage(scheme)
