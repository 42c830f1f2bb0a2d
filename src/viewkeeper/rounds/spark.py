"""The Spark lane: one job a batch, whatever the number of views.

Each level is a `mapInArrow` over the exchange (`task`); between levels lies a shuffle by `dest`. Before the job, the
driver decides which lookups need none (`placing`), arranges the few changes that all tasks must see, and writes down
the rows of the batch where each task maps its share.
"""

from __future__ import annotations

import json
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from viewkeeper.errors import Contradiction, CorruptRun, CorruptState, Defect, EvaluationError, StoreError
from viewkeeper.operators.arrangement import Arrangement
from viewkeeper.operators.duck import Duck
from viewkeeper.operators.operator import Operator
from viewkeeper.operators.runs import RunEntry, write_container
from viewkeeper.plan.flow import Flow
from viewkeeper.rounds.given import Given, Rows, Share, filed
from viewkeeper.rounds.placing import is_few, place
from viewkeeper.rounds.reach import Reach
from viewkeeper.rounds.site import Fed, Site
from viewkeeper.rounds.task import PARTITIONS, SCHEMA, Job, Level, Message, as_batch, routed, unpacked
from viewkeeper.store.base import Spread
from viewkeeper.store.files import Directory
from viewkeeper.store.memory import Memory

T = TypeVar("T")
R = TypeVar("R")

_DAMAGE = {kind.__name__: kind for kind in (CorruptRun, Contradiction)}

_ATTEMPTS = 3
_GIVEN_UP = "indeterminate output"
"""In Spark's words when it could go on only by making a shuffle anew whose rows it takes for random."""


def run_on_spark(
    spark: Any,
    flow: Flow,
    active: frozenset[str],
    given: Mapping[str, Given],
    seeds: Iterable[Fed],
    manifest: Mapping[str, tuple[RunEntry, ...]],
    directory: str,
    number: int,
    durable: bool,
    duck: Duck,
    on_error: Callable[[Operator, Exception], Exception],
    near: bool,
    memory: Memory,
    reach: Reach | None = None,
    together: Flow | None = None,
) -> tuple[dict[int, list[pa.Table]], list[RunEntry]]:
    """Run the batch as one Spark job: what reached the sinks, and the runs that the job's tasks and the driver wrote.

    `near`: all tasks run on one machine, so that each can read all of the state at no cost, and they share `memory`.
    `reach`: what each must see; Unsupported if one does not. `together`: the flow with the paths of different views
    made together, which is run where tasks can read all that they look up.
    """
    parts = min(PARTITIONS, max(1, spark.sparkContext.defaultParallelism))
    seeds = list(seeds)
    sizes = {slot: (sum(e.rows for e in runs), sum(e.length for e in runs)) for slot, runs in manifest.items()}
    forms = [(flow, active)] if together is None else [(together, together.in_batches), (flow, active)]
    for flow, active in forms:
        placing = place(Site(duck, flow, lambda _: Arrangement(), active, memory), given, seeds, sizes, near)
        given = placing.given
        if all(name in placing.staying for name in placing.levels if flow.operators[name].together):
            break
    arranged = _written(directory, number, placing.arranged, durable)
    written: list[Path] = []
    messages: list[Message] = []
    shares: dict[tuple[str, int], Share] = {}
    for name, source in placing.given.items():
        if near and isinstance(source, Rows) and not is_few(source):
            written.append(Directory(directory) / f"b{number}-{secrets.token_hex(6)}.vkr")
            divided = filed(source.table, str(written[-1]), parts)
        else:
            divided = source.shares(duck, parts, memory)
        for index, share in enumerate(divided):
            shares[name, index] = share
            messages.append((index % parts, name, index, b""))
    messages += [m for consumer, port, delta in seeds for m in routed(consumer, port, delta, parts)]
    job = Job(
        flow,
        active - {e.slot.split("/")[0] for e in arranged},
        placing.levels,
        placing.staying,
        {e.slot: e for e in arranged},
        shares,
        manifest,
        directory,
        number,
        parts,
        durable,
        memory.divided(parts if near else 1).total,
        reach,
    )
    handle = spark.sparkContext.broadcast(job)
    levels = [Level(handle, level) for level in range(1 + max(placing.levels.values(), default=0))]
    try:
        results = _results(spark, as_batch(messages), levels, parts)
    except Exception as error:
        raise StoreError(
            f"The Spark job of batch {number} failed: {_cause(error)}",
            hint="Nothing was published; correct the cause and refresh again.",
        ) from error
    finally:
        handle.destroy()
        for path in written:
            path.unlink(missing_ok=True)
    if reach is not None and "!elsewhere" in results["node"].to_pylist():  # before what came of missing rows
        raise reach.refusal(f"a task of batch {number}")
    reached, entries = _collected(flow, results, on_error)
    return reached, [*arranged, *entries]


