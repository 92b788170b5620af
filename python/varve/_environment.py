"""What `import varve` does at the request of environment variables."""

from __future__ import annotations

import os

from varve.errors import InvalidArgumentError


def install_dcp_if_asked() -> None:
    """Calls `varve.torch.dcp.install` where VARVE_DCP is "1". Only then is torch imported.

    Raises:
        InvalidArgumentError: VARVE_DCP is neither "1", nor "0", nor empty.
        ImportError: torch cannot be imported.
    """
    asked = os.environ.get("VARVE_DCP", "")
    if asked in ("", "0"):
        return
    if asked != "1":
        raise InvalidArgumentError(
            f'import varve: VARVE_DCP="{asked}" in the environment: want "1" to save and load with Varve '
            'wherever torch.distributed.checkpoint is called, "0" or nothing not to'
        )
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(
            "import varve: VARVE_DCP=1 in the environment asks for torch, which is not installed: pip "
            'install "varve[torch]", or unset VARVE_DCP',
            name="torch",
        ) from error
    import varve.torch.dcp

    varve.torch.dcp.install()
