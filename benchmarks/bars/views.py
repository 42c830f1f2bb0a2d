"""The 22 views are made, one after the other, at the scale and at a tenth of it: what the batches then change."""

from __future__ import annotations

import time
from typing import Any

from bars.setting import Setting, anonymous_bytes, opened
from viewkeeper.tpch import QUERIES, views
from viewkeeper.verify.yardstick import create_views

FULL, TENTH = "full", "tenth"


def measure(setting: Setting) -> dict[str, Any]:
    return {"views": {name: made(setting, name, scale) for name, scale in scales(setting).items()}}


def scales(setting: Setting) -> dict[str, float]:
    return {FULL: setting.scale, TENTH: setting.scale / 10}


def made(setting: Setting, name: str, scale: float) -> dict[str, Any]:
    """Seconds to load the tables, and to create each view: planning, scanning and sharing included."""
    started = time.perf_counter()
    with opened(setting, name, scale=scale) as (db, _):
        loaded = time.perf_counter() - started
        there = {v.name for v in db.status().views}
        seconds = {}
        for number in (n for n in QUERIES if f"q{n}" not in there):
            started = time.perf_counter()
            create_views(db, views([number]))
            seconds[f"q{number}"] = time.perf_counter() - started
            print(f"scale {scale:g}: q{number} made in {seconds[f'q{number}']:.1f} s", flush=True)
        return {"load_seconds": loaded, "seconds": seconds, "anonymous_bytes": anonymous_bytes()}
