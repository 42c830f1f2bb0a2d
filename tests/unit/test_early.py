"""What tasks report while others run, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from viewkeeper.model import types
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.rounds.early import Early
from viewkeeper.store.files import Directory
from viewkeeper.store.terms import Begun

VIEW = Table(7, "v", (Column("id", types.of("bigint")),), (KeyPart("id"),))


class Given(Begun):
    """A commit that was begun."""

    encode = staticmethod(pa.Table.from_pylist)

    def __init__(self) -> None:
        self.given_up = 0

    def apply(self, table: Table, encoded: Any) -> None:
        raise AssertionError("nothing was reported whole")

    def give_up(self) -> None:
        self.given_up += 1


def test_a_report_that_comes_while_the_transaction_is_given_up_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = Given()
    early = Early(lambda *_: begun)
    reports = early.expect(Directory(tmp_path), 1, 3, frozenset([VIEW.id]), {VIEW.id: VIEW})
    assert reports is not None
    expect_none = Early._expect_none

    def reported_just_then(self: Early) -> None:
        last = dict(self._waiting).get(2)
        expect_none(self)
        if last is not None:
            last.write_text("[]")

    monkeypatch.setattr(Early, "_expect_none", reported_just_then)
    (tmp_path / reports.names[0]).write_text("no report")
    early._look()
    assert begun.given_up == 1
    assert early.begun is None
    assert early.left([]) == []
    early.close()
