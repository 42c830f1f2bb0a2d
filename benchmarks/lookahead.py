"""Look-ahead and sums below joins: GraphIVM (2015), sections 9.4 to 9.8, on data in the shape of its BSMA queries.

    python benchmarks/lookahead.py [--small] [--only chains,fanout,…] [--data DIRECTORY] [--json FILE] [--md FILE]

    chains     Retweet chains of 2 to 5 joins (each join leaves fewer rows) under 50,000 new followers, and Follower
               chains (each makes more) under 50,000 new tweets: no, local, global look-ahead, and auto (9.5.2, 9.6)
    fanout     50,000 tweets (of 100: 5,000) whose authors have n = 1, 10, 100 followers of followers (9.5.1), and then
               `read`, all rows of the view (9.8)
    simple     Q1 to Q3 and their counts under 50,000 tweets and retweets (9.4), and then the rows of one key
    changes    Q3 under inserts, deletes, updates of a joined and of another column (9.7)
    sums       TPC-H 3, 10, 11 and 18, and a sum by the suppliers' nation: state and batches with sums above and below
               their joins (5.2)

Each is kept publish-only (store = 'none'), stored, and lazy, which joins nothing in a batch, has no look-ahead, and is
worked out by the reads (no answer is remembered here). Of a batch there are `seconds` by
the clock and `cpu`, those of the processor, which another program's work changes little; of the clock's `joining` were
lookups, and not reading changes or writing the view's. In chains a batch came before, in which look-ahead worked out
what it knows (`first cpu`). DuckDB's recompute of the whole view, over the same tables in its own memory, stands
beside. The paper gives its times as pictures, so of it there are the fan-outs of table 9.3.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

import viewkeeper as vk
from bars.asked import some_of
from viewkeeper.workloads.tpch import QUERIES, SCHEMAS
from viewkeeper.workloads.tpch.changes import TpchModel, generate

MODES = ("none", "local", "global", "auto")
STORES = ("table", "lazy", "none")
PARTS = ("chains", "sums", "simple", "fanout", "changes")
CALLED = {"table": "stored", "lazy": "lazy", "none": "publish-only"}
PAPER = {"retweet": {2: 110, 3: 56, 4: 24, 5: 11}, "follower": {2: 182, 3: 381, 4: 445, 5: 545}}
"""View rows for each change, table 9.3."""

TABLES = {
    "users": "user_id BIGINT PRIMARY KEY",
    "follower": "id BIGINT PRIMARY KEY, user_id BIGINT, follower_id BIGINT",
    "tweet": "tweet_id BIGINT PRIMARY KEY, user_id BIGINT, day INT",
    "retweet": "tweet_id BIGINT PRIMARY KEY, user_id BIGINT, day INT, of_id BIGINT",
}


@dataclass
class Setting:
    """How large: the paper's small set of tables by default, its followers thinned out as it did with its large one."""

    users: int = 10_000
    tweets: int = 60_000
    retweets: int = 70_000
    changes: int = 50_000
    json: Path | None = None
    lines: list[dict[str, Any]] = field(default_factory=list)

    def note(self, **line: Any) -> None:
        self.lines.append(line)
        if self.json is not None:  # as soon as it is known: a run takes minutes
            self.json.write_text(json.dumps({"changes": self.changes, "lines": self.lines}, indent=1) + "\n")
        print("  ".join(f"{k}={v:.3f}" if isinstance(v, float) else f"{k}={v}" for k, v in line.items()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a twentieth of the rows, chains of 2 and 3")
    parser.add_argument("--only", type=some_of(PARTS), default=PARTS)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "viewkeeper-tpch")
    parser.add_argument("--scale", type=float, default=0.1, help="of TPC-H")
    parser.add_argument("--joins", default="2,3,4,5", help="lengths of the chains")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--md", type=Path)
    parser.add_argument("--keep", action="store_true", help="put the lines into results/, in place of the same ones")
    asked = parser.parse_args()
    setting = Setting(500, 3_000, 3_500, 2_500) if asked.small else Setting()
    setting.json, load = asked.json, round(os.getloadavg()[0], 1)
    joins = [int(n) for n in asked.joins.split(",")][: 2 if asked.small else None]
    work: dict[str, Callable[[], None]] = {
        "chains": lambda: chains(setting, joins),
        "sums": lambda: sums(setting, generate(0.01 if asked.small else asked.scale, asked.data)),
        "simple": lambda: simple(setting),
        "fanout": lambda: fan_outs(setting, (1, 10) if asked.small else (1, 10, 100)),
        "changes": lambda: kinds_of_changes(setting),
    }
    for part in asked.only:
        work[part]()
    print(told(setting))
    if asked.md is not None:
        asked.md.write_text(told(setting))
    if asked.keep and not asked.small:
        kept(setting, load)


# -- data --------------------------------------------------------------------------------------------------------------


def bsma(setting: Setting) -> dict[str, pa.Table]:
    """A few users are followed by some, most by none; half of the retweets are of tweets, half of other retweets."""
    rng = np.random.default_rng(7)
    users, tweets, retweets = setting.users, setting.tweets, setting.retweets
    followed = rng.permutation(users)[: users // 4]
    follower_of = np.repeat(followed, 6)
    first = tweets
    parents = np.where(
        rng.random(retweets) < 0.5,
        rng.integers(0, tweets, retweets),
        first + (rng.random(retweets) * np.arange(retweets)).astype(np.int64),
    )
    return {
        "users": pa.table({"user_id": np.arange(users)}),
        "follower": pa.table(
            {
                "id": np.arange(len(follower_of)),
                "user_id": follower_of,
                "follower_id": rng.integers(0, users, len(follower_of)),
            }
        ),
        "tweet": pa.table(
            {"tweet_id": np.arange(tweets), "user_id": rng.integers(0, users, tweets), "day": _days(rng, tweets)}
        ),
        "retweet": pa.table(
            {
                "tweet_id": first + np.arange(retweets),
                # those who retweet at all do it often
                "user_id": _busy(setting, rng, retweets),
                "day": _days(rng, retweets),
                "of_id": parents,
            }
        ),
    }


def _busy(setting: Setting, rng: np.random.Generator, count: int) -> Any:
    """Users who retweet: a hundred times each."""
    return rng.integers(0, max(1, setting.retweets // 100), count) * 10 % setting.users


def _days(rng: np.random.Generator, count: int) -> pa.Array:
    return pa.array(rng.integers(0, 365, count), pa.int32())


def retweet_chain(joins: int) -> str:
    """Who saw tweets that were retweeted so many times over: `joins` − 1 retweets of each other, and followers."""
    hops = joins
    text = f"SELECT f.id, f.follower_id, r1.of_id AS origin, r{hops}.tweet_id AS last FROM retweet r1"
    for i in range(2, hops + 1):
        text += f" JOIN retweet r{i} ON r{i}.of_id = r{i - 1}.tweet_id"
    return f"{text} JOIN follower f ON f.user_id = r{hops}.user_id"


def follower_chain(joins: int) -> str:
    """Who sees a tweet over so many followers of followers."""
    hops = joins
    text = f"SELECT t.tweet_id, f{hops}.id AS first_id, f1.follower_id AS sees FROM follower f1"
    for i in range(2, hops + 1):
        text += f" JOIN follower f{i} ON f{i - 1}.user_id = f{i}.follower_id"
    return f"{text} JOIN tweet t ON t.user_id = f{hops}.user_id"


# -- experiments -------------------------------------------------------------------------------------------------------


def chains(setting: Setting, joins: list[int]) -> None:
    for chain, query, changed in (("retweet", retweet_chain, "follower"), ("follower", follower_chain, "tweet")):
        for count in joins:
            text, rows = query(count), 0
            for store, mode in _kept(count in (joins[0], joins[-1])):
                with database(bsma(setting), text, store, mode) as db:
                    first, second = (batch(db, changed, new_rows(setting, changed, n)) for n in (0, 1))
                    rows = rows or made(db, text)
                    told = {"store": CALLED[store], "mode": mode, **second, "joining": joining(db)}
                    told |= {"first cpu": first["cpu"], "left_out": left_out(db)}
                    setting.note(part="chains", chain=chain, joins=count, **told)
            fan_out = {"fan_out": round(rows / (2 * setting.changes), 1), "paper": PAPER[chain][count]}
            told = {"store": "DuckDB", "mode": "recompute", **recomputed(setting, text, changed)}
            setting.note(part="chains", chain=chain, joins=count, **told, **fan_out)


def _kept(stored: bool) -> Iterator[tuple[str, str]]:
    """How a chain is kept: publish-only in all ways of looking ahead, else with and without."""
    yield from (("none", mode) for mode in MODES)
    for store in STORES:
        if store != "none" and stored:
            yield from ((store, mode) for mode in modes(store, "none", "global"))


def modes(store: str, *wanted: str) -> tuple[str, ...]:
    """A lazy view has no lookups in which it could look ahead."""
    return ("",) if store == "lazy" else wanted


def batch(db: Any, table: str, rows: pa.Table) -> dict[str, float]:
    """Write the changes and keep the view: the seconds of the batch."""
    db.put(table, rows)
    return refreshed(db)


def refreshed(db: Any) -> dict[str, float]:
    return timed(lambda: db.refresh("driver"))


def timed(work: Callable[[], Any]) -> dict[str, float]:
    """Seconds by the clock, and of the processor."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return {"seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def new_rows(setting: Setting, table: str, number: int) -> pa.Table:
    """Of users who retweet, or are followed: the paper's changes are all of one such user."""
    rng = np.random.default_rng(100 + number)
    count, start = setting.changes, 10_000_000 * (number + 1)
    if table == "follower":
        users = _busy(setting, rng, count)
        followers = rng.integers(0, setting.users, count)
        return pa.table({"id": start + np.arange(count), "user_id": users, "follower_id": followers})
    followed = np.random.default_rng(7).permutation(setting.users)[: setting.users // 4]
    users = rng.choice(followed, count)
    return pa.table({"tweet_id": start + np.arange(count), "user_id": users, "day": _days(rng, count)})


def fan_outs(setting: Setting, fan: tuple[int, ...]) -> None:
    """New users with n followers each, of whom each is followed by one; then a tweet of each."""
    text = follower_chain(2)
    for n in fan:
        count = setting.changes if n < 100 else setting.changes // 10
        data, tweets = with_followers(setting, count, n)
        for store in STORES:
            for mode in modes(store, "none", "global"):
                with database(data, text, store, mode) as db:
                    told = {"fan_out": n, "store": CALLED[store], "mode": mode}
                    setting.note(part="fanout", changes=count, **told, **batch(db, "tweet", tweets))
                    if mode != "global":
                        setting.note(part="read", fan_out=n, store=CALLED[store], **timed(lambda: db.read("v")))
        data["tweet"] = pa.concat_tables([data["tweet"], tweets])
        told = {"fan_out": n, "store": "DuckDB", "mode": "recompute"}
        setting.note(part="fanout", changes=count, **told, **in_duckdb(data, text))


def with_followers(setting: Setting, count: int, n: int) -> tuple[dict[str, pa.Table], pa.Table]:
    """The tables with so many new users and their followers, and a tweet of each."""
    data, new = bsma(setting), setting.users + np.arange(count)
    of, ids = np.repeat(new, n), 50_000_000 + np.arange(2 * count * n)
    between = 100_000_000 + np.arange(len(of))
    users, followers = np.concatenate([of, between]), np.concatenate([between, 2 * between])
    more = pa.table({"id": ids, "user_id": users, "follower_id": followers})
    data["follower"] = pa.concat_tables([data["follower"], more])
    days = _days(np.random.default_rng(3), count)
    return data, pa.table({"tweet_id": 10_000_000 + np.arange(count), "user_id": new, "day": days})


SIMPLE = {
    "Q1": "SELECT t.tweet_id, u.user_id, t.day FROM users u JOIN tweet t ON u.user_id = t.user_id",
    "Q2": "SELECT f.id, t.tweet_id, f.follower_id FROM follower f JOIN tweet t ON f.user_id = t.user_id",
    "Q3": "SELECT r.tweet_id, u.user_id, r.day FROM users u JOIN tweet t ON u.user_id = t.user_id"
    " JOIN retweet r ON t.tweet_id = r.of_id",
    "Q1Agg": "SELECT u.user_id, count(t.tweet_id) AS n FROM users u JOIN tweet t ON u.user_id = t.user_id"
    " GROUP BY u.user_id",
    "Q2Agg": "SELECT f.follower_id, count(t.tweet_id) AS n FROM follower f JOIN tweet t ON f.user_id = t.user_id"
    " GROUP BY f.follower_id",
    "Q3Agg": "SELECT u.user_id, count(r.tweet_id) AS n FROM users u JOIN tweet t ON u.user_id = t.user_id"
    " JOIN retweet r ON t.tweet_id = r.of_id GROUP BY u.user_id",
}


def last_ones(data: dict[str, pa.Table], setting: Setting) -> tuple[dict[str, pa.Table], dict[str, pa.Table]]:
    """The tables without their last tweets and retweets, and those."""
    half = setting.changes // 2
    before = {n: t.slice(0, t.num_rows - half) if n in ("tweet", "retweet") else t for n, t in data.items()}
    return before, {n: data[n].slice(data[n].num_rows - half) for n in ("tweet", "retweet")}


def simple(setting: Setting) -> None:
    for name, text in SIMPLE.items():
        data = bsma(setting)
        before, changes = last_ones(data, setting)
        for store in STORES:
            for mode in modes(store, "none", "auto"):
                with database(before, text, store, mode) as db:
                    for table, rows in changes.items():
                        db.put(table, rows)
                    told = {"query": name, "store": CALLED[store], "mode": mode, **refreshed(db)}
                    setting.note(part="simple", **told, left_out=left_out(db))
                    if store != "none" and mode != "auto":
                        setting.note(part="one key", query=name, store=CALLED[store], **of_one_key(db))
        setting.note(part="simple", query=name, store="DuckDB", mode="recompute", **in_duckdb(data, text))


def of_one_key(db: Any) -> dict[str, float]:
    """The rows with one value of the key's first column; the median of some."""
    shape = sorted(db.sql("DESCRIBE v").to_pylist(), key=lambda column: column["key"] or len(TABLES) ** 9)
    name = shape[0]["column"]
    values = db.read("v", columns=[name])[name].unique()
    times = [timed(lambda k=k: list(db.scan("v", prefix=k))) for k in values.to_pylist()[:: max(1, len(values) // 9)]]
    found: dict[str, float] = {name: statistics.median(t[name] for t in times) for name in ("seconds", "cpu")}
    return found


def kinds_of_changes(setting: Setting) -> None:
    data = bsma(setting)
    before, changes = last_ones(data, setting)
    rows = changes["retweet"]
    joined = rows.set_column(3, "of_id", pa.array(np.random.default_rng(5).integers(0, setting.tweets, rows.num_rows)))
    other = joined.set_column(2, "day", _days(np.random.default_rng(6), rows.num_rows))
    for store in STORES:
        with database(before, SIMPLE["Q3"], store, *modes(store, "auto")) as db:
            db.put("tweet", changes["tweet"])
            db.refresh("driver")
            calls: list[tuple[str, Callable[[], Any]]] = [
                ("insert", lambda: db.put("retweet", rows)),
                ("update of the joined column", lambda: db.put("retweet", joined)),
                ("update of another column", lambda: db.put("retweet", other)),
                ("delete", lambda: db.delete("retweet", rows["tweet_id"].to_pylist())),
            ]
            for name, call in calls:
                call()
                told = {"what": name, "changes": rows.num_rows, "store": CALLED[store], **refreshed(db)}
                setting.note(part="changes", **told)


BY_NATION = """SELECT n_name, count(*) AS n, sum(l_extendedprice * (1 - l_discount)) AS revenue
    FROM lineitem JOIN supplier ON l_suppkey = s_suppkey JOIN nation ON s_nationkey = n_nationkey GROUP BY n_name"""


def sums(setting: Setting, files: Path) -> None:
    """The same batches of TPC-H's refresh functions and of all dimensions, with sums above and below the joins."""
    for name, text in {**{f"Q{n}": QUERIES[n] for n in (3, 10, 11, 18)}, "by nation": BY_NATION}.items():
        for mode in ("none", "always", "auto"):
            with tempfile.TemporaryDirectory(prefix="vk-sums-") as place:
                model = TpchModel(files, 1)
                with vk.open(f"lmdb:{place}/db", durability="none") as db:
                    for table, ddl in SCHEMAS.items():
                        db.sql(ddl)
                        db.put(table, model.table(table))
                    db.sql(f"CREATE MATERIALIZED VIEW v WITH (presum = '{mode}') AS {text}")
                    times = [tpch_batch(db, model) for _ in range(6)][1:]
                    view = next(v for v in db.status().views if v.name == "v")
                    is_below = "presum:" in str(db.explain("v"))
                    told: dict[str, Any] = {"query": name, "presum": mode, "below": str(is_below)}
                    told |= {"state_rows": view.state_rows, "state_bytes": view.state_bytes}
                    told |= {name: statistics.median(t[name] for t in times) for name in ("seconds", "cpu")}
                    setting.note(part="sums", **told)
                model.close()


def tpch_batch(db: Any, model: TpchModel) -> dict[str, float]:
    changes = model.batch()
    model.apply(changes)
    for change in changes:
        if change.deletes is not None and change.deletes.num_rows:
            db.delete(change.table, change.deletes)
        if change.puts is not None and change.puts.num_rows:
            db.put(change.table, change.puts)
    return refreshed(db)


# -- the parts of an experiment ----------------------------------------------------------------------------------------


class database:
    """A database of these tables with one view."""

    def __init__(self, data: dict[str, pa.Table], text: str, store: str, mode: str) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="vk-lookahead-")
        self._db = vk.open(f"lmdb:{self._place.name}/db", durability="none", lazy_cache_bytes=0)
        for table, columns in TABLES.items():
            self._db.sql(f"CREATE TABLE {table} ({columns})")
            self._db.put(table, data[table])
        ahead = "" if store == "lazy" else f", lookahead = '{mode}'"
        self._db.sql(f"CREATE MATERIALIZED VIEW v WITH (store = '{store}'{ahead}) AS {text}")

    def __enter__(self) -> Any:
        return self._db

    def __exit__(self, *_: object) -> None:
        self._db.close()
        self._place.cleanup()


def joining(db: Any) -> float:
    """Seconds of the last batch's rounds: without reading the changes, and without writing the view's."""
    return float(db._store.published_batch().record["batches"][-1]["rounds"])


def left_out(db: Any) -> int:
    """Rows that look-ahead has spared, as EXPLAIN tells."""
    return sum(int(n.replace(",", "")) for n in re.findall(r"; ([\d,]+) rows left out", str(db.explain("v"))))


def made(db: Any, text: str) -> int:
    """The rows that the view has of the changes."""
    tables = {name: db.read(name) for name in TABLES}
    with duckdb.connect() as duck:
        for name, rows in tables.items():
            duck.register(name, rows)
        new = "f.id >= 10000000" if " f.id" in text else "t.tweet_id >= 10000000"
        return int(duck.sql(f"SELECT count(*) FROM ({text} WHERE {new})").fetchall()[0][0])


def recomputed(setting: Setting, text: str, changed: str) -> dict[str, float]:
    data = bsma(setting)
    data[changed] = pa.concat_tables([data[changed], *(new_rows(setting, changed, n) for n in (0, 1))])
    return in_duckdb(data, text)


def in_duckdb(data: dict[str, pa.Table], text: str) -> dict[str, float]:
    """The query from tables in DuckDB's memory into one more; the better of two."""
    with duckdb.connect() as duck:
        for name, rows in data.items():
            duck.register("given", rows)
            duck.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
        times = [timed(lambda: duck.execute(f"CREATE OR REPLACE TABLE v AS {text}")) for _ in range(2)]
        return min(times, key=lambda t: t["cpu"])


# -- the table ---------------------------------------------------------------------------------------------------------


def told(setting: Setting) -> str:
    lines = [f"# Look-ahead, {setting.changes:,} changes", ""]
    for part, rows in _parts(setting.lines):
        names = list(dict.fromkeys(name for row in rows for name in row if name != "part"))
        lines += [f"## {part}", "", f"| {' | '.join(names)} |", f"|{' --- |' * len(names)}"]
        lines += [f"| {' | '.join(_cell(row.get(name)) for name in names)} |" for row in rows]
        lines.append("")
    return "\n".join(lines)


def kept(setting: Setting, load: float) -> None:
    """With the lines of other runs: a line is the same if its words are, and only its figures differ."""
    results = Path(__file__).parent / "results"
    path = results / "lookahead.json"
    known = json.loads(path.read_text())["lines"] if path.exists() else []

    def name(line: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
        given = ("joins",) if line["part"] == "chains" else ("fan_out",)
        return tuple((k, v) for k, v in line.items() if isinstance(v, str) or k in given)

    new = {name(line): line | {"load": load} for line in setting.lines}
    lines = [new.pop(name(line), line) for line in known] + list(new.values())
    path.write_text(json.dumps({"changes": setting.changes, "lines": lines}, indent=1) + "\n")
    about = "`load` is that of the machine before the run; where it is not about 0, compare `cpu`, not `seconds`."
    text = told(Setting(changes=setting.changes, lines=lines))
    (results / "lookahead.md").write_text(text.replace("\n\n", f"\n\n{about}\n\n", 1))


def _parts(lines: list[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for part in dict.fromkeys(line["part"] for line in lines):
        yield part, [line for line in lines if line["part"] == part]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    main()
