"""Keys for s3:// from a function of the program's."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from varve import _arguments
from varve._core import storage as _core_storage
from varve.errors import PreconditionError

#: Seconds for which keys of botocore's are used that end, but do not say when. The engine asks five
#: minutes before the end that it knows; botocore looks whether they have to be renewed.
_UNKNOWN_END = 600.0


@dataclass(frozen=True)
class S3Credentials:
    """Keys for a server that speaks S3's protocol. Its repr holds no secret.

    Attributes:
        access_key: The key's id.
        secret_key: The secret.
        token: The session token; None where there is none.
        expires: When they end: a datetime with a time zone, or Unix time in seconds; None: never.
    """

    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    expires: datetime | float | None = None


def set_s3_credentials(
    callback: Callable[[], Any] | None, *, scheme: Literal["s3", "r2", "weka"] = "s3"
) -> None:
    """Sets the function that gives the keys for `s3://` in this process; None unsets it.

    The function is called at the first request after this call, and five minutes before the keys end,
    on a thread of the engine and by one at a time. Where it raises while the old keys are still good,
    they are used up to their end, with a warning. Otherwise requests fail with its error, whose text
    should hold no secret. It must not use `s3://` through Varve itself.

    Example:
        >>> session = boto3.Session(profile_name="training")  # doctest: +SKIP
        >>> varve.set_s3_credentials(session.get_credentials)  # doctest: +SKIP

    Args:
        callback: Returns S3Credentials, or the credentials of botocore (`boto3.Session().get_credentials`
            does), which renew themselves. Then no other place is looked at for keys.
        scheme: "s3", "r2" or "weka".

    Raises:
        InvalidArgumentError: Another scheme, or what cannot be called.
    """
    if callback is not None and not callable(callback):
        raise _arguments.refuse("callback", type(callback).__name__, "a function, or None")
    if not isinstance(scheme, str):
        raise _arguments.refuse("scheme", scheme, '"s3", "r2" or "weka"')
    _core_storage.set_s3_keys(scheme, None if callback is None else lambda: _keys_of(callback()))


def _keys_of(given: Any) -> tuple[str, str, str, int]:
    """Returns access key, secret key, token and end (Unix time; 0: none)."""
    expires: datetime | float | None = None
    if isinstance(given, S3Credentials):
        keys = (given.access_key, given.secret_key, given.token)
        expires = given.expires
    elif hasattr(given, "get_frozen_credentials"):  # It renews what is about to end.
        frozen = given.get_frozen_credentials()
        keys = (frozen.access_key, frozen.secret_key, frozen.token)
        if hasattr(given, "refresh_needed"):  # Keys without an end have no such method.
            expires = getattr(given, "_expiry_time", None) or time.time() + _UNKNOWN_END
    else:
        raise PreconditionError(
            "the credentials function returned "
            + ("None" if given is None else f"a value of the type {type(given).__name__}")
            + ": want varve.storage.S3Credentials, or what boto3.Session().get_credentials() returns"
        )
    access, secret, token = keys
    if not isinstance(access, str) or not isinstance(secret, str) or not access or not secret:
        raise PreconditionError("the credentials function returned keys without id or secret")
    return access, secret, token or "", _seconds(expires)


def _seconds(expires: datetime | float | None) -> int:
    if expires is None:
        return 0
    if isinstance(expires, datetime):
        if expires.tzinfo is None:
            raise PreconditionError(
                "the credentials function returned an end without a time zone: "
                "datetime.now(timezone.utc) has one"
            )
        return int(expires.timestamp())
    return int(expires)
