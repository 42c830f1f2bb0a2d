"""A program in which the operators of one view raise on demand, in the driver and in Spark's workers alike.

`python failing_operators.py DIRECTORY` makes two views over a table, lets one fail in every way in every lane, and says
after each whether the other is right and fresh. The directory is on PYTHONPATH: Python imports `sitecustomize` from it,
in workers too, which patches the aggregate with a minimum. What it raises is in the file `break.json`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

PATCH = '''
import json, os
from importlib.machinery import PathFinder
import sys

PLACE = os.path.join(os.path.dirname(__file__), "break.json")


class Finder:
    """Patches the module when it is imported: importing it here would load it into every Python."""

    def find_spec(self, name, path, target=None):
        if name != "viewkeeper.operators.kinds.aggregate":
            return None
        spec = PathFinder.find_spec(name, path)
        usual = spec.loader.exec_module

        def exec_module(module):
            usual(module)
            patch(module)

        spec.loader.exec_module = exec_module
        return spec


def patch(module):
    for step in ("run", "route_to_ports"):
        def broken(self, *given, _step=step, _usual=getattr(module.Aggregate, step)):
            if any(m.function == "Min" for m in self.spec.measures) and os.path.exists(PLACE):
                with open(PLACE) as file:
                    wanted = json.load(file)
                if wanted["step"] == _step:
                    raise made(wanted["error"])
            return _usual(self, *given)

        setattr(module.Aggregate, step, broken)


def made(name):
    import duckdb, pyarrow
    from viewkeeper import errors

    for place in (errors, duckdb, pyarrow):
        if hasattr(place, name):
            return getattr(place, name)("made to fail")
    kind = getattr(__import__("builtins"), name)
    return kind()


sys.meta_path.insert(0, Finder())
'''
ERRORS = (
    "ValueError",
    "KeyError",
    "RecursionError",
    "AssertionError",
    "StopIteration",
    "ArrowInvalid",
    "BinderException",
    "InternalException",
    "FatalException",
    "Unsupported",
    "UnknownName",
    "Defect",
    "EvaluationError",
    "TooLarge",
)
DATA: dict[str, dict[str, Any]] = {
    "DIVIDE_BY_ZERO": {"x": 0},
    "ARITHMETIC_OVERFLOW": {"x": 2**63 - 1},
    "CAST_INVALID_INPUT": {"s": "no number"},
}
BAD = (
    "SELECT g, min(x) AS low, sum(x) AS total, sum(100 / x) AS share, sum(CAST(s AS INT)) AS number"
    " FROM t WHERE x <> 7 GROUP BY g"
)
GOOD = "SELECT g, count(*) AS n, max(x) AS top FROM t GROUP BY g"
LANES = {"driver": None, "whole": 1_000_000, "divided": 1}


def main(directory: Path) -> None:
    import viewkeeper as vk
    from viewkeeper.runtime.spark import placement

    with vk.open(f"lmdb:{tempfile.mkdtemp(dir=directory)}", durability="none") as db:
        db.sql("CREATE TABLE t (id BIGINT, g BIGINT, x BIGINT, s STRING, PRIMARY KEY (id))")
        db.put("t", [row(n) for n in range(10)])
        db.sql(f"CREATE MATERIALIZED VIEW good AS {GOOD}")
        db.sql(f"CREATE MATERIALIZED VIEW bad AS {BAD}")
        number = 10
        for lane, rows in LANES.items():
            placement.ROWS_PER_TASK = rows or placement.ROWS_PER_TASK
            for step in ("run", "route_to_ports"):
                for error in ERRORS:
                    (directory / "break.json").write_text(json.dumps({"step": step, "error": error}))
                    number = failed(db, f"{lane} {step} {error}", number, {}, "driver" if rows is None else "spark")
            for error, given in DATA.items():
                number = failed(db, f"{lane} {error}", number, given, "driver" if rows is None else "spark")


def row(number: int) -> dict[str, Any]:
    return {"id": number, "g": number % 3, "x": 5, "s": "1"}


def failed(db: Any, case: str, number: int, bad_values: dict[str, Any], lane: str) -> int:
    """One way to fail: the other view has this write and the next one, and after RESUME both are right."""
    directory = Path(sys.argv[1])
    db.put("t", [{**row(number), **bad_values}, *(row(n) for n in range(number + 1, number + 4))])
    report = db.refresh(lane)
    told = [list(report.suspended), right(db, "good", GOOD)]
    db.put("t", row(number + 4))
    told += [list(db.refresh(lane).suspended), right(db, "good", GOOD)]
    (directory / "break.json").unlink(missing_ok=True)
    db.delete("t", number)
    db.sql("ALTER MATERIALIZED VIEW bad RESUME")
    told += [right(db, "bad", BAD), right(db, "good", GOOD)]
    print(json.dumps([case, told]), flush=True)
    return number + 5


def right(db: Any, name: str, query: str) -> bool:
    """Whether a view is what its query makes of the table as it was written."""
    import duckdb

    with duckdb.connect() as oracle:
        oracle.register("t", db.read("t"))
        expected = oracle.sql(f"SELECT * FROM ({query}) ORDER BY g").fetchall()
    return [tuple(r.values()) for r in db.read(name).to_pylist()] == expected


if __name__ == "__main__":
    main(Path(sys.argv[1]))
