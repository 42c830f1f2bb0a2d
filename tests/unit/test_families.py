"""Families of views as text: what declares a parameter, what stands for one, and what the whole means."""

from __future__ import annotations

import pytest

from viewkeeper.errors import BadStatement, BadValue
from viewkeeper.model import types
from viewkeeper.plan import statements
from viewkeeper.plan.families.texts import declared, lateral
from viewkeeper.plan.tokens import tokens
from viewkeeper.sql.parameters import bound

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
    assert declared(list(tokens(TEXT))) == {"day", "d", "q y"}
    assert declared(list(tokens("CREATE MATERIALIZED VIEW parameters AS SELECT 1"))) == frozenset()
    assert declared(list(tokens("SELECT parameters FROM t"))) == frozenset()
    text = "CREATE MATERIALIZED VIEW q PARAMETERS (day DATE) AS SELECT x FROM t WHERE x < :DAY AND y = :least"
    assert bound(text, {"least": 3}).endswith("x < :DAY AND y =  3")
    with pytest.raises(BadValue, match=":least"):
        bound(text, {})


def test_casts_and_paths_are_no_parameters() -> None:
    found = lateral("q", "SELECT x::int, a:b, ':day', `:day` FROM t WHERE z>:Day -- :no", ["day"])
    assert found == (
        "SELECT `_p`.*, `_b`.* FROM `q.parameters` `_p`,"
        " LATERAL (SELECT x::int, a:b, ':day', `:day` FROM t WHERE z>`_p`.`day` -- :no\n) `_b`"
    )
    with pytest.raises(BadStatement, match="none of the parameters of q"):
        lateral("q", "SELECT :other", ["day"])


def test_the_table_of_parameters_is_named_after_its_family() -> None:
    described = statements.parse("DESCRIBE q.parameters")
    assert isinstance(described, statements.Describe)
    assert described.name == "q.parameters"
    with pytest.raises(BadStatement, match="one part"):
        statements.parse("DESCRIBE q.other")
