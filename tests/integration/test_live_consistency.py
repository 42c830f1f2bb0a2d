"""What readers of other processes saw, checked against what writers wrote: strong consistency from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from viewkeeper.verify import bank
from viewkeeper.verify.consistency import ConsistencyRun, check_journals, verify_consistency


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(ConsistencyRun(seconds=6), id="micro-batches"),
        pytest.param(
            ConsistencyRun(seconds=6, strategy="IN", rate=2, readers=1),
            id="every write call its own batch",
            marks=pytest.mark.deep,
        ),
        pytest.param(ConsistencyRun(seconds=8, kill=True), id="maintainers killed", marks=pytest.mark.deep),
        pytest.param(
            ConsistencyRun(seconds=6, strategy="ISN", readers=1), id="incremental snapshots", marks=pytest.mark.deep
        ),
        pytest.param(ConsistencyRun(seconds=6, strategy="SC", readers=1), id="scans", marks=pytest.mark.deep),
    ],
)
def test_every_state_that_anybody_saw_is_one_state_of_the_tables(
    plan: ConsistencyRun, spark: Any, tmp_path: Path
) -> None:
    verdict = verify_consistency(f"lmdb:{tmp_path / 'bank'}", spark, tmp_path / "journals", plan)
    assert verdict.failures == []
    assert verdict.is_consistent
    assert verdict.check_counts.keys() >= {"snapshot", "after", "any"}


def test_the_check_finds_what_is_wrong(tmp_path: Path) -> None:
    """A journal of a reader that saw a torn transfer, an old batch, and a state that never was."""
    import json

    def put(position: int, *accounts: tuple[int, int]) -> str:
        rows = [{"id": i, "owner": "o1", "balance": b} for i, b in accounts]
        return json.dumps({"position": position, "table": "accounts", "puts": rows, "deletes": []})

    (tmp_path / "writer-0.jsonl").write_text("\n".join([put(1, (1, 0), (2, 0)), put(2, (1, -5), (2, 5)), ""]))
    right = bank.fingerprint([("o1", 2, 0)])

    def seen(epoch: int, cut: int, by_owner: int, total: int) -> str:
        return json.dumps(
            {"kind": "snapshot", "epoch": epoch, "cut": cut, "prints": {"by_owner": by_owner}, "total": total}
        )

    def failures(*lines: str) -> list[str]:
        (tmp_path / "reader-0.jsonl").write_text("\n".join([*lines, ""]))
        return check_journals(tmp_path).failures

    assert failures(seen(1, 1, right, 0), seen(2, 2, right, 0)) == []
    assert "money was lost" in failures(seen(1, 1, right, 5))[0]
    assert "batch 1 after batch 2" in failures(seen(2, 2, right, 0), seen(1, 1, right, 0))[0]
    assert "by_owner differ" in failures(seen(1, 1, right + 1, 0))[0]
