"""Families of views as text: what declares a parameter, what stands for one, and what the whole means."""

from __future__ import annotations

from decimal import Decimal
from itertools import product
from typing import Any

import duckdb
import pytest

from viewkeeper import expressions
from viewkeeper.errors import BadStatement, BadValue
from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types
from viewkeeper.plan.families.compile import make_try_expr
from viewkeeper.syntax import statements
from viewkeeper.syntax.family_text import declared_parameters, lateral_query
from viewkeeper.syntax.lexer import lex
from viewkeeper.syntax.literals import bind_parameters
from viewkeeper.syntax.parameter_tables import quote_parameter_tables

TEXT = "CREATE MATERIALIZED VIEW q PARAMETERS (day DATE, d DECIMAL(4,2), `q y` INT NOT NULL) KEY (k) AS SELECT :day"


def test_parameters_are_columns_that_are_never_null() -> None:
    made = statements.parse(TEXT)
    assert isinstance(made, statements.CreateView)
    assert [(c.name, c.type, c.nullable) for c in made.parameters] == [
        ("day", types.DATE, False),
        ("d", types.decimal(4, 2), False),
        ("q y", types.INT, False),
    ]
    assert (made.key, made.query) == (("k",), "SELECT :day")


def test_a_familys_own_names_stay_open_and_others_get_their_values() -> None:
    assert declared_parameters(list(lex(TEXT))) == {"day", "d", "q y"}
    assert declared_parameters(list(lex("CREATE MATERIALIZED VIEW parameters AS SELECT 1"))) == frozenset()
    assert declared_parameters(list(lex("SELECT parameters FROM t"))) == frozenset()
    text = "CREATE MATERIALIZED VIEW q PARAMETERS (day DATE) AS SELECT x FROM t WHERE x < :DAY AND y = :least"
    assert bind_parameters(text, {"least": 3}).endswith("x < :DAY AND y =  3")
    with pytest.raises(BadValue, match=":least"):
        bind_parameters(text, {})


def test_casts_and_paths_are_no_parameters() -> None:
    found = lateral_query("q", "SELECT x::int, a:b, ':day', `:day` FROM t WHERE z>:Day -- :no", ["day"])
    assert found == (
        "SELECT `¤p`.*, `¤b`.* FROM `q.parameters` `¤p`,"
        " LATERAL (SELECT x::int, a:b, ':day', `:day` FROM t WHERE z>`¤p`.`day` -- :no\n) `¤b`"
    )
    with pytest.raises(BadStatement, match="none of the parameters of q"):
        lateral_query("q", "SELECT :other", ["day"])


def test_a_parameter_that_the_query_does_not_use_is_refused_by_name() -> None:
    with pytest.raises(BadStatement, match="The query of q does not use its parameter Until") as refused:
        lateral_query("q", "SELECT x FROM t WHERE x > :since -- :until", ["since", "Until"])
    assert refused.value.hint == "Write :Until where its value belongs, or leave it out of PARAMETERS."


def test_the_table_of_parameters_is_named_after_its_family() -> None:
    for spelt in ("q.parameters", "`q`.`parameters`", "q.`Parameters`", "`q.parameters`"):
        described = statements.parse(f"DESCRIBE {spelt}")
        assert isinstance(described, statements.Describe)
        assert described.name == "q.parameters"
    with pytest.raises(BadStatement, match="one part"):
        statements.parse("DESCRIBE q.other")


@pytest.mark.parametrize(
    ("query", "read"),
    [
        ("SELECT * FROM q.parameters", "SELECT * FROM `q.parameters`"),
        ("select q.Parameters.day from Q . parameters", "select `q.parameters`.day from `Q.parameters`"),
        ("SELECT 1 FROM t, `q y`.parameters p", "SELECT 1 FROM t, `q y.parameters` p"),
        ("SELECT 1 FROM t JOIN q.parameters USING (k)", "SELECT 1 FROM t JOIN `q.parameters` USING (k)"),
        ("SELECT 1 FROM (q.parameters p CROSS JOIN t)", "SELECT 1 FROM (`q.parameters` p CROSS JOIN t)"),
        ("SELECT (SELECT 1 FROM q.parameters) FROM t", "SELECT (SELECT 1 FROM `q.parameters`) FROM t"),
        ("WITH a AS (FROM q.parameters) SELECT 1", "WITH a AS (FROM `q.parameters`) SELECT 1"),
        ("SELECT `q`.`parameters`.`day` FROM `q`.`parameters`", "SELECT `q.parameters`.`day` FROM `q.parameters`"),
        ("SELECT q.parameters.day FROM q.`parameters`", "SELECT `q.parameters`.day FROM `q.parameters`"),
        # Columns called so, and what only looks like either.
        ("SELECT a, q.parameters FROM q", None),
        ("SELECT 1 FROM t q WHERE q.parameters IN (1, q.parameters) ORDER BY 1, q.parameters", None),
        ("SELECT extract(YEAR FROM q.parameters), q.parameters.x FROM q", None),
        ("SELECT q.parameters IS NOT DISTINCT FROM q.parameters FROM q", None),
        ("SELECT 'FROM q.parameters' FROM q -- FROM q.parameters", None),
        ("SELECT 1 FROM q.parameters.more", None),
        ("SELECT q.`parameters` FROM q", None),
        ("SELECT 1 FROM q.'parameters'", None),
        ("SELECT 1 FROM q JOIN r ON q.parameters = r.k", None),
    ],
)
def test_a_table_of_parameters_is_read_without_backticks(query: str, read: str | None) -> None:
    assert quote_parameter_tables(query) == (read or query)
    assert quote_parameter_tables(quote_parameter_tables(query)) == (read or query)


