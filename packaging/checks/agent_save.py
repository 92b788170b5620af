"""Checks that the agent of a wheel writes the save of a trainer that was killed. Needs torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile

import torch

import varve.agent
import varve.torch

TRAINER = """
import sys, time, torch, varve.torch
state = {"w": torch.arange(1 << 24), "step": 7}
save = varve.torch.async_save(state, sys.argv[1], executor="process")
save.wait_staged()
print("submitted", flush=True)
time.sleep(600)
"""


def main() -> None:
    """Submits a save, kills the trainer, drains the agent, reads the checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["VARVE_AGENT_DIR"] = os.path.join(folder, "agent")
        path = os.path.join(folder, "step-7")
        trainer = subprocess.Popen(
            [sys.executable, "-c", TRAINER, path], stdout=subprocess.PIPE, text=True
        )
        assert trainer.stdout is not None
        assert trainer.stdout.readline().strip() == "submitted"
        trainer.kill()
        assert trainer.wait() == -signal.SIGKILL
        varve.agent.drain(60)
        state = varve.torch.read(path)
        assert state["step"] == 7 and torch.equal(state["w"], torch.arange(1 << 24))
        varve.agent.stop(60)
        print(f"torch {torch.__version__}: the agent wrote the save of a trainer that was killed")


if __name__ == "__main__":
    main()
