"""The cache of remote files on this host, as the processes of a node use it."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import programs
import pytest
import torch
from cache_jobs import digest_of, read_for_ever, read_ranks
from command_line import command
from disks import mounted
from ranks import fork_context, run_ranks
from web_server import Handler, Web, served

import varve.torch

MIB = 1 << 20
READ = """
import sys, logging, hashlib
logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s", stream=sys.stdout)
import varve.torch
from cache_jobs import digest_of
for url in sys.argv[1:]:
    print(digest_of(varve.torch.read(url)))
"""


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    (tmp_path / "www").mkdir()
    with served(tmp_path / "www") as server:
        yield server


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def saved(web: Web, name: str, mebibytes: int = 24, seed: int = 0) -> str:
    """Saves random bytes below the server's root; returns the URL."""
    generator = torch.Generator().manual_seed(seed)
    content = torch.randint(0, 256, (mebibytes * MIB,), dtype=torch.uint8, generator=generator)
    varve.torch.save({"w": content}, web.root / name, overwrite=True)
    return f"{web.url}/{name}"


def read(cache: Path, *urls: str, **environment: str) -> list[str]:
    """The lines that a process prints that reads these: its warnings, and digests."""
    environment = {**os.environ, "VARVE_CACHE_DIR": str(cache), **environment}
    return programs.output(READ, *urls, env=environment, cwd=Path(__file__).parent).splitlines()


def digest(web: Web, name: str) -> str:
    return digest_of(varve.torch.read(web.root / name))


