"""transformers' checkpoints that VarveTrainer copies elsewhere: a real Trainer, and a bucket of a real S3 server."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from frameworks import framework

framework("transformers")
framework("accelerate")

from transformers import AutoModelForCausalLM  # noqa: E402
from transformers_jobs import losses_of, trainer_of  # noqa: E402

import varve  # noqa: E402
from varve.integrations.transformers import VarveSaving  # noqa: E402


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("checkpoint-*"))


def test_each_checkpoint_is_copied_and_a_new_node_goes_on_from_the_copy(
    bucket: Any, tmp_path: Path
) -> None:
    remote = f"s3://{bucket.name}/run"
    whole = trainer_of(tmp_path / "whole", 12)
    whole.train()
    saving = VarveSaving(upload_to=remote)
    trainer_of(tmp_path / "run", 8, saving=saving, save_total_limit=1).train()
    assert checkpoints(tmp_path / "run") == ["checkpoint-8"]
    names = [entry.name for entry in varve.list_checkpoints(remote)]
    assert names == ["checkpoint-4", "checkpoint-8"]
    varve.upload(f"{remote}/checkpoint-8", tmp_path / "new" / "checkpoint-8")
    resumed = trainer_of(tmp_path / "new", 12, saving=saving)
    resumed.train(resume_from_checkpoint=True)
    assert losses_of(resumed) == losses_of(whole)
    AutoModelForCausalLM.from_pretrained(tmp_path / "new" / "checkpoint-8")


@pytest.mark.parametrize("on_failure", ["raise", "log"])
def test_a_failed_copy_is_a_failed_save_and_the_checkpoint_stays(
    tmp_path: Path, on_failure: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "copies").write_text("not a directory")
    saving = VarveSaving(upload_to=tmp_path / "copies", on_failure=on_failure)
    trainer = trainer_of(tmp_path / "run", 8, saving=saving, save_total_limit=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        if on_failure == "raise":
            with pytest.raises(varve.Error, match="copies"):
                trainer.train()
        else:
            trainer.train()
            assert "copies" in caplog.text
            # Nothing is removed for a checkpoint that is not durable in both places.
            assert checkpoints(tmp_path / "run") == ["checkpoint-4", "checkpoint-8"]
    assert varve.verify(tmp_path / "run" / "checkpoint-4") == []
