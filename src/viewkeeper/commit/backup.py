"""Backups: a database as it was at one moment, taken while writers and the maintainer go on.

    1  the store copies itself, in one of its own transactions: tables, log, views and the batch record agree
    2  the run files that this batch record lists are linked before a merge can take them away, then copied; if one is
       gone already, both steps are done again
    3  the copy gets its name: what is there by that name is whole

A backup is a database: it can be opened, audited and read where it lies. Restoring copies it to another place and gives
it another identity, because a token of what was written after the backup must not pass for one of what comes now.
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
"""Told how many bytes were copied, each time some were."""


def back_up(store: Store, directory: str | os.PathLike[str], progress: Progress = lambda _: None) -> int:
    """Copy the database to a directory that is not there yet; the number of bytes."""
    target = _parse_directory(directory)
    _refuse_existing(target)
    part = target.with_name(f"{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(_ATTEMPTS):
            part.mkdir(mode=_DIRECTORY_MODE)
            store.copy_to(part)
            failpoints.hit("backup.copied")
            if _copy_runs(store, part, progress):
                part.rename(target)
                return sum(f.stat().st_size for f in target.rglob("*") if f.is_file())
            shutil.rmtree(part)
    except OSError as error:
        raise StoreError(
            f"The backup {target} cannot be written: {error.strerror}.", hint="Nothing is left of it."
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    raise StoreError(
        f"Run files went away while {store.url} was copied, {_ATTEMPTS} times.", hint="Back up to the same file system."
    )


def restore(backup: str | os.PathLike[str], url: str, progress: Progress = lambda _: None) -> int:
    """Make a database of a backup, where there is none; the number of bytes."""
    source = _parse_directory(backup)
    kind = _store_scheme(source)
    with _open_url(f"{kind}:{source}") as copied:
        copied.published_batch()  # an error here, before anything is written, if it is no database
    scheme, _, place = url.partition(":")
    if scheme.lower() != kind:
        raise BadValue(f"This backup cannot be restored to {url}.", hint=f"Name a directory: {kind}:PATH.")
    target = Path(place).expanduser()
    _refuse_existing(target)
    part = target.with_name(f"{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(mode=_DIRECTORY_MODE, parents=True)
        for file in sorted(f for f in source.rglob("*") if f.is_file() and f.name not in _PROCESS_FILES):
            to = part / file.relative_to(source)
            to.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
            _copy_file(file, to, progress)
        with _open_url(f"{kind}:{part}", "w") as made:
            made.renew_identity()
        part.rename(target)
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror}.", hint="Nothing is left of it.") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return sum(f.stat().st_size for f in target.rglob("*") if f.is_file())


_PROCESS_FILES = ("lock.mdb", "LOCK", "maintainer.lock")
"""Files of the processes that have the database open, not of the database."""

_SCHEME_BY_FILE = {"CURRENT": "rocksdb"}
"""By a file that they have, the stores of which a copy may be; all else is LMDB's, or no database."""


def _store_scheme(copy: Path) -> str:
    return next((scheme for mark, scheme in _SCHEME_BY_FILE.items() if (copy / mark).exists()), "lmdb")


def _copy_runs(store: Store, partial_copy: Path, progress: Progress) -> bool:
    """Copy the run files that the copy's batch record lists; False if one of them is gone."""
    progress(sum(file.stat().st_size for file in partial_copy.iterdir()))
    with _open_url(f"{_store_scheme(partial_copy)}:{partial_copy}") as copied:
        batch = copied.published_batch()
    record = {} if batch is None else batch.record
    manifests = [record[n] for n in ("manifest",) if n in record] + list(record.get("sets", {}).values())
    names = sorted({name for m in manifests for name in Manifest.from_json(m).files()})
    source, held, kept = Path(store.state_path), partial_copy / "linked", partial_copy / "state"
    held.mkdir(mode=_DIRECTORY_MODE)
    kept.mkdir(mode=_DIRECTORY_MODE)
    try:
        for name in names:
            _link_or_copy(source / name, held / name)
    except FileNotFoundError:
        return False
    for name in names:
        _copy_file(held / name, kept / name, progress)
    shutil.rmtree(held)
    for name in _PROCESS_FILES:
        (partial_copy / name).unlink(missing_ok=True)
    return True


def _link_or_copy(source: Path, target: Path) -> None:
    """The file by another name, so that it stays; on another file system a copy."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        shutil.copyfile(source, target)


def _copy_file(source: Path, target: Path, progress: Progress) -> None:
    target.touch(mode=0o600)
    with source.open("rb") as given, target.open("wb") as taken:
        while piece := given.read(_COPY_CHUNK_BYTES):
            taken.write(piece)
            progress(len(piece))
        taken.flush()
        os.fsync(taken.fileno())


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
    found = Path(directory).expanduser()
    if not found.name:
        raise BadValue(f"{directory!r} names no directory of its own.", hint="Name one that is not there yet.")
    return found


def _refuse_existing(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise BadValue(f"{target} is there already.", hint="Name a directory that is not there yet.")
