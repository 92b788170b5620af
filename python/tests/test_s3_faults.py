"""Saves by two ranks, loads and gc through a proxy that fails, in front of a real S3 server."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import programs
import pytest
from fault_proxy import KINDS, PASSING, FaultProxy
from ranks import collect, run_ranks
from s3_fault_jobs import (
    Outcome,
    collect_garbage,
    die_while_uploading,
    load_large,
    load_with_faults,
    look_without_a_server,
    save_large,
    save_with_faults,
)


@pytest.fixture(scope="module")
def proxy(s3_server: dict[str, str]) -> Iterator[FaultProxy]:
    made = FaultProxy(s3_server["AWS_ENDPOINT_URL"])
    yield made
    made.close()


def check_error(error: str, server: dict[str, str]) -> None:
    """An error names the object and the cause, and tells no key."""
    assert "s3://varve-" in error
    for secret in (server["AWS_SECRET_ACCESS_KEY"], "Signature=", "AWS4-HMAC"):
        assert secret not in error


def sample(kind: str) -> list[tuple[int, bool]]:
    """Indices of requests of a new save and of an overwrite: the same in each run, others for each
    kind."""
    chance = random.Random(kind)
    return [(at, False) for at in chance.sample(range(12), 2)] + [
        (at, True) for at in chance.sample(range(22), 3)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_save_is_whole_or_absent(
    s3_server: dict[str, str], proxy: FaultProxy, bucket: Any, kind: str
) -> None:
    proxy.met.clear()
    folder = f"s3://{bucket.name}/saves"
    ranks: list[list[Outcome]] = run_ranks(
        2, save_with_faults, proxy.endpoint, folder, kind, sample(kind)
    )
    for first, second in zip(*ranks, strict=True):
        assert bool(first.error) == bool(second.error), (first, second)
        assert first.seen == second.seen
        assert first.requests > first.at, "the fault was never met"
        if first.error:
            assert kind not in PASSING, first.error
            assert first.seen == int(first.overwrite)
            check_error(first.error, s3_server)
        else:
            assert first.seen == 2
    assert len(proxy.met) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_a_load_is_right_or_an_error(
    s3_server: dict[str, str], proxy: FaultProxy, bucket: Any, kind: str
) -> None:
    most = 4 if kind.startswith("stall") else 10
    path = f"s3://{bucket.name}/loads/{kind}"
    ranks: list[list[Outcome]] = run_ranks(2, load_with_faults, proxy.endpoint, path, kind, most)
    for outcomes in zip(*ranks, strict=True):
        for outcome in outcomes:
            if outcome.error:
                assert kind not in PASSING, outcome.error
                check_error(outcome.error, s3_server)
            else:
                assert outcome.seen == 1, "a load returned other data than were saved"
    assert ranks[0][0].requests >= 10


def test_a_resharding_load_reads_little_more_than_it_needs(proxy: FaultProxy, bucket: Any) -> None:
    path = f"s3://{bucket.name}/reshard"
    proxy.plan("none", 0)
    run_ranks(4, save_large, proxy.endpoint, path, 128)
    proxy.sent = 0
    needed = sum(run_ranks(3, load_large, proxy.endpoint, path, 128))
    assert needed >= 128 << 20
    assert needed <= proxy.sent <= 1.05 * needed


def test_a_router_without_its_server_is_no_empty_run(proxy: FaultProxy, bucket: Any) -> None:
    for error in run_ranks(1, look_without_a_server, proxy.endpoint, f"s3://{bucket.name}/run")[0]:
        assert error.startswith("UnavailableError") and "404" in error and "endpoint" in error


def test_expired_keys_are_named_as_such(proxy: FaultProxy, bucket: Any) -> None:
    path = f"s3://{bucket.name}/loads/named"
    outcomes: list[list[Outcome]] = run_ranks(
        1, load_with_faults, proxy.endpoint, path, "always-expired", 1
    )
    error = outcomes[0][0].error
    for part in (f"GET s3://{bucket.name}", "loads/named/", "400 ExpiredToken", "renew"):
        assert part in error


@pytest.mark.parametrize("kind", ["unavailable", "reset-after", "truncated", "expired"])
def test_gc_removes_no_checkpoint(
    proxy: FaultProxy, bucket: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"s3://{bucket.name}/gc-{kind}/step-1"
    run_ranks(1, load_with_faults, proxy.endpoint, path, "none", 1)
    before = sorted(one.key for one in bucket.objects.filter(Prefix=f"gc-{kind}/"))
    for at in range(4):
        proxy.plan(kind, at)
        run_ranks(1, collect_garbage, proxy.endpoint, f"s3://{bucket.name}/gc-{kind}")
    proxy.plan("none", 0)
    assert sorted(one.key for one in bucket.objects.filter(Prefix=f"gc-{kind}/")) == before


def test_a_rank_that_is_killed_while_it_uploads_changes_nothing(
    proxy: FaultProxy, bucket: Any
) -> None:
    path = f"s3://{bucket.name}/kills/step-1"
    proxy.plan("none", 0)
    outcomes = collect(2, die_while_uploading, proxy.endpoint, path, 2.0, dead=(1,))
    kind, outcome = outcomes[0][:2]
    assert kind == "ok", outcome
    assert "rank 1" in outcome.error
    assert outcome.seen == 1
    # The open uploads of the killed rank are found by gc once they are a day old.
    after = run_ranks(2, save_with_faults, proxy.endpoint, f"{path}-next", "none", [(0, True)])
    assert after[0][0].seen == 2


@pytest.mark.parametrize("kind", ["unavailable", "internal-late", "always-expired"])
def test_nothing_that_is_produced_tells_a_key(
    s3_server: dict[str, str], proxy: FaultProxy, bucket: Any, kind: str, tmp_path: Path
) -> None:
    """Output, events of every level, a trace and the checkpoint itself, of a save that meets a fault."""
    token = "a-session-token-that-nobody-may-read"
    environment = {
        **os.environ,
        "AWS_ENDPOINT_URL": proxy.endpoint,
        "VARVE_S3_RETRY_TIMEOUT": "5",
        "VARVE_TRACE": str(tmp_path / "trace.json"),
    }
    if kind == "always-expired":
        environment["AWS_SESSION_TOKEN"] = token
    script = (
        "import logging, torch, varve.torch\n"
        "logging.basicConfig(level=1)\n"
        "state = {'w': torch.arange(6 << 20)}\n"
        f"varve.torch.async_save(state, 's3://{bucket.name}/told/{kind}').result(60.0)\n"
        f"varve.torch.load(state, 's3://{bucket.name}/told/{kind}')\n"
    )
    proxy.plan(kind, 7)
    ended = programs.run(script, env=environment)
    proxy.plan("none", 0)
    assert (ended.returncode == 0) == (kind in PASSING), ended.stderr
    assert ("tried again in" if kind in PASSING else "ExpiredToken") in ended.stderr
    produced = [ended.stdout.encode(), ended.stderr.encode()]
    produced += [path.read_bytes() for path in tmp_path.iterdir()]
    produced += [one.get()["Body"].read() for one in bucket.objects.filter(Prefix="told/")]
    assert len(produced) > 2
    for text in produced:
        for secret in (s3_server["AWS_SECRET_ACCESS_KEY"], token, "Signature=", "AWS4-HMAC"):
            assert secret.encode() not in text
