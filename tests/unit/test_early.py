"""What tasks report while others run, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from viewkeeper.model import types
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.resources.directory import StateDirectory
from viewkeeper.runtime.spark.pipelined_commit import PipelinedCommit
from viewkeeper.store.contract.commits import OpenCommit

VIEW = Table(7, "v", (Column("id", types.parse_type("bigint")),), (KeyPart("id"),))


class Given(OpenCommit):
    """A commit that was begun."""

    encode = staticmethod(pa.Table.from_pylist)

    def __init__(self) -> None:
        self.given_up = 0

    def apply(self, table: Table, encoded: Any) -> None:
        raise AssertionError("nothing was reported whole")

    def abort(self) -> None:
        self.given_up += 1


def test_what_is_reported_when_the_transaction_is_given_up_is_left_and_removed(tmp_path: Path) -> None:
    begun = Given()
    early = PipelinedCommit(lambda *_: begun)
    reports = early.begin(StateDirectory(tmp_path), 1, 3, frozenset([VIEW.id]), {VIEW.id: VIEW})
    assert reports is not None
    for share, told in enumerate(["no report", "[]"]):
        (tmp_path / reports.files[share]).write_text(told)
    early._poll_reports()
    (tmp_path / reports.files[2]).write_text("[]")  # its task did not know
    assert begun.given_up == 1
    assert early.open_commit is None
    assert early.unapplied_changes([]) == []
    early.close()
    assert not list(tmp_path.iterdir())
