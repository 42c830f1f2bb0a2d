"""The 22 views are made, one after the other, at the scale and at a tenth of it: what the batches then change."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import viewkeeper as vk
from bars.setting import Setting, anonymous_bytes, opened
from viewkeeper.verify.benchmark_check import create_views
from viewkeeper.workloads.tpch import views
from viewkeeper.workloads.tpch.changes import TpchModel

FULL, TENTH = "full", "tenth"


def measure(setting: Setting) -> dict[str, Any]:
    return {"views": {name: made(setting, name, scale) for name, scale in scales(setting).items()}}


def scales(setting: Setting) -> dict[str, float]:
    return {FULL: setting.scale, TENTH: setting.scale / 10}


@contextmanager
def viewed(setting: Setting, name: str, **options: Any) -> Iterator[tuple[vk.Database, TpchModel]]:
    """A database with the 22 views, and its model; what is not there is made first. `how`: as `opened` takes it."""
    with opened(setting, name, **options) as (db, model):
        create_views(db, missing(db), lambda said: print(said, flush=True))
        yield db, model


def missing(db: vk.Database) -> dict[str, str]:
    there = {view.name for view in db.status().views}
    return {name: query for name, query in views().items() if name not in there}


def made(setting: Setting, name: str, scale: float) -> dict[str, Any]:
    """Seconds to load the tables, and to create each view: planning, scanning and sharing included."""
    started = time.perf_counter()
    with opened(setting, name, scale=scale) as (db, _):
        loaded = time.perf_counter() - started
        seconds = {}
        for view, query in missing(db).items():
            started = time.perf_counter()
            create_views(db, {view: query})
            seconds[view] = time.perf_counter() - started
            print(f"scale {scale:g}: {view} made in {seconds[view]:.1f} s", flush=True)
        return {"load_seconds": loaded, "seconds": seconds, "anonymous_bytes": anonymous_bytes()}
