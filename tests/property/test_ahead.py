"""Look-ahead knows of every row that leads somewhere, and right after it was worked out of no others: a slow twin says.

Three arrangements along a path, a(k, x) ─▶ b(x, y) ─▶ c(y, v), with rows that come and go and runs that are merged; two
exits, of which only one wants rows of c with v > 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types
from viewkeeper.operators.delta_join.plan import Exit, JoinPath, PathFilter, PathStep, path_column
from viewkeeper.operators.delta_join.semijoin import SemijoinReduction
from viewkeeper.operators.delta_join.semijoin_bitmaps import ReachabilityBitmap, _ChildLookup
from viewkeeper.operators.delta_join.semijoin_graph import SemijoinModes, build_semijoin_nodes
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.cursor import LookupCursor, Probe
from viewkeeper.state.key_hash import hash_keys
from viewkeeper.state.run import Run, arrange, merge

COLUMNS = {"a": ("k", "x"), "b": ("x", "y"), "c": ("y", "v")}
LARGE = Expr(
    "GreaterThan", types.BOOLEAN, (path_column(3, "v", types.BIGINT, True), Expr("literal", types.BIGINT, value=2))
)
C = PathStep(3, "c", True, ((2, "y"),), ("y",), 0b11, (PathFilter((((LARGE,), 0b10),)),))
B = PathStep(2, "b", True, ((1, "x"),), ("x",), 0b11)
A = PathStep(1, "a", True, ((0, "k"),), ("k",), 0b11)
EXITS = (Exit(0, "", ()), Exit(1, "", ()))
PATH = JoinPath(
    (), (), (), ((A, JoinPath((), (), (), ((B, JoinPath((), (), (), ((C, JoinPath((), (), EXITS, ())),))),))),)
)

Row = tuple[int | None, int | None]


def run_of(duck: PreparedStatements, table: str, changes: list[tuple[Row, int]]) -> Run:
    names = COLUMNS[table]
    columns = [pa.array([row[i] for row, _ in changes], pa.int64()) for i in range(2)]
    rows = pa.table([*columns, pa.array([w for _, w in changes], pa.int64())], names=[*names, "¤w"])
    return arrange(rows.append_column("¤h", pa.array(hash_keys(duck, rows, names[:1]))))


def leads(runs: dict[str, list[Run]], table: str, row: Row, exit_: int, mode: str, is_first: bool = True) -> bool:
    """Whether a row can reach an exit, as far as the mode looks."""
    if table == "c":
        return exit_ == 0 or (row[1] is not None and row[1] > 2)
    if mode == "local" and not is_first:
        return True
    after = "b" if table == "a" else "c"
    met = [r for run in runs[after] for r in rows_of(run, after) if r[0] == row[1] is not None]
    return any(leads(runs, after, r, exit_, mode, False) for r in met)


def rows_of(run: Run, table: str) -> list[Row]:
    return [tuple(row.values()) for row in run.rows.select(COLUMNS[table]).to_pylist()]


def expected(runs: dict[str, list[Run]], run: Run, table: str, mode: str) -> list[int]:
    return [sum(leads(runs, table, row, e, mode) << e for e in (0, 1)) for row in rows_of(run, table)]


@pytest.mark.parametrize("mode", ["local", "global"])
def test_what_leads_somewhere_is_alive(mode: str) -> None:
    rng = Random(mode)
    modes = SemijoinModes(
        local_exits=0b11 * (mode == "local"), global_exits=0b11 * (mode == "global"), forced_exits=0b11
    )
    revived = stale = 0
    with PreparedStatements(threads=1) as duck:

        def looked(runs: dict[str, list[Run]]) -> Iterator[tuple[str, LookupCursor, list[ReachabilityBitmap]]]:
            lying = {table: LookupCursor(found) for table, found in runs.items()}
            ahead = SemijoinReduction(duck, build_semijoin_nodes(PATH), modes, "test", lambda name, _: lying[name])
            for table, step in (("a", A), ("b", B), ("c", C)):
                yield table, lying[table], [*(ahead.bitmaps_of(step) or ())]

        for _ in range(12):
            there: dict[str, list[Row]] = {table: [] for table in COLUMNS}
            runs: dict[str, list[Run]] = {table: [] for table in COLUMNS}
            spread, before = rng.choice([3, 12]), {}
            for batch in range(rng.randrange(3, 12)):
                for table in COLUMNS:
                    change(rng, duck, table, there[table], runs[table], spread, 4 if batch else 30)
                for table, lying, alive in looked(runs):
                    for run, found in zip(runs[table], alive, strict=bool(alive)):
                        bits = [int(b) for b in found.exit_masks_of(np.arange(run.num_rows))[0]]
                        wanted = expected(runs, run, table, mode)
                        assert all(want & ~got == 0 for want, got in zip(wanted, bits, strict=True))
                        stale += bits != wanted
                        revived += any(
                            now & ~was for now, was in zip(bits, before.get(id(run), (bits, run))[0], strict=True)
                        )
                        before[id(run)] = (bits, run)
                    if alive:
                        assert_lookups_make_what_is_alive(duck, lying, COLUMNS[table][:1], alive, spread)
            for run in (run for found in runs.values() for run in found):
                run.reachability_cache.clear()
            for table, _, alive in looked(runs):
                for run, found in zip(runs[table], alive, strict=bool(alive)):
                    bits = [int(b) for b in found.exit_masks_of(np.arange(run.num_rows))[0]]
                    assert bits == expected(runs, run, table, mode)
    assert revived
    assert stale, "No row died unnoticed: then nothing was tried that look-ahead need not see at once."


def test_what_was_interrupted_is_worked_out_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = SemijoinModes(global_exits=0b11, forced_exits=0b11)
    with PreparedStatements(threads=1) as duck:
        runs = {"a": [run_of(duck, "a", [((1, 1), 1)])], "b": [run_of(duck, "b", [((1, 1), 1)])], "c": []}
        runs["c"].append(run_of(duck, "c", [((7, 7), 1)]))

        def bits() -> list[int]:
            lying = {table: LookupCursor(found) for table, found in runs.items()}
            ahead = SemijoinReduction(duck, build_semijoin_nodes(PATH), modes, "test", lambda name, _: lying[name])
            return [
                int(b) for alive in ahead.bitmaps_of(A) or () for b in alive.exit_masks_of(np.zeros(1, np.int64))[0]
            ]

        assert bits() == [0]
        runs["c"].append(run_of(duck, "c", [((1, 1), 1)]))
        with monkeypatch.context() as patched:
            patched.setattr(_ChildLookup, "apply_keys", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                bits()
        assert bits() == [0b01]


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def change(
    rng: Random, duck: PreparedStatements, table: str, there: list[Row], runs: list[Run], spread: int, most: int
) -> None:
    """Rows that come and go, as one more run; sometimes the last runs are merged."""
    gone = rng.sample(there, min(len(there), rng.randrange(4)))
    for row in gone:
        there.remove(row)
    came = [
        tuple(None if rng.random() < 0.1 else rng.randrange(spread) for _ in "12") for _ in range(rng.randrange(most))
    ]
    there += came
    if came or gone:
        runs.append(run_of(duck, table, [(row, 1) for row in came] + [(row, -1) for row in gone]))
    if len(runs) > 1 and rng.random() < 0.3:
        low = rng.randrange(len(runs) - 1)
        runs[low:] = [merge(duck, runs[low:])]


def assert_lookups_make_what_is_alive(
    duck: PreparedStatements, lying: LookupCursor, key: tuple[str, ...], alive: list[ReachabilityBitmap], spread: int
) -> None:
    probe = Probe(duck, [pa.array([*range(spread)], pa.int64())])
    bits = np.concatenate(
        [found.exit_masks_of(np.arange(run.num_rows))[0] for run, found in zip(lying.runs, alive, strict=True)]
    )
    _, everything, _ = lying.matches(probe, key)
    made = [place for _, places, _ in lying.iter_matches(probe, key, 7, alive) for place in places]
    assert sorted(made) == sorted(place for place in everything if bits[place])
