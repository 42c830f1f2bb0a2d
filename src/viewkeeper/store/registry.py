"""Registry of stores by URL scheme: `lmdb:PATH`, `rocksdb:PATH`, `hbase://host:port/namespace`, and others by entry
points.

A scheme's module is imported when it is first used, so a store whose package is missing costs nothing until then. Other
packages add a scheme by an entry point of group `viewkeeper.stores`, whose name is the scheme and whose value is a
callable `(url, mode, **options) -> Store`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from viewkeeper.errors import BadValue, MissingDependency
from viewkeeper.model.intake import arguments
from viewkeeper.store.contract.store import Store

ENTRY_POINT_GROUP = "viewkeeper.stores"

_BUILT_IN = {
    "lmdb": "viewkeeper.store.lmdb:open_url",
    "rocksdb": "viewkeeper.store.rocksdb:open_url",
}
PATH_SCHEMES = ("lmdb", "rocksdb")
"""Schemes whose URLs are paths."""

_EXTRAS = {"hbase": "hbase", "rocksdb": "rocksdb"}


def open_store(url: str | os.PathLike[str], mode: str = "w", **options: Any) -> Store:
    """Open the database at a URL or path; `mode` is 'w' (created if absent) or 'r'. `options` are specific to the
    store."""
    if isinstance(url, os.PathLike):
        path = os.fsdecode(url)
        url = path if path.startswith("lmdb:") else f"lmdb:{path}"
    arguments.check_text(url, "A database's URL", "Write for example 'lmdb:./shop', or give a Path.")
    scheme, colon, _ = url.partition(":")
    if not colon:
        example = f"lmdb:{url}" if url and not set(url) & set(":?") else "lmdb:./shop"
        raise BadValue(f"{url!r} is not a store's URL.", hint=f"Write for example {example!r}.")
    opener = _find_opener(scheme.lower())
    try:
        return opener(url, mode, **options)
    except ImportError as error:
        raise _missing_package(scheme.lower(), error) from error
    except TypeError as error:
        if "unexpected keyword argument" in str(error):
            unknown = str(error).rpartition("argument ")[2]
            raise BadValue(
                f"The store {scheme}: has no option {unknown}.", hint="docs/stores.md lists each store's options."
            ) from error
        raise


def schemes() -> list[str]:
    """Return every scheme that can be opened."""
    return sorted({*_BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def _find_opener(scheme: str) -> Callable[..., Store]:
    if scheme in _BUILT_IN:
        module, _, name = _BUILT_IN[scheme].partition(":")
        try:
            opener: Callable[..., Store] | None = getattr(import_module(module), name, None)
        except ImportError as error:
            raise _missing_package(scheme, error) from error
        if opener is not None:
            return opener
    for point in entry_points(group=ENTRY_POINT_GROUP, name=scheme):
        found: Callable[..., Store] = point.load()
        return found
    if scheme in ("http", "https"):
        raise BadValue(
            "This works on the database itself, not through a server.",
            hint="Run it where the database is, with its own URL. Through a server: vk.connect in Python; on the "
            "command line get, scan, put, delete, load, sql, watch, status, explain.",
        )
    raise BadValue(f"There is no store for {scheme!r} URLs.", hint=f"Known schemes: {', '.join(schemes())}.")


def _missing_package(scheme: str, error: ImportError) -> MissingDependency:
    extra = _EXTRAS.get(scheme)
    return MissingDependency(
        f"The store {scheme}: needs a package that is not installed ({error}).",
        hint=f"Run: pip install 'viewkeeper[{extra}]'." if extra else "Install viewkeeper again.",
    )
