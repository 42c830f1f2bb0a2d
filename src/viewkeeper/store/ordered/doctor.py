"""The checks of `vk doctor` for a database over an ordered map: checksums, the log's length, space, permissions."""

from __future__ import annotations

import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from viewkeeper.errors import CorruptState
from viewkeeper.resources.directory import StateDirectory
from viewkeeper.store.contract.commits import Finding
from viewkeeper.store.ordered import batch_record, lease, log_format, metadata
from viewkeeper.store.ordered.maps import Database

_MIN_FREE_FRACTION = 0.05
"""Fraction of free disk space below which the disk counts as almost full."""


def examine_database(database: Database, state: Path) -> Iterator[Finding]:
    yield Finding("format", True, f"format {database.format}, the newest that this version knows")
    yield from _check_records(database)
    yield from _check_log(database)
    yield _check_disk_space(database, state)
    yield _check_permissions(database.path, state)
    yield from database.examine()
    yield Finding("maintainer", True, lease.lease_holder(database.path) or "nobody maintains now")


def _check_records(database: Database) -> Iterator[Finding]:
    readers: dict[str, Any] = {"catalog": metadata.read_catalog, "batch": batch_record.read_batch}
    advice = {
        "catalog": "Restore the database from a copy: nothing else knows what the tables' bytes mean.",
        "batch": "Refresh: all state is made anew from the tables.",
    }
    for name, read in readers.items():
        try:
            with database.read() as state:
                read(state.meta)
            yield Finding(f"{name} record", True, "its checksum is right")
        except CorruptState as damage:
            yield Finding(f"{name} record", False, damage.message, advice[name])


def _check_log(database: Database) -> Iterator[Finding]:
    """Check the checksum of every log entry of all tables, and report the holds that retain the log."""
    count = size = 0
    bad: list[int] = []
    with database.read(only_log=True) as state:
        floor = metadata.read_counter(state.meta, metadata.FLOOR)
        head = metadata.read_counter(state.meta, metadata.HEAD)
        for position, body in log_format.scan_chunks(state.log):
            count, size = count + 1, size + len(body)
            if not log_format.has_valid_checksum(body):
                bad.append(position)
    with database.read() as state:
        holds = metadata.read_holds(state.meta, time.time())
    summary = f"{count} entries, {size / 1e6:.1f} MB, positions {floor + 1} to {head}" if count else "empty"
    if bad:
        first = ", ".join(map(str, bad[:5]))
        advice = "Refresh: if the views do not have these changes yet, they are made anew from the tables."
        yield Finding("change log", False, f"{summary}; {len(bad)} damaged: position {first}", advice)
    else:
        yield Finding("change log", True, f"{summary}; every checksum is right")
    oldest = min(holds, key=lambda h: h.position, default=None)
    if oldest is not None:
        until = "until it is released" if oldest.expiry is None else f"for {oldest.expiry - time.time():.0f} s more"
        message = f"{len(holds)} holds; {oldest.name!r} keeps everything after position {oldest.position}, {until}"
        is_unlimited = oldest.expiry is None and head - oldest.position > 100_000
        yield Finding(
            "log retention", not is_unlimited, message, "Release the hold if nobody comes back." if is_unlimited else ""
        )


def _check_disk_space(database: Database, state: Path) -> Finding:
    disk = shutil.disk_usage(database.path)
    files = StateDirectory(state).total_bytes("*.vkr")  # files may be deleted meanwhile
    is_almost_full = disk.free < max(_MIN_FREE_FRACTION * disk.total, files)
    sizes = f"the database has {database.used_bytes() / 1e9:.3f} GB, its state {files / 1e9:.3f} GB"
    advice = "Free some space: merging state needs as much again as the state has." if is_almost_full else ""
    return Finding("disk space", not is_almost_full, f"{disk.free / 1e9:.1f} GB free; {sizes}", advice)


def _check_permissions(path: Path, state: Path) -> Finding:
    # If only the owner can enter a directory, other users see nothing in it.
    directories = [
        p
        for p in dict.fromkeys((path, state))
        if p.exists() and _is_shared_access(p) and not _is_protected(p.parent, path)
    ]
    exposed = [p for directory in directories for p in (directory, *directory.glob("*")) if _is_shared_access(p)]
    if exposed:
        names = ", ".join(p.name for p in exposed[:5])
        return Finding("permissions", False, f"others may read or write {names}", f"chmod -R go-rwx {path}")
    return Finding("permissions", True, "only its owner can read it")


def _is_shared_access(path: Path) -> bool:
    try:
        return bool(stat.S_IMODE(path.stat().st_mode) & 0o077)
    except FileNotFoundError:  # it was deleted after it was listed
        return False


def _is_protected(directory: Path, path: Path) -> bool:
    """Return whether the directory is the database's own directory or in it, and closed to other users."""
    return (directory == path or path in directory.parents) and not _is_shared_access(path)
