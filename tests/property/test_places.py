"""Places are those of a slow twin: rows by a unique key, and all rows of a key, over runs of random changes."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pytest

from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.cursor import LookupCursor, Probe
from viewkeeper.state.key_hash import hash_keys
from viewkeeper.state.run import Run, arrange, merge

KEYS = {
    "one number": ([("k", pa.int64())], lambda rng: (rng.choice([None, *range(-4, 9)]),)),
    "numbers": ([("k", pa.int64()), ("l", pa.int32())], lambda rng: (rng.randrange(5), rng.choice([None, 0, 1, 2]))),
    "text": ([("k", pa.string())], lambda rng: (rng.choice([None, "", "a", "b", "c", "d", "e"]),)),
}


@pytest.mark.parametrize(
    ("kind", "collide"), [*((kind, False) for kind in KEYS), ("numbers", True), ("text", True)]
)  # different single numbers have different hashes
def test_places_are_those_of_the_rows_that_are_there(kind: str, collide: bool) -> None:
    fields, draw = KEYS[kind]
    names = tuple(name for name, _ in fields)
    rng = Random(f"{kind}{collide}")
    with PreparedStatements(threads=1) as duck:

        def coded(rows: pa.Table) -> np.ndarray:
            found = hash_keys(duck, rows.select(list(names)), names)
            return found % np.uint64(3) if collide else found

        for _ in range(40):
            there: dict[tuple, int] = {}
            runs: list[Run] = []
            for _ in range(rng.randrange(1, 6)):
                changed: list[tuple] = []
                for key in {k for k in (draw(rng) for _ in range(6)) if None not in k}:
                    if key in there:
                        changed.append((*key, there.pop(key), -1))
                    if rng.random() < 0.7:
                        there[key] = rng.randrange(100)
                        changed.append((*key, there[key], 1))
                rng.shuffle(changed)
                schema = pa.schema([*fields, ("v", pa.int64()), ("¤w", pa.int64())])
                rows = pa.table(list(zip(*changed, strict=True)) or [[]] * len(schema), schema=schema)
                runs.append(arrange(rows.append_column("¤h", pa.array(coded(rows)))))
                if len(runs) > 1 and rng.random() < 0.4:
                    runs[-2:] = [merge(duck, runs[-2:])]
            lying = LookupCursor([run for run in runs if run.num_rows])
            asked = [draw(rng) for _ in range(12)]
            columns = [pa.array(c, t) for c, (_, t) in zip(zip(*asked, strict=True), fields, strict=True)]
            probe = Probe(duck, columns, coded(pa.table(columns, names=list(names))))
            found = lying.unique(probe, names)
            at = np.flatnonzero(found >= 0)
            values = dict(zip(at, lying.select(found[at]).column("v").to_pylist(), strict=True)) if len(at) else {}
            assert [values.get(i) for i in range(len(asked))] == [there.get(key) for key in asked]
            for most in (1, 3, 1000):
                sums: dict[tuple[int, int], int] = {}
                for index, place, weight in lying.iter_matches(probe, names, most):
                    assert len(index) <= max(most, 1)
                    rows = lying.select(place).column("v").to_pylist()
                    for i, v, w in zip(index.tolist(), rows, weight.tolist(), strict=True):
                        sums[i, v] = sums.get((i, v), 0) + w
                expected = {(i, there[key]): 1 for i, key in enumerate(asked) if key in there}
                assert {k: w for k, w in sums.items() if w} == expected
