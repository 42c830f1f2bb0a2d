"""A bank as a workload whose every state is known: money moves between accounts, so the total is always 0.

The module has tables and views, and a model of them in plain Python that follows the writers' journals. The model
computes for every state of every view a *fingerprint* (a sum of hashes of its rows, so a changed row updates it in
constant time). A state that a reader saw is right if its fingerprint equals the model's at the batch's cut.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

TABLES = (
    "CREATE TABLE accounts (id BIGINT, owner STRING, balance BIGINT, PRIMARY KEY (id))",
    "CREATE TABLE owners (owner STRING, region STRING, PRIMARY KEY (owner))",
)
VIEWS: Mapping[str, str] = {
    "total": "SELECT count(*) AS n, coalesce(sum(balance), 0) AS total FROM accounts",
    "by_owner": "SELECT owner, count(*) AS n, sum(balance) AS total FROM accounts GROUP BY owner",
    "regions": """SELECT a.id, a.balance, o.region FROM accounts a JOIN owners o ON a.owner = o.owner
                  WHERE a.balance > 0""",
    "copy": "SELECT id, owner, balance FROM accounts",
}
OWNERS, ACCOUNTS = 12, 60
"""Number of owners, and of accounts of each writer."""

Row = dict[str, Any]


@dataclass(frozen=True)
class BankWrite:
    """One write call: rows put into, or keys deleted from, one table."""

    table: str
    puts: list[Row] = field(default_factory=list)
    deletes: list[Any] = field(default_factory=list)


def owners() -> BankWrite:
    return BankWrite("owners", [{"owner": f"o{i}", "region": f"r{i % 3}"} for i in range(OWNERS)])


def writes(writer: int, seed: int) -> Iterator[BankWrite]:
    """The endless writes of a writer: transfers between its own accounts, openings, closings, owners that move."""
    generator = random.Random(1000 * seed + writer)
    balances: dict[int, int] = {}
    holders: dict[int, str] = {}

    def row(account: int) -> Row:
        return {"id": account, "owner": holders[account], "balance": balances[account]}

    while True:
        kind = generator.random()
        if (kind < 0.1 and len(balances) < ACCOUNTS) or len(balances) < 3:
            account = 1000 * writer + generator.randrange(ACCOUNTS)
            if account not in balances:
                balances[account], holders[account] = 0, f"o{generator.randrange(OWNERS)}"
                yield BankWrite("accounts", [row(account)])
        elif kind < 0.15 and any(b == 0 for b in balances.values()):
            account = generator.choice([a for a, b in balances.items() if b == 0])
            del balances[account], holders[account]
            yield BankWrite("accounts", deletes=[account])
        elif kind < 0.2 and writer == 0:
            yield BankWrite(
                "owners", [{"owner": f"o{generator.randrange(OWNERS)}", "region": f"r{generator.randrange(4)}"}]
            )
        else:
            source, target = generator.sample(sorted(balances), 2)
            amount = generator.choice([balances[source], generator.randrange(1, 100)])
            balances[source] -= amount
            balances[target] += amount
            yield BankWrite("accounts", [row(source), row(target)])


class BankModel:
    """The tables and views after each write call."""

    def __init__(self) -> None:
        self.accounts: dict[int, Row] = {}
        self.owners: dict[str, str] = {}
        self._sums: dict[str, tuple[int, int]] = {}
        self.fingerprints = dict.fromkeys(VIEWS, 0)
        self._record_change("total", None, (0, 0))

    def apply(self, write: BankWrite) -> None:
        if write.table == "owners":
            for row in write.puts:
                accounts = [a for a in self.accounts.values() if a["owner"] == row["owner"]]
                before = [self._regions_row(a) for a in accounts]
                self.owners[row["owner"]] = row["region"]
                for old, account in zip(before, accounts, strict=True):
                    self._record_change("regions", old, self._regions_row(account))
            return
        for row in write.puts:
            self._apply_account(row["id"], row)
        for key in write.deletes:
            self._apply_account(key, None)

    def _apply_account(self, key: int, row: Row | None) -> None:
        old = self.accounts.pop(key, None)
        count, money = len(self.accounts) + (old is not None), sum(t for _, t in self._sums.values())
        before = (count, money)
        region = None if old is None else self._regions_row(old)
        if old is not None:
            self._apply_group(old["owner"], -1, -old["balance"])
        if row is not None:
            self.accounts[key] = row
            self._apply_group(row["owner"], 1, row["balance"])
        self._record_change("regions", region, None if row is None else self._regions_row(row))
        self._record_change("copy", _row_values(old), _row_values(row))
        self._record_change("total", before, (len(self.accounts), sum(t for _, t in self._sums.values())))

    def _apply_group(self, owner: str, count: int, money: int) -> None:
        old = self._sums.get(owner)
        n, total = (old or (0, 0))[0] + count, (old or (0, 0))[1] + money
        if n:
            self._sums[owner] = (n, total)
        else:
            self._sums.pop(owner)
        self._record_change("by_owner", old and (owner, *old), (owner, n, total) if n else None)

    def _regions_row(self, account: Row) -> tuple[Any, ...] | None:
        region = self.owners.get(account["owner"])
        return (account["id"], account["balance"], region) if region is not None and account["balance"] > 0 else None

    def _record_change(self, view: str, before: tuple[Any, ...] | None, after: tuple[Any, ...] | None) -> None:
        deleted = 0 if before is None else _row_fingerprint(before)
        inserted = 0 if after is None else _row_fingerprint(after)
        self.fingerprints[view] = (self.fingerprints[view] - deleted + inserted) % 2**64


def _row_values(row: Row | None) -> tuple[Any, ...] | None:
    return None if row is None else tuple(row.values())


def fingerprint(rows: Iterable[Iterable[Any]]) -> int:
    """The fingerprint of a view's rows as a reader saw them, each with its values in column order."""
    return sum(_row_fingerprint(tuple(row)) for row in rows) % 2**64


def _row_fingerprint(row: tuple[Any, ...]) -> int:
    return int.from_bytes(hashlib.blake2b(repr(row).encode(), digest_size=8).digest(), "big")
