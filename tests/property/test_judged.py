"""The bits of many views' conditions are those of a slow twin that judges each conjunction of each row by itself."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types
from viewkeeper.operators.delta_join import plan
from viewkeeper.operators.delta_join.plan import PathFilter, evaluate_exit_masks, mask_word_indexes, path_column
from viewkeeper.resources.prepared_statements import PreparedStatements

X = path_column(2, "x", types.BIGINT, True)


def above(bound: int) -> Expr:
    return Expr("GreaterThan", types.BOOLEAN, (X, Expr("literal", types.BIGINT, value=bound)))


def meets(condition: Expr, value: int | None) -> bool:
    """As WHERE takes it: NULL is not met."""
    if condition.op == "And":
        return all(meets(part, value) for part in condition.args)
    if condition.op == "IsNull":
        return value is None
    if condition.op == "Or":
        return any(meets(part, value) for part in condition.args)
    return value is not None and value > condition.args[1].value


@pytest.mark.parametrize("at_once", [3, 1 << 16])
@pytest.mark.parametrize("statements", [False, True])
def test_bits_are_those_of_each_conjunction_alone(
    monkeypatch: pytest.MonkeyPatch, at_once: int, statements: bool
) -> None:
    monkeypatch.setattr(plan, "_ROWS_PER_EVALUATION", at_once)
    if statements:
        monkeypatch.setattr(plan, "compile_predicate", lambda condition: None)
    rng = Random(at_once)
    with PreparedStatements(threads=1) as duck:
        for _ in range(15):
            values = [rng.choice([None, *range(10)]) for _ in range(rng.randrange(12))]
            tests: dict[tuple[Expr, ...], int] = {}
            for number in range(rng.choice([1, 5, 140])):  # several words of bits
                atoms = [above(rng.randrange(10)) for _ in range(rng.randrange(1, 4))]
                if rng.random() < 0.3:
                    atoms.append(Expr("IsNull", types.BOOLEAN, (X,), nullable=False))
                if rng.random() < 0.3:  # one that takes a statement
                    atoms.insert(0, Expr("Or", types.BOOLEAN, (above(rng.randrange(10)), above(rng.randrange(10)))))
                if rng.random() < 0.3:
                    atoms = [Expr("And", types.BOOLEAN, (atoms[0], atoms[-1])), *atoms]
                if rng.random() < 0.9:  # or an exit without conditions here
                    tests[tuple(atoms)] = tests.get(tuple(atoms), 0) | 1 << number
            if not tests:
                continue
            check = PathFilter(tuple(tests.items()))
            found = evaluate_exit_masks(duck, check, pa.table({"2.x": pa.array(values, pa.int64())}))
            assert sorted(found) == mask_word_indexes(check.exit_mask)
            for place, value in enumerate(values):
                expected = sum(
                    exits
                    for conjuncts, exits in tests.items()
                    if all(meets(condition, value) for condition in conjuncts)
                )
                assert sum(int(bits[place]) << (64 * word) for word, bits in found.items()) == expected
