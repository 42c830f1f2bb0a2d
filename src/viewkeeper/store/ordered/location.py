"""Checks of a database directory: an existing database, or a path where one can be created."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from viewkeeper.errors import BadValue, NotADatabase, ReadOnly, StoreError


def directory_of(url: str) -> str:
    """Return the path of `scheme:PATH`."""
    scheme, _, path = url.partition(":")
    if not path.strip("/"):
        raise BadValue(f"{url!r} names no directory.", hint=f"Write for example '{scheme}:./shop'.")
    return path


def check_directory(path: Path, mode: str, marker: str) -> None:
    """Raise an error unless the path is a database, which contains the file `marker`, or one can be created there."""
    try:
        if path.exists() and not path.is_dir():
            raise not_a_database(path, "it is a file")
        has_data = (path / marker).exists()
        if mode == "r":
            if not has_data:
                raise not_a_database(path, "there is no database there")
            return
        if has_data:
            return
        if path.is_dir() and any(path.iterdir()):
            raise not_a_database(path, "the directory holds other files")
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
        if not os.access(path, os.W_OK | os.X_OK):
            raise ReadOnly(f"The directory {path} cannot be written.", hint="Check its permissions.")
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise ReadOnly(f"The path {path} cannot be written: {error.strerror}.", hint="Choose another.") from error
        raise StoreError(
            f"The path {path} cannot be used: {error.strerror}.", hint="Choose a directory that can be written."
        ) from error


def not_a_database(path: Path, why: str) -> NotADatabase:
    return NotADatabase(
        f"{path} is not a Viewkeeper database: {why}.",
        hint="Give the directory of a database, or make one: vk init, or vk.open without mode='r'.",
    )
