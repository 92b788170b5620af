"""Lightning's checkpoints by Varve in a bucket of a real S3 server: real Trainers with s3fs, Ceph's radosgw."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from frameworks import framework
from lightning_jobs import fit, fit_on_ranks, whole_in
from ranks import run_ranks

lightning = framework("lightning")
framework("s3fs")

from varve.integrations.lightning import VarveCheckpointIO  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of 5 epochs of 4 steps."""
    return fit(str(tmp_path_factory.mktemp("run")), 5)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_run_in_a_bucket_resumes_with_the_losses_of_an_uninterrupted_one(
    asynchronous: bool, bucket: Any, uninterrupted: list[float]
) -> None:
    folder = f"s3://{bucket.name}/run"

    def run(epochs: int) -> list[float]:
        return fit(folder, epochs, io=VarveCheckpointIO(asynchronous=asynchronous), save_last=True)

    assert run(3) == uninterrupted[:12]
    assert whole_in(folder) == ["epoch=1.ckpt", "epoch=2.ckpt", "last.ckpt"]
    assert run(5) == uninterrupted[12:]
    assert "epoch=4.ckpt" in whole_in(folder)


def test_a_damaged_checkpoint_is_passed_over(
    bucket: Any, uninterrupted: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    folder = f"s3://{bucket.name}/run"
    fit(folder, 3)
    (data,) = [
        one.key
        for one in bucket.objects.filter(Prefix="run/epoch=2.ckpt/")
        if one.key.endswith(".safetensors")
    ]
    stored = bytearray(bucket.Object(data).get()["Body"].read())
    stored[-5] ^= 1
    bucket.put_object(Key=data, Body=bytes(stored))
    assert fit(folder, 5) == uninterrupted[8:]
    assert "epoch=2.ckpt is passed over" in caplog.text


def test_a_name_that_is_taken_is_not_saved_over(bucket: Any) -> None:
    folder = f"s3://{bucket.name}/run"
    fit(folder, 1)  # s3fs lists the folder in the next run, and keeps that list.
    fit(folder, 1, filename="fixed", monitor=None, save_top_k=1, ckpt_path=None)
    fit(folder, 2, filename="fixed", monitor=None, save_top_k=1, ckpt_path=None)
    assert "fixed-v1.ckpt" in whole_in(folder)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "model_parallel"])
def test_two_ranks_save_and_one_resumes(
    strategy: str, bucket: Any, uninterrupted: list[float]
) -> None:
    folder = f"s3://{bucket.name}/run"
    options = {"strategy": strategy}
    run_ranks(2, fit_on_ranks, folder, 3, options)
    assert whole_in(folder) == ["epoch=1.ckpt", "epoch=2.ckpt"]
    [resumed] = run_ranks(1, fit_on_ranks, folder, 5, options)
    assert resumed == uninterrupted[12:]


def test_a_path_that_is_given_is_loaded(
    bucket: Any, uninterrupted: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = f"s3://{bucket.name}/run"
    monkeypatch.chdir(tmp_path)
    fit(folder, 2)
    assert fit(folder, 3, ckpt_path=f"{folder}/epoch=0.ckpt") == uninterrupted[4:12]
    assert os.listdir() == []