def blocks(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*-*") if path.is_file() and path.name[0] != "."]


def test_a_second_load_fetches_no_data(web: Web, cache: Path) -> None:
    url = saved(web, "ck")
    assert read(cache, url) == [digest(web, "ck")]
    assert 24 * MIB < web.sent < 25 * MIB
    web.sent = 0
    assert read(cache, url) == [digest(web, "ck")]
    assert web.sent == 0


def test_it_is_off_by_default(web: Web, cache: Path) -> None:
    url = saved(web, "ck", 1)
    assert read(cache, url, VARVE_CACHE_DIR="") == [digest(web, "ck")]
    assert not cache.exists()


def test_ranks_of_a_node_fetch_once(web: Web, cache: Path) -> None:
    url = saved(web, "ck")
    web.delay = 0.02
    assert set(run_ranks(2, read_ranks, str(cache), url)) == {digest(web, "ck")}
    assert web.sent < 25 * MIB


def test_a_replaced_checkpoint_is_read_anew(web: Web, cache: Path) -> None:
    url = saved(web, "ck", seed=1)
    before = read(cache, url)
    saved(web, "ck", seed=2)
    assert read(cache, url) == [digest(web, "ck")] != before


def test_weak_etags_and_fresh_files_are_not_kept(web: Web, cache: Path) -> None:
    url = saved(web, "ck", 2)
    web.fault = lambda handler: handler.serve_file(etag='W/"1"') is None
    assert read(cache, url, url) == [digest(web, "ck")] * 2
    assert web.sent > 4 * MIB
    assert blocks(cache) == []


def test_a_flipped_bit_is_found_and_fetched_again(web: Web, cache: Path) -> None:
    url = saved(web, "ck")
    read(cache, url)
    for path in random.Random(3).sample(blocks(cache), 5):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
    web.sent = 0
    lines = read(cache, url)
    assert lines[-1] == digest(web, "ck")
    assert sum("damaged block" in line for line in lines) == 5
    assert 0 < web.sent <= 5 * MIB


def test_a_byte_that_came_wrong_once_is_not_kept(web: Web, cache: Path) -> None:
    url = saved(web, "ck", 4)
    flipped: list[str] = []

    def flip(handler: Handler) -> bool:
        wrong = handler.command == "GET" and "/data-" in handler.path and not flipped
        if wrong and handler.headers["Range"].startswith("bytes=1048576-"):
            flipped.append(handler.path)
            handler.serve_file(flip=True)
            return True
        return False

    web.fault = flip
    assert read(cache, url, url) == [digest(web, "ck")] * 2
    assert flipped


def test_verify_reads_what_the_server_has(web: Web, cache: Path) -> None:
    url = saved(web, "ck")
    read(cache, url)
    web.sent = 0
    command("verify", url, VARVE_CACHE_DIR=str(cache))
    assert web.sent > 24 * MIB


def test_the_oldest_go_when_the_limit_is_reached(web: Web, cache: Path) -> None:
    urls = [saved(web, f"ck-{i}", 24, i) for i in range(6)]
    limit = 64 * MIB
    for url in urls:
        read(cache, url, VARVE_CACHE_BYTES=str(limit))
        assert sum(path.stat().st_size for path in blocks(cache)) <= limit
    web.sent = 0
    read(cache, urls[-1], VARVE_CACHE_BYTES=str(limit))
    assert web.sent == 0
    read(cache, urls[0], VARVE_CACHE_BYTES=str(limit))
    assert web.sent > 20 * MIB


def test_a_full_disk_is_one_warning_and_no_failure(web: Web, tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small tmpfs needs root")
    url = saved(web, "ck")
    with mounted("tmpfs", "size=8m", tmp_path / "disk") as disk:
        lines = read(disk / "cache", url, url)
    assert lines[-2:] == [digest(web, "ck")] * 2
    assert sum(line.startswith("WARNING") for line in lines) == 1
    assert any("No space left" in line for line in lines)


def test_a_directory_that_cannot_be_made_is_one_warning(web: Web, cache: Path) -> None:
    url = saved(web, "ck", 4)
    cache.write_text("a file")
    lines = read(cache, url, url)
    assert lines[-2:] == [digest(web, "ck")] * 2
    assert sum(line.startswith("WARNING") for line in lines) == 1


def test_kills_while_it_fills_leave_whole_blocks_only(web: Web, cache: Path) -> None:
    urls = [saved(web, f"ck-{i}", 24, i) for i in range(2)]
    want = [digest(web, f"ck-{i}") for i in range(2)]
    context = fork_context()
    chance = random.Random(5)
    for _ in range(6):
        readers = [context.Process(target=read_for_ever, args=(str(cache), urls)) for _ in range(2)]
        for reader in readers:
            reader.start()
        begun = time.monotonic()
        while not blocks(cache) and time.monotonic() - begun < 60:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.1))
        for reader in readers:
            assert reader.pid is not None
            os.kill(reader.pid, signal.SIGKILL)
            reader.join()
        for path in blocks(cache):
            assert path.stat().st_size > 64  # What is under its name is whole: read below.
        lines = read(cache, *urls)
        assert lines == want  # And no warning: nothing was damaged.
        for path in chance.sample(blocks(cache), 30):
            path.unlink()
    leftover = [path for path in cache.rglob(".new-*")]
    assert all(path.stat().st_size <= MIB + 64 for path in leftover)


def test_objects_of_a_bucket_are_kept_too(
    s3_server: dict[str, str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boto3 = pytest.importorskip("boto3")
    for name, value in s3_server.items():
        monkeypatch.setenv(name, value)
    bucket = boto3.resource("s3").Bucket(f"varve-{uuid.uuid4().hex[:12]}")
    bucket.create()
    url = f"s3://{bucket.name}/ck"
    content = torch.arange(8 * MIB, dtype=torch.int64).to(torch.uint8)
    varve.torch.save({"w": content}, url)
    want = hashlib.sha256(content.numpy().tobytes()).hexdigest()
    assert read(cache, url) == [want]
    assert len(blocks(cache)) >= 8
    for path in blocks(cache):  # Whatever is read now comes from here: it is damaged and found.
        path.write_bytes(path.read_bytes()[:-1] + b"\0")
    lines = read(cache, url)
    assert lines[-1] == want
    assert sum("damaged block" in line for line in lines) >= 7
