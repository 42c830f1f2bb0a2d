"""A check of strong consistency from outside: writers, the maintainer and readers are separate processes.

After the run, the writers' journals, ordered by the positions of the writes, are the history of the base tables. A
model computes each view's state at every position from them. Then:

    snapshot    each state equals the model at its batch's cut, for all views at once
    any         each state equals the model at some position that existed when it was read
    after=      … at a position not before the token
    LATEST      … at a position not before the last write that was finished when the read began
    order       no reader's batches ever go back
    follower    every state of a subscription is a state of the model, in order; complete: none is missing
    transfer    money only moves: the total is 0 in every state that a process saw

SC and ISC promise less (dissertation 6.2.2), and the check is weaker for them: each row of a view is a version that was
valid within the span of the scan, and no reader sees a row go back.

A failure names the process, what it saw and what it should have seen.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from viewkeeper.errors import Defect
from viewkeeper.model.catalog.strategies import STRATEGIES
from viewkeeper.verify import bank


@dataclass(frozen=True)
class ConsistencyRun:
    """The settings of a run: how long, how many processes, and how the views are maintained."""

    seconds: float = 20.0
    writers: int = 2
    readers: int = 2
    rate: float = 40.0
    """Write calls per second, for each writer."""
    lane: str = "auto"
    strategy: str = "IMB"
    """The strategy of all views. With IN each write call is its own batch, and every state must appear."""
    interval: float = 0.5
    """Seconds between two runs of a strategy with intervals."""
    kill: bool = False
    """Kill the maintainer now and then; a standby takes over."""
    seed: int = 1


@dataclass
class Verdict:
    """The number of checks by kind, and the failures."""

    writes: int = 0
    check_counts: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    batches: int = 0

    @property
    def is_consistent(self) -> bool:
        return not self.failures and self.writes > 0 and self.check_counts.get("snapshot", 0) > 0


def verify_consistency(
    url: str,
    spark: Any,
    directory: str | Path,
    settings: ConsistencyRun | None = None,
    log: Callable[[str], None] = lambda _: None,
) -> Verdict:
    """Create the bank in a new database, run the processes, and check every state that they saw."""
    import viewkeeper as vk

    settings = settings or ConsistencyRun()
    with vk.open(url, spark=spark) as db:
        for statement in bank.TABLES:
            db.sql(statement)
        for name, query in bank.VIEWS.items():
            options = f"WITH (strategy = '{settings.strategy}', interval = {settings.interval})"
            db.sql(f"CREATE MATERIALIZED VIEW {name} {options} AS {query}")
        token = db.put("owners", bank.owners().puts)
        first = {"position": token.position, "table": "owners", "puts": bank.owners().puts, "deletes": []}
        db.refresh()
    journals = Path(directory)
    journals.mkdir(parents=True, exist_ok=True)
    (journals / "writer-start.jsonl").write_text(json.dumps(first) + "\n", encoding="utf-8")
    log(f"{settings.writers} writers, {settings.readers} readers, for {settings.seconds:g} s")
    _run_processes(url, journals, settings)
    log("checking what was seen")
    return check_journals(journals, settings.strategy)


def _run_processes(url: str, journals: Path, settings: ConsistencyRun) -> None:
    pace: dict[str, Any] = {"lane": settings.lane}
    running: list[tuple[str, subprocess.Popen[bytes]]] = []

    def start(role: str, number: int, **options: Any) -> subprocess.Popen[bytes]:
        journal = str(journals / f"{role}-{number}.jsonl")
        arguments = [role, journal, url, json.dumps({"number": number, "seed": settings.seed, **options})]
        process = subprocess.Popen(
            [sys.executable, "-m", "viewkeeper.verify.consistency_roles", *arguments], stdin=subprocess.PIPE
        )
        running.append((role, process))
        return process

    try:
        maintainers = [start("maintainer", n, pace=pace) for n in range(2 if settings.kill else 1)]
        _wait_for_journal(journals / "maintainer-0.jsonl")
        for number, view in enumerate(bank.VIEWS):
            start("follower", number, view=view)
        for number in range(settings.readers):
            start("reader", number, pause=0.01, patient=settings.kill)
        for number in range(settings.writers):
            start("writer", number, rate=settings.rate)
        _wait_for_journal(journals / "writer-0.jsonl")
        deadline = time.monotonic() + settings.seconds
        next_kill = 2
        while (remaining := deadline - time.monotonic()) > 0:
            time.sleep(min(remaining, settings.seconds / 5))
            if settings.kill and deadline - time.monotonic() > settings.seconds / 4:
                victim = maintainers.pop(0)
                victim.send_signal(signal.SIGKILL)
                _end_process(victim)
                running.remove(("maintainer", victim))
                maintainers.append(start("maintainer", next_kill, pace=pace))
                next_kill += 1
        # Writers first, so that the other processes see the last writes.
        for role in ("writer", "reader", "follower", "maintainer"):
            for process in [p for r, p in running if r == role]:
                if process.stdin is not None:
                    process.stdin.close()
                if process.wait(60) != 0:
                    raise Defect(f"A {role} ended with {process.returncode}")
            time.sleep(1.0)
    finally:
        for _, process in running:
            _end_process(process)


def _end_process(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and close its input."""
    if process.poll() is None:
        process.kill()
    process.wait()
    if process.stdin is not None and not process.stdin.closed:
        process.stdin.close()


