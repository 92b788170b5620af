"""Object stores of your own: a class of eight methods, and one call that registers it.

`varve.register_storage("mem", store)` makes every function of Varve take `mem://bucket/run/step-1`, in
this process. `varve.testing.StorageConformance` tests whether a store keeps its promises.
docs/storage.md has a complete example.
"""

from __future__ import annotations

from varve.storage._keys import S3Credentials, set_s3_credentials
from varve.storage._registry import register_storage, unregister_storage
from varve.storage._store import ObjectInfo, ObjectStore, one_level

__all__ = [
    "ObjectInfo",
    "ObjectStore",
    "S3Credentials",
    "one_level",
    "register_storage",
    "set_s3_credentials",
    "unregister_storage",
]
