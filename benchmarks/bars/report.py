"""What a run found, as Markdown: the bars with pass or miss and by how much, a row for each view, the machine."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Found = dict[str, Any]


@dataclass(frozen=True)
class Bar:
    """A measured figure and its limit: `at_least` says on which side of it the figure should be."""

    name: str
    value: float
    limit: float | None
    unit: str = ""
    detail: str = ""
    at_least: bool = False

    @property
    def verdict(self) -> str:
        if self.limit is None:
            return ""
        holds = self.value >= self.limit if self.at_least else self.value <= self.limit
        if holds:
            return "met"
        factor = self.limit / self.value if self.at_least else self.value / self.limit
        return f"missed, {factor:.2f}x"

    @property
    def cells(self) -> list[str]:
        side = "≥" if self.at_least else "≤"
        limit = "–" if self.limit is None else f"{side} {_number(self.limit)}{self.unit}"
        return [self.name, f"{_number(self.value)}{self.unit}", limit, self.verdict, self.detail]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def bars(found: Found) -> list[Bar]:
    """Those of the stages that were run."""
    return [bar for part in (_batch, _shared, _q3, _lanes, _loads, _space) for bar in part(found)]


def _batch(found: Found) -> Iterator[Bar]:
    if "batch" not in found:
        return
    full, tenth = found["batch"]["full"], found["batch"]["tenth"]
    detail = f"{ms(full['ours'])} against {ms(full['duckdb'])}; first {ms(full['first'])}; merging {ms(full['merge'])}"
    yield Bar("batch of orders, 22 views / DuckDB recompute", full["ratio"], 1 / 3, "", detail)
    detail = f"{ms(full['ours'])} against {ms(tenth['ours'])}"
    yield Bar("the same batch with 10x the data", full["ours"] / tenth["ours"], 2, "x", detail)
    yield Bar("batch of dimensions, 22 views", found["dimensions"]["seconds"] * 1e3, None, " ms")


def _shared(found: Found) -> Iterator[Bar]:
    for kind, limit in (("scattered", 1 / 3), ("orders", 0.2), ("dimensions", None), ("few dimensions", 0.5)):
        if kind in found.get("shared", {}):
            one = found["shared"][kind]
            detail = (
                f"{ms(one['together']['seconds'])}, apart {ms(one['apart']['seconds'])}, DuckDB {ms(one['duckdb'])}"
            )
            for what in ("statements", "lookups"):
                detail += f"; {what} {one['together'][what]:.0f}, apart {one['apart'][what]:.0f}"
            if each := one.get("ratios"):  # results of earlier runs have none
                least, median, most = each[0], statistics.median(each), each[-1]
                detail += f"; {len(each)} batches: {least:.3f} at least, median {median:.3f}, {most:.3f} at most"
            if hands := one.get("run by"):
                detail += f"; run by {', '.join(f'{who} {times}' for who, times in hands.items())}"
            yield Bar(
                f"batch of {kind}, {one['changes']:,} changes / DuckDB recompute", one["ratio"], limit, "", detail
            )


def _q3(found: Found) -> Iterator[Bar]:
    if "freshness" not in found:
        return
    none, durable = found["freshness"]["none"], found["freshness"]["durable"]
    flush = found["freshness"].get("flush_ms")
    beside = "" if flush is None else f"; the disk flushes a page in {flush:.2f} ms"
    yield Bar("freshness p50, no fsync", none["p50_ms"], 10, " ms", f"worst {none['worst_ms']:.0f} ms")
    yield Bar("freshness p50, durable", durable["p50_ms"], None, " ms", f"worst {durable['worst_ms']:.0f} ms{beside}")
    large = found["throughput"]
    detail = f"{large['rows']:,} rows: put {large['put']:.1f} s, refresh {large['refresh']:.1f} s"
    yield Bar("changes with their durable put", large["rows_per_second_with_put"], 200_000, " rows/s", detail, True)
    rate, with_put = found["throughput"]["rows_per_second"], found["throughput"]["rows_per_second_with_put"]
    peer = found.get("pathway", {})
    if "error" in peer:
        yield Bar("throughput, driver lane", rate, None, " rows/s", f"Pathway did not run: {peer['error']}")
    elif peer:
        detail = f"Pathway {peer['p50_ms']:.1f} ms"
        yield Bar("freshness / Pathway's", none["p50_ms"] / peer["p50_ms"], 1, "", detail)
        detail = f"{rate:,.0f} against {peer['rows_per_second']:,.0f} rows/s, ours without the put"
        yield Bar("throughput / Pathway's", rate / peer["rows_per_second"], 5, "x", detail, True)
        detail = f"{with_put:,.0f} rows/s, the put into LMDB included"
        yield Bar("throughput with put / Pathway's", with_put / peer["rows_per_second"], 5, "x", detail, True)


def _lanes(found: Found) -> Iterator[Bar]:
    if "lanes" not in found:
        return
    driver, one, two = (found["lanes"][n]["refresh"] for n in ("driver", "spark on 1 core", "spark on 2 cores"))
    rows = f"{found['lanes']['driver']['rows']:,.0f} changes"
    yield Bar("Spark lane / driver lane", two / driver, 3, "x", f"{two:.1f} s against {driver:.1f} s, {rows}")
    yield Bar("Spark lane, 2 cores against 1", one / two, 1.6, "x", f"{one:.1f} s to {two:.1f} s", True)


def _loads(found: Found) -> Iterator[Bar]:
    if "first_load" not in found:
        return
    load = found["first_load"]
    allowed = load["spark_first"] + load["scan"]
    detail = f"{load['first']:.2f} s against {load['spark_first']:.2f} s Spark + {load['scan']:.2f} s scan"
    yield Bar("first load, Q1 / (Spark + scan)", load["first"] / allowed, 1, "", detail)
    detail = f"{load['later']:.2f} s against {load['spark_later']:.2f} s Spark"
    yield Bar("later load, Q6 / Spark", load["later"] / load["spark_later"], 1, "", detail)


def _space(found: Found) -> Iterator[Bar]:
    if "state" not in found:
        return
    memory = max(found["anonymous_bytes"], found.get("views", {}).get("full", {}).get("anonymous_bytes", 0))
    detail = "the benchmark's own copy of the tables in DuckDB included"
    yield Bar("memory, anonymous, all processes", memory / 1e9, 6, " GB", detail)
    state, base = found["state"]["bytes"], found["state"]["base_bytes"]
    yield Bar(
        "state / Arrow bytes of used columns", state / base, 4, "x", f"{state / 1e9:.2f} against {base / 1e9:.2f} GB"
    )


def markdown(found: Found) -> str:
    parts = [f"# TPC-H at scale {found['scale']:g}\n"]
    parts.append(
        f"A batch is {found['orders']:,} new orders, as many deleted and as many updated, with their lines. "
        "All ratios are of one machine and one series of runs; every view was compared with recompute each time.\n"
    )
    parts.append(table(["bar", "measured", "limit", "", "detail"], [bar.cells for bar in bars(found)]))
    if "by_view" in found:
        parts += ["## By view\n", BY_VIEW.format(tenth=found["scale"] / 10), by_view(found)]
    if "crossover" in found:
        parts += ["## Crossover\n", CROSSOVER.format(tenth=found["scale"] / 10), crossover(found)]
    if found.get("notes"):
        parts += ["## Why, and what would help\n", "\n".join(f"- {note}" for note in found["notes"]) + "\n"]
    if "left_out" in found:
        parts += ["## Peers that were not run\n", *(f"- {name}: {why}." for name, why in found["left_out"].items()), ""]
    parts += ["## Machine\n", *(f"- {name}: {value}" for name, value in found["machine"].items())]
    return "\n".join(parts) + "\n"


BY_VIEW = """Milliseconds for the batch of orders. *ours*: the view's share of the one refresh of all 22, driver lane, \
as thread time (two threads work side by side, so the sum exceeds the refresh). *DuckDB*, *Spark*: recompute, \
over its own tables in memory and over Parquet. *alone*: the view by itself at scale {tenth:g}, in either lane.
"""

CROSSOVER = """Scale {tenth:g}, each view alone: the share of a table's rows that must change until recomputing is as \
fast. *anew*: making the view again from LMDB; *DuckDB*: its query over tables that it has in memory already, beside \
which there is nothing to load and nothing to store.
"""


def by_view(found: Found) -> str:
    spark, alone = found.get("spark_recompute", {}).get("by_view", {}), found.get("alone", {})
    rows = []
    for view, row in found["by_view"].items():
        lanes = alone.get(view, {})
        times = [row["ours"], row["duckdb"], spark.get(view), lanes.get("driver"), lanes.get("spark")]
        rows.append([view, *(number(t) for t in times), f"{row['state_bytes'] / 1e6:,.0f}"])
    full = found["batch"]["full"]
    recompute = found.get("spark_recompute", {}).get("seconds")
    state = f"{found['state']['bytes'] / 1e6:,.0f}, shared once"
    rows.append(["all, one refresh", number(full["ours"]), number(full["duckdb"]), number(recompute), "", "", state])
    if "spark_lane" in found:
        rows.append(["all, Spark lane", number(found["spark_lane"]["seconds"]), "", "", "", "", ""])
    return table(["view", "ours", "DuckDB", "Spark", "alone, driver", "alone, Spark", "state MB"], rows)


def crossover(found: Found) -> str:
    rows = []
    for view, row in found["crossover"].items():
        shares = [share(row["share_anew"]), share(row["share_duckdb"])]
        rows.append([view, row["table"], *shares, number(row["anew"]), number(row["duckdb"])])
    return table(["view", "changed", "anew from", "DuckDB from", "anew ms", "DuckDB ms"], rows)


def share(value: float | None) -> str:
    if value is None:
        return "> 50 %"
    return f"{value:.1%}".replace("%", " %") if value else "< 0.1 %"


def number(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:,.1f}" if seconds < 0.1 else f"{seconds * 1e3:,.0f}"


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns line up as text too."""
    widths = [max(len(line[i]) for line in [head, *rows]) for i in range(len(head))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in [head, *rows]]
    lines.insert(1, "| " + " | ".join("-" * max(3, w) for w in widths) + " |")
    return "\n".join(lines) + "\n"
