"""Stores that keep their promises pass the tests that users run; each broken one fails the right one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from storage_stores import BROKEN, DropsBytes, MemoryStore, sqlite_store

from varve.testing import StorageConformance


class TestTheStoreOfThePage(StorageConformance):
    @pytest.fixture
    def store(self) -> Iterator[Any]:
        # In memory: a database syncs its file for each of a thousand objects.
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            yield sqlite_store()(f"{folder}/objects.db")


class TestStoreInMemory(StorageConformance):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()


class TestObstoreInMemory(StorageConformance):
    @pytest.fixture
    def store(self) -> Any:
        from obstore.store import MemoryStore as Memory

        from varve.storage.obstore import ObstoreStore

        return ObstoreStore(Memory())


class TestObstoreInADirectory(StorageConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Any:
        from obstore.store import LocalStore

        from varve.storage.obstore import ObstoreStore

        return ObstoreStore(LocalStore(tmp_path, automatic_cleanup=True))


class TestObstoreOverS3(StorageConformance):
    """Ceph's S3, as a cloud that obstore reaches; the first component is the bucket."""

    bucket = f"varve-{uuid.uuid4().hex[:12]}"
    folder = f"{bucket}/conformance"

    @pytest.fixture
    def store(self, s3_server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Any:
        import boto3
        from obstore.store import S3Store

        from varve.storage.obstore import ObstoreStore

        for name, value in s3_server.items():
            monkeypatch.setenv(name, value)
        boto3.resource("s3").Bucket(self.bucket).create()
        options = {"allow_http": True}
        return ObstoreStore(lambda bucket: S3Store(bucket, client_options=options))


CONFORMANCE = """
import pytest
import storage_stores
from varve.testing import StorageConformance
"""

OF_ONE = """
class Test{name}(StorageConformance):
    @pytest.fixture
    def store(self):
        return storage_stores.{name}()
"""


def environment() -> dict[str, str]:
    """The environment of a user's tests, who runs them in CI too: pytest shows more there."""
    paths = [str(Path(__file__).parent), *sys.path]
    return {**os.environ, "CI": "true", "PYTHONPATH": os.pathsep.join(filter(None, paths))}


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The tests that fail, by broken store, where a user runs them."""
    folder = tmp_path_factory.mktemp("broken")
    classes = [OF_ONE.format(name=broken.__name__) for broken in BROKEN]
    (folder / "test_it.py").write_text(CONFORMANCE + "".join(classes))
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider", "test_it.py"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    found: dict[str, set[str]] = {}
    for store, test in re.findall(r"^FAILED test_it.py::Test(\w+)::(\w+)", ended.stdout, re.M):
        found.setdefault(store, set()).add(test)
    return found


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_broken_store_fails_by_the_right_test(
    broken: type[MemoryStore], failures: dict[str, set[str]]
) -> None:
    assert BROKEN[broken] in failures[broken.__name__]


@pytest.mark.parametrize(("store", "code"), [(MemoryStore, 0), (DropsBytes, 1), (None, 1)])
def test_the_plugin_tests_the_store_that_an_option_names(
    store: type[MemoryStore] | None, code: int, tmp_path: Path
) -> None:
    which = [] if store is None else ["--varve-store", f"storage_stores:{store.__name__}"]
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-p", "varve.testing.plugin", "--varve-folder", "a/b", *which),
            *("--pyargs", "varve.testing.conformance"),
        ],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    if store is None:
        assert "--varve-store MODULE:FUNCTION" in ended.stdout
    else:
        assert f"{'passed' if code == 0 else 'failed'}" in ended.stdout