def _results(spark: Any, messages: pa.RecordBatch, levels: Sequence[Level], parts: int) -> pa.Table:
    """The rounds as one job. Nothing counts before its end, so a job that Spark gives up is simply run again.

    It does so when an executor dies with what later rounds read and some tasks of the last round are done: whatever
    they read came from a shuffle of Python's rows, and Spark does not know that these would be the same again.
    """
    from viewkeeper.plan.catalyst.own import at_work

    for left in reversed(range(_ATTEMPTS)):
        try:
            with at_work(spark):
                frame = spark.createDataFrame(pa.Table.from_batches([messages]))
                for level in levels:
                    frame = frame.repartitionById(parts, "dest").mapInArrow(level, SCHEMA)
                return frame.toArrow()
        except Exception as error:
            if not left or _GIVEN_UP not in str(error):
                raise
    raise Defect("The last attempt returns or raises")


def spread_on(spark: Any) -> Spread:
    """Pieces of work as the tasks of a Spark stage."""

    def spread(work: Callable[[T], R], pieces: Sequence[T], /) -> list[R]:
        if not pieces:
            return []
        try:
            done: list[R] = spark.sparkContext.parallelize(pieces, len(pieces)).map(work).collect()
        except Exception as error:
            raise StoreError(
                f"Capture on Spark failed: {_cause(error)}",
                hint="Nothing was published; correct the cause and refresh again.",
            ) from error
        return done

    return spread


def _written(directory: str, number: int, runs: Mapping[str, Any], durable: bool) -> list[RunEntry]:
    if not runs:
        return []
    return write_container(directory, f"b{number}-{secrets.token_hex(6)}.vkr", runs, fsync=durable)


def _collected(
    flow: Flow, results: pa.Table, on_error: Callable[[Operator, Exception], Exception]
) -> tuple[dict[int, list[pa.Table]], list[RunEntry]]:
    reached: dict[int, list[pa.Table]] = defaultdict(list)
    entries: list[RunEntry] = []
    for node, port, payload in zip(*(results[c].to_pylist() for c in ("node", "port", "payload")), strict=True):
        if node == "!error":
            failed = json.loads(payload)
            raise on_error(flow.operators[failed["operator"]], EvaluationError(failed["message"]))
        if node == "!damaged":
            failed = json.loads(payload)
            damage = _DAMAGE.get(failed["kind"], CorruptState)(failed["message"], hint=failed["hint"])
            raise on_error(flow.operators[failed["operator"]], damage)
        if node == "!sink":
            reached[port].append(unpacked(payload))
        elif node == "!runs":
            entries.extend(RunEntry.from_json(e) for e in json.loads(payload))
        else:
            raise Defect(f"Nobody took {node}")
    return dict(reached), entries


def _cause(error: Exception) -> str:
    """What a task said last: the line that a traceback ends with. If none spoke, how Spark's own account begins."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line.startswith("viewkeeper.errors.") or "Error:" in line[:80]]
    account = [line for line in lines if line and not line.startswith(("at ", "... "))]
    return (told[-1] if told else " ".join(account[:3]) or type(error).__name__)[:500]
