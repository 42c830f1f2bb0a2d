"""A maintainer in a process of its own, whose state is behind a URL: batches, each checked and told by its number."""

from __future__ import annotations

import sys
from typing import Any

from tests.contract import planned
from tests.contract.planned import check, fill, item

from viewkeeper.commit import cleanup
from viewkeeper.database import Database
from viewkeeper.resources.directory import StateDirectory
from viewkeeper.state import run_file
from viewkeeper.store.registry import open_store


def change(db: Any, step: int) -> None:
    db.put("items", [item(n, (n * step) % 90) for n in range(step, 400, 3)])
    db.delete("items", [(step * 7) % 1_000])


def main(url: str, first: int, last: int) -> None:
    """Steps `first` to `last` of a database that step 0 makes."""
    planned.install()
    cleanup._MIN_INTERVAL = 0.0
    run_file.PIECE_ROWS = 100
    with Database(open_store(url, "w"), mode="w", spark=None, progress=None, retention=0.0) as db:
        if first == 0:
            fill(db, 1_000, "totals", "bosses")
        for step in range(first, last + 1):
            change(db, step)
            db.refresh("driver")
            check(db)
            print(step, flush=True)
        found = db.doctor().findings
        if not all(one.ok for one in found):
            raise SystemExit(str(found))
        state = StateDirectory(db._store.state_path)
        state.remove("b0-never.vkr")  # what is not there, as what was removed before, is no error


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
