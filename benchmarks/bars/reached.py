"""What `access.py` has measured, kept: `results/access.json` has the last run of each part on each store, and
`results/access.md` tells. A run says how busy the machine was when it began; the others stay as they are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
HEAD = """# How rows are reached: the last run of each part

`python benchmarks/access.py --part … --keep`, two cores of a shared virtual machine. Times are medians in milliseconds,
by the clock, and in brackets this process's processor time; HBase works in processes of its own. Where the load before
a run is not about 0, other programs were at work, and the processor's time says more than the clock.
"""
PARTS = ("lookups", "joins", "sync", "latest")
STORES = {"lmdb": "LMDB", "rocksdb": "RocksDB", "hbase": "a real HBase"}
SUM_BAR, LATEST_BAR = 1.5, 0.1

Figures = Mapping[str, Mapping[str, float]]


def keep(part: str, store: str, run: dict[str, Any]) -> None:
    path = RESULTS / "access.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    known[f"{part} {store}"] = run
    path.write_text(json.dumps(known, indent=1) + "\n")
    (RESULTS / "access.md").write_text("\n".join(told(known)))


def told(known: Mapping[str, Any]) -> Iterator[str]:
    yield HEAD
    for part in PARTS:
        for store, called in STORES.items():
            if (run := known.get(f"{part} {store}")) is not None:
                about = {"lookups": f"PNUTS 7.3 on {called}: {run['rows']:,} rows with {run['payload']:,} bytes each"}
                about["joins"] = f"Joined at read, or stored, on {called}"
                about["sync"] = f"What a synchronous view costs the writer, on {called}"
                about["latest"] = "LATEST of one row by key, in a process that does not maintain"
                yield f"## {about[part]}\n\nLoad before: {run['load']}.\n"
                yield from TOLD[part](run["figures"])
                yield ""


def _lookups(found: Figures) -> Iterator[str]:
    yield "| hits | scan | thin index | covering index | covering against thin, clock |"
    yield "|---:|---:|---:|---:|---:|"
    for hits in dict.fromkeys(name.split(", about ")[1] for name in found):
        scan, thin, covering = (found[f"{how}, about {hits}"] for how in ("scan", "thin", "covering"))
        faster = f"{thin['ms'] / covering['ms']:.1f} times as fast"
        yield f"| {hits.split()[0]} | {_both(scan)} | {_both(thin)} | {_both(covering)} | {faster} |"
    yield "\nThe paper, on three servers with disks: a scan takes 75 s, and an index that answers by itself is more"
    yield "than 10 times as fast as one that fetches rows, each of which is a seek there. Here rows are in memory."


def _joins(found: Figures) -> Iterator[str]:
    yield "A batch updates 100 items of so many reviews each; a read gives the joined rows of one item.\n"
    yield "| fan-out | clustered, batch | stored, batch | clustered, read | stored, read |"
    yield "|---:|---:|---:|---:|---:|"
    for fan_out in dict.fromkeys(name.split(", ")[1] for name in found):
        cells = [
            _both(found[f"{how}, {fan_out}, {what}"]) for what in ("batch", "read") for how in ("clustered", "stored")
        ]
        yield f"| {fan_out.split()[1]} | {' | '.join(cells)} |"
    yield "\nA change of an item is one row of a clustered view and fan-out rows of a stored join."


def _sync(found: Figures) -> Iterator[str]:
    yield "Puts over 50,000 rows in 100 groups, without flushing to disk; processor time, and how many times the plain"
    yield "put that is. The closing audit found the sum right.\n"
    yield "| rows of a put | plain | with a sum by group | with an index |"
    yield "|---:|---:|---:|---:|"
    over = []
    for size in dict.fromkeys(name.split(",")[0] for name in found):
        plain, summed, indexed = (
            found[f"{size}, {kind}"]["cpu_ms"] for kind in ("plain", "with a sum", "with an index")
        )
        rows = size.split()[-1]
        over += [rows] if summed > SUM_BAR * plain else []
        cells = [f"{plain:.2f}", *(f"{with_} ({ratio:.2f})" for with_, ratio in _ratios(plain, summed, indexed))]
        yield f"| {int(rows):,} | {' | '.join(cells)} |"
    yield f"\nBar: at most {SUM_BAR} times the put for one sum: {'missed for ' + ', '.join(over) if over else 'holds'}."


def _ratios(plain: float, *others: float) -> Iterator[tuple[str, float]]:
    return ((f"{other:.2f}", other / plain) for other in others)


def _latest(found: Figures) -> Iterator[str]:
    yield "| | µs | cpu µs |\n|---|---:|---:|"
    for name, one in found.items():
        yield f"| {name} | {one['ms'] * 1e3:,.0f} | {one['cpu_ms'] * 1e3:,.0f} |"
    held = found["latest, just after a put"]["ms"] <= LATEST_BAR
    yield f"\nBar: {LATEST_BAR * 1e3:.0f} µs just after a put: {'holds' if held else 'missed'}. Others wait."


def _both(one: Mapping[str, float]) -> str:
    return f"{one['ms']:,.2f} ({one['cpu_ms']:,.2f})"


TOLD = {"lookups": _lookups, "joins": _joins, "sync": _sync, "latest": _latest}
