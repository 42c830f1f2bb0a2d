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
from viewkeeper.model.intake.arguments import short
from viewkeeper.state.manifest import Manifest
from viewkeeper.store.contract.store import Store
from viewkeeper.store.registry import open_store

_ATTEMPTS = 5
_AT_ONCE = 1 << 24
_PRIVATE = 0o700
Progress = Callable[[int], None]
"""Told how many bytes were copied, each time some were."""


def back_up(store: Store, place: str | os.PathLike[str], progress: Progress = lambda _: None) -> int:
    """Copy the database to a directory that is not there yet; the number of bytes."""
    target = _path(place)
    _refuse_there(target)
    part = target.with_name(f"{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(_ATTEMPTS):
            part.mkdir(mode=_PRIVATE)
            store.copy_to(part)
            failpoints.point("backup.copied")
            if _with_runs(store, part, progress):
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
    source = _path(backup)
    kind = _kind(source)
    with _opened(f"{kind}:{source}") as copied:
        copied.published()  # an error here, before anything is written, if it is no database
    scheme, _, place = url.partition(":")
    if scheme.lower() != kind:
        raise BadValue(f"This backup cannot be restored to {url}.", hint=f"Name a directory: {kind}:PATH.")
    target = Path(place).expanduser()
    _refuse_there(target)
    part = target.with_name(f"{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(mode=_PRIVATE, parents=True)
        for file in sorted(f for f in source.rglob("*") if f.is_file() and f.name not in _OWN):
            to = part / file.relative_to(source)
            to.parent.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
            _copied(file, to, progress)
        with _opened(f"{kind}:{part}", "w") as made:
            made.renew_identity()
        part.rename(target)
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror}.", hint="Nothing is left of it.") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return sum(f.stat().st_size for f in target.rglob("*") if f.is_file())


_OWN = ("lock.mdb", "LOCK", "maintainer.lock")
"""Files of the processes that have the database open, not of the database."""

_MARKS = {"CURRENT": "rocksdb"}
"""By a file that they have, the stores of which a copy may be; all else is LMDB's, or no database."""


def _kind(copy: Path) -> str:
    return next((scheme for mark, scheme in _MARKS.items() if (copy / mark).exists()), "lmdb")


def _with_runs(store: Store, part: Path, progress: Progress) -> bool:
    """Copy the run files that the copy's batch record lists; False if one of them is gone."""
    progress(sum(file.stat().st_size for file in part.iterdir()))
    with _opened(f"{_kind(part)}:{part}") as copied:
        batch = copied.published()
    record = {} if batch is None else batch.record
    manifests = [record[n] for n in ("manifest",) if n in record] + list(record.get("sets", {}).values())
    names = sorted({name for m in manifests for name in Manifest.from_json(m).files()})
    source, held, kept = Path(store.state_path), part / "linked", part / "state"
    held.mkdir(mode=_PRIVATE)
    kept.mkdir(mode=_PRIVATE)
    try:
        for name in names:
            _linked(source / name, held / name)
    except FileNotFoundError:
        return False
    for name in names:
        _copied(held / name, kept / name, progress)
    shutil.rmtree(held)
    for name in _OWN:
        (part / name).unlink(missing_ok=True)
    return True


def _linked(source: Path, target: Path) -> None:
    """The file by another name, so that it stays; on another file system a copy."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        shutil.copyfile(source, target)


def _copied(source: Path, target: Path, progress: Progress) -> None:
    target.touch(mode=0o600)
    with source.open("rb") as given, target.open("wb") as taken:
        while piece := given.read(_AT_ONCE):
            taken.write(piece)
            progress(len(piece))
        taken.flush()
        os.fsync(taken.fileno())


@contextmanager
def _opened(url: str, mode: str = "r") -> Iterator[Store]:
    store = open_store(url, mode)
    try:
        yield store
    finally:
        store.close()


def _path(place: Any) -> Path:
    if not isinstance(place, (str, os.PathLike)):
        raise BadValue(f"A directory is a path, not {short(place)}.", hint="Give a text or a Path.")
    found = Path(place).expanduser()
    if not found.name:
        raise BadValue(f"{place!r} names no directory of its own.", hint="Name one that is not there yet.")
    return found


def _refuse_there(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise BadValue(f"{target} is there already.", hint="Name a directory that is not there yet.")