def _wait_for_journal(journal: Path) -> None:
    deadline = time.monotonic() + 120
    while not (journal.exists() and journal.stat().st_size):
        if time.monotonic() > deadline:
            raise Defect(f"{journal.stem} did not start")
        time.sleep(0.05)


def check_journals(journals: Path, strategy: str = "IMB") -> Verdict:
    """Check the journals against the model."""
    strategy_type = STRATEGIES[strategy.upper()]
    verdict = Verdict()
    history = _read_history(journals)
    verdict.writes = len(history.positions)
    for journal in sorted(journals.glob("*.jsonl")):
        role = journal.stem.partition("-")[0]
        lines = _read_lines(journal)
        if role == "reader":
            (_check_scans if strategy_type.reads_live else _check_reader)(verdict, history, journal.stem, lines)
        elif role == "follower" and not strategy_type.reads_live:
            _check_follower(verdict, history, journal.stem, lines, is_complete=strategy_type.is_per_call)
    return verdict


@dataclass(frozen=True)
class History:
    """Each view's fingerprint after each write call; `positions` ascend."""

    positions: Sequence[int]
    fingerprints: Mapping[str, Sequence[int]]
    accounts: Mapping[int, Sequence[tuple[int, tuple[Any, ...] | None]]]
    """Every version of an account: the position from which on it is valid, and the row (None: it does not exist)."""

    def index_at(self, cut: int) -> int:
        """The index of the last write call not after a cut."""
        from bisect import bisect_right

        return bisect_right(self.positions, cut) - 1


def _read_history(journals: Path) -> History:
    writes = [line for journal in journals.glob("writer-*.jsonl") for line in _read_lines(journal)]
    writes.sort(key=lambda line: line["position"])
    model = bank.BankModel()
    prints: dict[str, list[int]] = {name: [] for name in bank.VIEWS}
    accounts: dict[int, list[tuple[int, tuple[Any, ...] | None]]] = {}
    for line in writes:
        if line["table"] == "accounts":
            for row in line["puts"]:
                accounts.setdefault(row["id"], [(0, None)]).append((line["position"], tuple(row.values())))
            for key in line["deletes"]:
                accounts.setdefault(key, [(0, None)]).append((line["position"], None))
        model.apply(bank.BankWrite(line["table"], line["puts"], line["deletes"]))
        for name, value in model.fingerprints.items():
            prints[name].append(value)
    return History([line["position"] for line in writes], prints, accounts)


