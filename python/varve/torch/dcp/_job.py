"""A save: what is to be saved, and the future of one in the background."""

from __future__ import annotations

import dataclasses
import os
from concurrent.futures import Future
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlanner

from varve.torch.dcp._errors import CheckpointError
from varve.torch.dcp._names import name_of
from varve.torch.dcp._ranks import Group, together
from varve.torch.dcp._stateful import plain_of


class AsyncSave(Future[Metadata]):
    """A save under way: a future of its Metadata, with the two futures of an AsyncSaveResponse.

    Attributes:
        staging_completion: The copy has been made; done when `async_save` returns, unless a stager
            makes it in the background.
        upload_completion: This future.
    """

    def __init__(self) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self.staging_completion: Future[None] = Future()

    @property
    def upload_completion(self) -> AsyncSave:
        """This future."""
        return self


@dataclasses.dataclass
class Job:
    """The arguments of a call of `save` or `async_save`, and the state of its objects at the call.

    Attributes:
        what: "save PATH", for messages.
        group: The ranks that save.
        checkpoint_id: As in the call.
        renames: A writer and a `checkpoint_id` were both given: the writer is to save under that name.
        writer: The one given, or the one that was found.
        planner: As in the call.
        use_collectives: As in the call.
        state: The state with plain dicts in place of objects; None where `failure` is set.
        failure: The error of an object's `state_dict` on this rank. The other ranks have to receive it:
            they are about to wait for this one.
    """

    what: str
    group: Group
    checkpoint_id: str | os.PathLike[str] | None
    renames: bool
    writer: Any
    planner: SavePlanner | None
    use_collectives: bool
    state: dict[str, Any] | None = None
    failure: BaseException | None = None

    def ask(self, state_dict: dict[str, Any]) -> None:
        """Sets `state` or `failure`: asks the objects of a state for theirs."""
        try:
            self.state = plain_of(state_dict)
        except BaseException as error:  # Also Ctrl-C.
            self.failure = error

    def begin(self, state_dict: dict[str, Any]) -> None:
        """Gives the writer its name, and asks the objects: the begin of a save in the call."""
        try:
            self.reset()
        except BaseException as error:
            self.failure = error
        else:
            self.ask(state_dict)

    def failed(self) -> AsyncSave | None:
        """Returns the save, failed, where an object of some rank has no state. Collective."""
        try:
            with together(self.what, self.group) as ranks:
                ranks.each("state_dict", self._report)
        except CheckpointError as error:
            made = AsyncSave()
            made.set_exception(error)
            made.staging_completion.set_exception(error)
            return made
        return None

    def _report(self) -> None:
        if self.failure is not None:
            raise self.failure

    @property
    def path(self) -> str:
        """Where a FileSystemWriter is to save, before and after `reset`."""
        if self.renames:
            assert self.checkpoint_id is not None
            return name_of(self.checkpoint_id)
        return str(self.writer.path)

    def reset(self) -> None:
        """Gives the caller's writer the name, if there are both."""
        if self.renames:
            self.writer.reset(self.checkpoint_id)
