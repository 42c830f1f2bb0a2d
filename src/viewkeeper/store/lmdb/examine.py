"""What `vk doctor` looks at in an LMDB database: format, every checksum, the log's length, space, and permissions."""

from __future__ import annotations

import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from viewkeeper.errors import CorruptState
from viewkeeper.store.base import Finding
from viewkeeper.store.lmdb import lease, log, records
from viewkeeper.store.lmdb.environment import FORMAT, Environment

_SPARE = 0.05
"""The share of the disk below which a full disk is near."""


def examine(environment: Environment, state_path: str) -> Iterator[Finding]:
    yield Finding("format", True, f"format {FORMAT}, the newest that this version knows")
    yield from _records(environment)
    yield from _log(environment)
    yield from _space(environment, Path(state_path))
    yield from _private(environment.path, Path(state_path))
    stale = environment.handle.reader_check() if environment.writable else 0
    yield Finding(
        "readers", True, f"{stale} readers that ended without a word were forgotten" if stale else "none is stale"
    )
    who = lease.holder(environment.path)
    yield Finding("maintainer", True, who or "nobody maintains now")


def _records(environment: Environment) -> Iterator[Finding]:
    readers: dict[str, Any] = {"catalog": records.read_catalog, "batch": records.read_batch}
    advice = {
        "catalog": "Restore the database from a copy: nothing else knows what the tables' bytes mean.",
        "batch": "Refresh: all state is made anew from the tables.",
    }
    for name, read in readers.items():
        try:
            with environment.read() as txn:
                read(txn, environment.meta)
            yield Finding(f"{name} record", True, "its checksum is right")
        except CorruptState as damage:
            yield Finding(f"{name} record", False, damage.message, advice[name])


def _log(environment: Environment) -> Iterator[Finding]:
    """Every entry's checksum, of all tables; what keeps the log from being cut."""
    count = size = 0
    bad: list[int] = []
    with environment.read(buffers=True) as txn:
        floor = records.read_number(txn, environment.meta, records.FLOOR)
        head = records.read_number(txn, environment.meta, records.HEAD)
        for position, body in log.raw(txn, environment.log):
            count, size = count + 1, size + len(body)
            if not log.is_whole(body):
                bad.append(position)
    with environment.read() as txn:
        holds = records.holds(txn, environment.meta, time.time())
    kept = f"{count} entries, {size / 1e6:.1f} MB, positions {floor + 1} to {head}" if count else "empty"
    if bad:
        first = ", ".join(map(str, bad[:5]))
        advice = "Refresh: if the views do not have these changes yet, they are made anew from the tables."
        yield Finding("change log", False, f"{kept}; {len(bad)} damaged: position {first}", advice)
    else:
        yield Finding("change log", True, f"{kept}; every checksum is right")
    oldest = min(holds, key=lambda h: h.position, default=None)
    if oldest is not None:
        until = "until it is released" if oldest.expiry is None else f"for {oldest.expiry - time.time():.0f} s more"
        text = f"{len(holds)} holds; {oldest.name!r} keeps everything after position {oldest.position}, {until}"
        forever = oldest.expiry is None and head - oldest.position > 100_000
        yield Finding("log retention", not forever, text, "Release the hold if nobody comes back." if forever else "")


def _space(environment: Environment, state: Path) -> Iterator[Finding]:
    disk = shutil.disk_usage(environment.path)
    info, stat_ = environment.handle.info(), environment.handle.stat()
    used = (info["last_pgno"] + 1) * stat_["psize"]
    files = sum(p.stat().st_size for p in state.glob("*.vkr")) if state.is_dir() else 0
    near = disk.free < max(_SPARE * disk.total, files)
    text = f"{disk.free / 1e9:.1f} GB free; the database has {used / 1e9:.3f} GB, its state {files / 1e9:.3f} GB"
    advice = "Free some space: merging state needs as much again as the state has." if near else ""
    yield Finding("disk space", not near, text, advice)
    full = used > 0.9 * info["map_size"]
    yield Finding(
        "map size",
        not full,
        f"{used / info['map_size']:.1%} of {info['map_size'] / 1e9:.0f} GB",
        "Open it with a larger map_size=." if full else "",
    )


def _private(path: Path, state: Path) -> Iterator[Finding]:
    found = [p for p in (path, state, *path.glob("*"), *state.glob("*.vkr")) if p.exists()]
    shown = [p for p in found if stat.S_IMODE(p.stat().st_mode) & 0o077]
    if shown:
        names = ", ".join(p.name for p in shown[:5])
        yield Finding("permissions", False, f"others may read or write {names}", f"chmod -R go-rwx {path}")
    else:
        yield Finding("permissions", True, "only its owner can read it")
