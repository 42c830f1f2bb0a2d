"""Backup and restore: copies a database at one moment while writers and the maintainer continue.

    1  the store copies itself in one transaction, so tables, log, views and the batch record are consistent
    2  the run files that this batch record lists are hard-linked, so that garbage collection after a compaction cannot
       delete them, and then copied; if one is deleted already, steps 1 and 2 are repeated
    3  the copy is renamed to its final name, so a backup under that name is complete

A backup is a database: it can be opened, audited and read in its directory. Restoring copies it to another directory
and gives the copy a new identity, because a token of a write after the backup must not be valid for the restored
database.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from viewkeeper import failpoints
from viewkeeper.errors import BadValue, StoreError
from viewkeeper.model.intake.arguments import shorten
from viewkeeper.state.manifest import Manifest
from viewkeeper.store.contract.store import Store
from viewkeeper.store.registry import open_store

_ATTEMPTS = 5
_COPY_CHUNK_BYTES = 1 << 24
_DIRECTORY_MODE = 0o700
Progress = Callable[[int], None]
"""Called with the number of bytes after each piece that was copied."""


def back_up(store: Store, directory: str | os.PathLike[str], progress: Progress = lambda _: None) -> int:
    """Copy the database to a new directory and return the number of bytes."""
    target = _parse_directory(directory)
    _refuse_existing(target)
    partial_copy = target.with_name(f"{target.name}.part")
    shutil.rmtree(partial_copy, ignore_errors=True)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(_ATTEMPTS):
            partial_copy.mkdir(mode=_DIRECTORY_MODE)
            store.copy_to(partial_copy)
            failpoints.hit("backup.copied")
            if _copy_runs(store, partial_copy, progress):
                partial_copy.rename(target)
                return sum(f.stat().st_size for f in target.rglob("*") if f.is_file())
            shutil.rmtree(partial_copy)
    except OSError as error:
        raise StoreError(
            f"The backup {target} cannot be written: {error.strerror}.", hint="Nothing is left of it."
        ) from error
    finally:
        shutil.rmtree(partial_copy, ignore_errors=True)
    raise StoreError(
        f"Run files went away while {store.url} was copied, {_ATTEMPTS} times.", hint="Back up to the same file system."
    )


def restore(backup: str | os.PathLike[str], url: str, progress: Progress = lambda _: None) -> int:
    """Create a database from a backup at an unused path and return the number of bytes."""
    source = _parse_directory(backup)
    backup_scheme = _store_scheme(source)
    with _open_url(f"{backup_scheme}:{source}") as copied:
        copied.published_batch()  # raises before anything is written if the backup is no database
    scheme, _, path = url.partition(":")
    if scheme.lower() != backup_scheme:
        raise BadValue(f"This backup cannot be restored to {url}.", hint=f"Name a directory: {backup_scheme}:PATH.")
    target = Path(path).expanduser()
    _refuse_existing(target)
    partial_copy = target.with_name(f"{target.name}.part")
    shutil.rmtree(partial_copy, ignore_errors=True)
    try:
        partial_copy.mkdir(mode=_DIRECTORY_MODE, parents=True)
        for file in sorted(f for f in source.rglob("*") if f.is_file() and f.name not in _PROCESS_FILES):
            copy = partial_copy / file.relative_to(source)
            copy.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
            _copy_file(file, copy, progress)
        with _open_url(f"{backup_scheme}:{partial_copy}", "w") as restored:
            restored.renew_identity()
        partial_copy.rename(target)
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror}.", hint="Nothing is left of it.") from error
    finally:
        shutil.rmtree(partial_copy, ignore_errors=True)
    return sum(f.stat().st_size for f in target.rglob("*") if f.is_file())


_PROCESS_FILES = ("lock.mdb", "LOCK", "maintainer.lock")
"""Files that belong to the processes which have the database open; they are not copied."""

_SCHEME_BY_FILE = {"CURRENT": "rocksdb"}
"""The store scheme by a file that its directory contains. Any other directory is LMDB's, or no database."""


def _store_scheme(copy: Path) -> str:
    return next((scheme for file, scheme in _SCHEME_BY_FILE.items() if (copy / file).exists()), "lmdb")


def _copy_runs(store: Store, partial_copy: Path, progress: Progress) -> bool:
    """Copy the run files that the copied batch record lists; False if one of them was deleted."""
    progress(sum(file.stat().st_size for file in partial_copy.iterdir()))
    with _open_url(f"{_store_scheme(partial_copy)}:{partial_copy}") as copied:
        batch = copied.published_batch()
    record = {} if batch is None else batch.record
    manifests = [record[n] for n in ("manifest",) if n in record] + list(record.get("sets", {}).values())
    names = sorted({name for manifest in manifests for name in Manifest.from_json(manifest).files()})
    source, link_directory, state_directory = Path(store.state_path), partial_copy / "linked", partial_copy / "state"
    link_directory.mkdir(mode=_DIRECTORY_MODE)
    state_directory.mkdir(mode=_DIRECTORY_MODE)
    try:
        for name in names:
            _link_or_copy(source / name, link_directory / name)
    except FileNotFoundError:
        return False
    for name in names:
        _copy_file(link_directory / name, state_directory / name, progress)
    shutil.rmtree(link_directory)
    for name in _PROCESS_FILES:
        (partial_copy / name).unlink(missing_ok=True)
    return True


def _link_or_copy(source: Path, target: Path) -> None:
    """Hard-link the file, so that deleting the original keeps its content; copy it to another file system."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        shutil.copyfile(source, target)


def _copy_file(source: Path, target: Path, progress: Progress) -> None:
    target.touch(mode=0o600)
    with source.open("rb") as reader, target.open("wb") as writer:
        while piece := reader.read(_COPY_CHUNK_BYTES):
            writer.write(piece)
            progress(len(piece))
        writer.flush()
        os.fsync(writer.fileno())


@contextmanager
def _open_url(url: str, mode: str = "r") -> Iterator[Store]:
    store = open_store(url, mode)
    try:
        yield store
    finally:
        store.close()


def _parse_directory(directory: Any) -> Path:
    if not isinstance(directory, (str, os.PathLike)):
        raise BadValue(f"A directory is a path, not {shorten(directory)}.", hint="Give a text or a Path.")
    path = Path(directory).expanduser()
    if not path.name:
        raise BadValue(f"{directory!r} names no directory of its own.", hint="Name one that is not there yet.")
    return path


def _refuse_existing(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise BadValue(f"{target} is there already.", hint="Name a directory that is not there yet.")
