"""The peers on the stream that the Q3 view was given, checked equal at the end."""

from __future__ import annotations

import statistics
import sys
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import peers
import viewkeeper as vk
from bars.q3 import NAME, place
from bars.setting import Setting


def measure(setting: Setting) -> dict[str, Any]:
    if setting.peers is None:
        return {}
    found = peers.run(peers.PATHWAY, setting.peers, place(setting))
    if "error" in found:
        print(f"Pathway did not run: {found['error']}")
        return {"pathway": found, "left_out": peers.LEFT_OUT}
    with vk.open(f"lmdb:{setting.keep / NAME}", mode="r") as db:
        ours = db.read("q3")
    answer = pq.read_table(place(setting) / "answer.parquet")
    check(ours, answer)
    # From all rows given to shown, as ours is from `put` having returned; the first five warm up.
    shown = [(b["seconds"] - b["given"]) * 1e3 for b in found["small"]][5:]
    large = found["large"]
    return {
        "pathway": {
            "version": found["version"],
            "load_seconds": found["load_seconds"],
            "p50_ms": statistics.median(shown),
            "p50_ms_with_giving": statistics.median(b["seconds"] * 1e3 for b in found["small"][5:]),
            "rows_per_second": statistics.median(b["rows"] / b["seconds"] for b in large),
            "seconds": statistics.median(b["seconds"] for b in large),
            "runs": large,
        },
        "left_out": peers.LEFT_OUT,
    }


def check(ours: pa.Table, theirs: pa.Table) -> None:
    want = dict(
        zip(ours["l_orderkey"].to_pylist(), (int(r * 10_000) for r in ours["revenue"].to_pylist()), strict=True)
    )
    have = dict(zip(theirs["l_orderkey"].to_pylist(), theirs["revenue"].to_pylist(), strict=True))
    if want != have:
        sys.exit(f"Pathway's view differs from ours in {len(set(want.items()) ^ set(have.items()))} rows")
