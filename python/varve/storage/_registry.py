"""The stores of this process, by scheme."""

from __future__ import annotations

import re
from typing import Any, Literal

from varve import _arguments
from varve._core import storage as _core_storage
from varve.errors import CheckpointExistsError, InvalidArgumentError
from varve.storage._store import ObjectStore, has_uploads

#: Schemes that obstore serves, when one is first used and no store is registered for it.
_OBSTORE = re.compile("(gs|az|abfss?)://")


def register_storage(
    scheme: str,
    store: ObjectStore,
    *,
    replace: bool = False,
    publish: Literal["auto", "strict"] = "auto",
) -> None:
    """Makes Varve's functions take names `SCHEME://...`, which `store` serves, in this process.

    Ranks are processes: each registers the store. A forked child has it too. The command line and the
    agent are other programs and do not see it.

    Args:
        scheme: Two or more lower-case letters, digits, "+", "-" or ".", the first a letter. Not one
            that Varve serves itself (file, s3, r2, weka, http, https).
        store: The store; `varve.testing` tests it.
        replace: Take the place of a store that is registered for the scheme.
        publish: "strict" refuses to save where the store's `put` does not heed `if_absent`. "auto" warns
            instead: of two saves that publish one name in the same moment the later one then wins
            without a message. Before the first save below a first component the store is asked.

    Raises:
        InvalidArgumentError: The scheme, or what is given as a store, is none.
        CheckpointExistsError: A store is registered for the scheme, and `replace` is false.
    """
    if not isinstance(scheme, str):
        raise _arguments.refuse("scheme", scheme, "a str")
    if not isinstance(store, ObjectStore):
        raise InvalidArgumentError(
            f"register a storage for {scheme!r}: want an instance of a subclass of "
            f"varve.storage.ObjectStore, not {_what(store)}"
        )
    if publish not in ("auto", "strict"):
        raise _arguments.refuse("publish", publish, '"auto" or "strict"')
    _core_storage.register_store(
        scheme,
        store,
        store.part_bytes,
        has_uploads(store),
        publish == "auto",
        _arguments.flag("replace", replace),
    )


def _what(store: Any) -> str:
    return f"the class {store.__name__}" if isinstance(store, type) else type(store).__name__


def unregister_storage(scheme: str) -> None:
    """Takes a registration back. Files that are open stay usable.

    Raises:
        CheckpointNotFoundError: None is registered.
    """
    _core_storage.unregister_store(scheme)


def register_obstore_for(path: str) -> None:
    """Registers obstore's store for the scheme of `path`, where it is one of obstore's and has no store yet.

    Raises:
        InvalidArgumentError: obstore is not installed.
    """
    found = _OBSTORE.match(path)
    if found is None or found[1] in _core_storage.registered_schemes():
        return
    try:
        from varve.storage.obstore import ObstoreStore
    except ImportError as error:
        raise InvalidArgumentError(
            f"{path!r}: {found[1]}:// is served through the package obstore, which cannot be imported "
            f"({error}): pip install varve[obstore]"
        ) from None
    try:
        register_storage(found[1], ObstoreStore.of_scheme(found[1]))
    except CheckpointExistsError:
        return  # Another thread was faster.
