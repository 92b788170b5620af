"""A failed save or load, as every rank raises it."""

from __future__ import annotations

import pickle
import traceback

from torch.distributed.checkpoint.api import WRAPPED_EXCEPTION, CheckpointException

from varve._core import name_ranks
from varve.errors import CheckpointNotFoundError, Error

#: Distinct causes that a message spells out; `failures` has all of them.
_MAX_CAUSES = 8


class CheckpointError(Error, CheckpointException):
    """A save or load failed on some rank; raised on every rank, with the same content.

    An ordinary exception (`except Exception` catches it, `except varve.Error` too) that also passes
    torch's `except CheckpointException`, which derives from BaseException alone.

    Attributes:
        failures: {rank: (exception, traceback)} of the ranks that failed, numbered within the
            process group; where the engine saved, at most 64. The message names them and their causes.
            `rank` is the lowest of them, `code` and `path` are those of its error, where that is one of
            ours.
    """

    def __init__(self, message: str, failures: dict[int, WRAPPED_EXCEPTION]) -> None:
        CheckpointException.__init__(self, message, failures)

    def __str__(self) -> str:
        return str(self.args[0])


class NoCheckpointError(CheckpointError, CheckpointNotFoundError):
    """There is nothing to load on the lowest rank that failed; a FileNotFoundError too."""

    def __init__(self, message: str, failures: dict[int, WRAPPED_EXCEPTION]) -> None:
        CheckpointNotFoundError.__init__(self, message)
        CheckpointException.__init__(self, message, failures)


def checkpoint_error(what: str, error: CheckpointException, rank: int) -> BaseException:
    """Returns the exception to raise in place of torch's own.

    Ctrl-C on this rank stays a KeyboardInterrupt: code that catches failed saves does not mean
    that.
    """
    here = error.failures.get(rank)
    if here is not None and not isinstance(here[0], (Exception, CheckpointException)):
        return here[0]
    if isinstance(error, CheckpointError):
        return error
    lowest = min(error.failures, default=None)
    first = None if lowest is None else error.failures[lowest][0]
    ranks_by_cause: dict[str, list[int]] = {}
    for failed, (cause, _) in sorted(error.failures.items()):
        ranks_by_cause.setdefault(f"{type(cause).__name__}: {cause}", []).append(failed)
    causes = [f"{name_ranks(ranks)}: {cause}" for cause, ranks in ranks_by_cause.items()]
    if len(causes) > _MAX_CAUSES:
        causes[_MAX_CAUSES:] = [f"and {len(causes) - _MAX_CAUSES} more causes"]
    step = error.args[0] if error.args else "?"
    text = f"{what} failed (step: {step}); {'; '.join(causes)}"
    absent = isinstance(first, CheckpointNotFoundError)
    if absent and len(causes) == 1:
        text = f"{what.split(' ')[0]}: {first}"
    made = (NoCheckpointError if absent else CheckpointError)(text, error.failures)
    made.rank = lowest
    if isinstance(first, Error):
        made.code, made.path, made.reason = first.code, first.path, first.reason
    if isinstance(made, NoCheckpointError):
        made.filename = (
            made.path
        )  # The message has all there is to know: no cause with a traceback.
    else:
        made.__cause__ = next((cause for cause, _ in error.failures.values()), None)
    return made


def from_engine(
    what: str, step: str, error: BaseException, rank: int, this_rank: int
) -> BaseException:
    """Returns the same for an error of the engine; `rank` failed where it names none."""
    failures: dict[int, BaseException] = {}
    if isinstance(error, Error):
        failures |= error.of_ranks
        rank = rank if error.rank is None else error.rank
    causes = {failed: wrapped(cause) for failed, cause in (failures or {rank: error}).items()}
    return checkpoint_error(what, CheckpointException(step, causes), this_rank)


def portable(error: BaseException) -> BaseException:
    """Returns the exception, or one with its message that other ranks can unpickle."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__)
    return error


def wrapped(error: BaseException) -> WRAPPED_EXCEPTION:
    """Returns an exception and its traceback as `CheckpointException.failures` has them, to be pickled."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [(frame.filename, frame.lineno or 0, frame.name, frame.line) for frame in frames]
    return error, traceback.StackSummary.from_list(lines)