def _op(name: str, type_: types.Type, *args: Expr) -> Expr:
    return Expr(name, type_, args, ("ANSI",) if name in ("Add", "Subtract", "Multiply", "Divide", "Cast") else None)


WIDE, WHOLE, REAL = types.decimal(38, 2), types.BIGINT, types.DOUBLE
A, B = (Expr("column", WIDE, value=name) for name in "ab")
N, M = (Expr("column", WHOLE, value=name) for name in "ij")
X, Y = (Expr("column", REAL, value=name) for name in "xy")
TEST = _op("GreaterThan", types.BOOLEAN, X, Y)
TRIED = {
    "product": _op("Multiply", types.decimal(38, 4), A, B),
    "chain": _op("Subtract", WIDE, _op("Add", WIDE, A, B), _op("Subtract", WIDE, B, A)),
    "integers": _op("Subtract", WHOLE, _op("Multiply", WHOLE, N, M), M),
    "quotient": _op("Divide", REAL, X, _op("Divide", REAL, X, Y)),
    "within": _op("Cast", REAL, _op("Add", WHOLE, N, M)),
    "chosen": _op("CaseWhen", WHOLE, TEST, _op("Add", WHOLE, N, M), _op("IsNull", types.BOOLEAN, X), M, N),
    "either": _op("If", WHOLE, TEST, _op("Multiply", WHOLE, N, N), M),
}


@pytest.mark.parametrize("name", TRIED)
def test_what_may_fail_is_tried_where_it_does(name: str) -> None:
    """Each is evaluated by itself over every row, and fails there or not; the tried one never does, and says it."""
    duck = duckdb.connect()
    expressions.register_functions(duck)
    expr = TRIED[name]
    found = make_try_expr(expr)
    assert found is not None
    assert expressions.can_raise(expr)
    assert not expressions.can_raise(found.value)
    values: dict[str, list[Any]] = {
        "a": [None, Decimal("2.5"), Decimal(8) * 10**35],
        "i": [None, 3, 2**62, -(2**63)],
        "x": [None, 0.0, 2.0],
    }
    of_kind = values["a" if "a" in expr.columns() else "i" if "i" in expr.columns() else "x"]
    rows = list(product(of_kind, of_kind, values["x"], values["x"]))
    failed = set()
    for first, second, x, y in rows:
        kinds = {"a": "DECIMAL(38,2)", "b": "DECIMAL(38,2)", "i": "BIGINT", "j": "BIGINT", "x": "DOUBLE", "y": "DOUBLE"}
        given = {"a": first, "b": second} if "a" in expr.columns() else {"i": first, "j": second}
        given = ({} if "a" not in expr.columns() and "i" not in expr.columns() else given) | {"x": x, "y": y}
        source = ", ".join(f"CAST({_text(v)} AS {kinds[c]}) AS {c}" for c, v in given.items())

        def asked(one: Expr, source: str = source) -> Any:
            return duck.execute(f"SELECT {expressions.render(one)} FROM (SELECT {source})").fetchone()

        try:
            expected: Any = asked(expr)
        except duckdb.Error:
            expected = "failed"
        failed.add(expected == "failed")
        assert (asked(found.fails) == (True,)) == (expected == "failed"), (source, expected)
        if expected != "failed":
            assert asked(found.value) == expected, source
    assert failed == {True, False}


def _text(value: Any) -> str:
    return "NULL" if value is None else f"'{value}'"


def test_what_cannot_be_tried_is_none() -> None:
    assert make_try_expr(_op("Add", REAL, X, _op("Cast", REAL, Expr("column", types.STRING, value="t")))) is None