def _check_reader(verdict: Verdict, history: History, process_name: str, lines: Sequence[Mapping[str, Any]]) -> None:
    epoch = cut = 0
    for number, line in enumerate(lines):
        kind = line["kind"]
        verdict.check_counts[kind] = verdict.check_counts.get(kind, 0) + 1
        where = f"{process_name}, read {number} ({kind})"
        if line["total"] not in (None, 0):
            verdict.failures.append(f"{where}: the total is {line['total']}, money was lost or made")
        if kind == "snapshot":
            if line["epoch"] < epoch or line["cut"] < cut:
                verdict.failures.append(f"{where}: batch {line['epoch']} after batch {epoch} was seen")
            epoch, cut = line["epoch"], line["cut"]
            spans = line.get("spans", {})
            wrong = [
                name
                for name, seen_print in line["prints"].items()
                if history.fingerprints[name][history.index_at(spans.get(name, (0, cut))[1])] != seen_print
            ]
            if wrong:
                verdict.failures.append(f"{where}: {', '.join(wrong)} differ from the tables at position {cut}")
            verdict.batches = max(verdict.batches, epoch)
            continue
        low = max(0, history.index_at(line["asked"]))
        high = history.index_at(line["high"])
        for name, seen_print in line["prints"].items():
            if seen_print not in history.fingerprints[name][low : high + 1]:
                verdict.failures.append(
                    f"{where}: {name} is no state of positions {line['asked']} to {line['high']} of the tables"
                )


def _check_scans(verdict: Verdict, history: History, process_name: str, lines: Sequence[Mapping[str, Any]]) -> None:
    newest: dict[int, int] = {}
    for number, line in enumerate(lines):
        verdict.check_counts[line["kind"]] = verdict.check_counts.get(line["kind"], 0) + 1
        verdict.batches = max(verdict.batches, line.get("epoch", 0))
        if line["kind"] != "snapshot":
            continue
        low, high = line["spans"]["copy"]
        seen_rows = {row[0]: tuple(row) for row in line["copy"]}
        for account, versions in history.accounts.items():
            valid = [
                i
                for i, (position, _) in enumerate(versions)
                if position <= high and (i + 1 == len(versions) or versions[i + 1][0] > low)
            ]
            found = [i for i in valid if versions[i][1] == seen_rows.get(account)]
            where = f"{process_name}, read {number}: account {account} is {seen_rows.get(account)}"
            if not found:
                verdict.failures.append(f"{where}, which it was not within positions {low} to {high}")
            elif found[-1] < newest.get(account, 0):
                verdict.failures.append(f"{where}, which is older than what was seen before")
            else:
                newest[account] = max(newest.get(account, 0), found[0])


def _check_follower(
    verdict: Verdict, history: History, process_name: str, lines: Sequence[Mapping[str, Any]], is_complete: bool
) -> None:
    state_index = 0
    for number, line in enumerate(lines):
        verdict.check_counts["follow"] = verdict.check_counts.get("follow", 0) + 1
        ((view, seen_print),) = line["prints"].items()
        states = history.fingerprints[view]
        end = history.index_at(line["position"]) + 1
        match = next((i for i in range(state_index, end) if states[i] == seen_print), None)
        if match is None:
            verdict.failures.append(
                f"{process_name}, delta {number}: {view} is no state of the tables after the one before"
            )
            continue
        skipped = {states[i] for i in range(state_index, match)} - {states[state_index], seen_print}
        if is_complete and number and skipped:
            verdict.failures.append(f"{process_name}, delta {number}: {len(skipped)} states of {view} were left out")
        state_index = match
    if lines and states[state_index] != states[-1]:
        verdict.failures.append(f"{process_name}: the last state seen is not the last one there was")


def _read_lines(journal: Path) -> list[dict[str, Any]]:
    # The last line of a process that was killed may be cut off.
    lines = journal.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines]
