"""Metrics for Prometheus: counters of this process, and gauges from the database's status at the time of a scrape.

Names have a unit (`_seconds`, `_bytes`) and totals end in `_total`, by Prometheus' conventions. Batches are counted by
the process that reads them from the batch record, whichever process maintains.

What every request counts is counted only in the event loop (`LoopCounter`, `LoopHistogram`), by plain additions. The
library's own counters, which any thread may use, would take a tenth of the time of a read by key.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from viewkeeper.read.status import Status

MEDIA = "text/plain; version=0.0.4; charset=utf-8"
_READS = ("get", "scan", "sql", "changes", "look")
_WRITES = ("put", "update", "delete", "sql")
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class LoopCounter:
    """A counter that only the event loop uses."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def inc(self) -> None:
        self.count += 1


class LoopHistogram:
    """A histogram in seconds that only the event loop uses."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BUCKETS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(_BUCKETS, seconds)] += 1
        self._sum += seconds

    def cumulative_buckets(self) -> tuple[list[tuple[str, float]], float]:
        """The cumulative counts by upper bound, and the sum."""
        ends = [*(repr(bucket) for bucket in _BUCKETS), "+Inf"]
        return list(zip(ends, map(float, accumulate(self._counts)), strict=True)), self._sum


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        options: dict[str, Any] = {"registry": self.registry}
        self.requests = {s: LoopCounter() for s in (2, 3, 4, 5)}
        self.request_seconds = LoopHistogram()
        self.reads = {kind: LoopCounter() for kind in _READS}
        self.registry.register(_LoopCollector(self))
        writes = Counter("viewkeeper_writes", "Write calls by kind.", ["kind"], **options)
        self.writes = {kind: writes.labels(kind) for kind in _WRITES}
        self.written_rows = Counter("viewkeeper_written_rows", "Rows written through this server.", **options)
        self.errors = Counter("viewkeeper_errors", "Requests that failed, by the error's code.", ["code"], **options)
        self.batches = Counter("viewkeeper_batches", "Batches published.", ["lane"], **options)
        self.changes = Counter("viewkeeper_batch_changes", "Changes that batches took in.", **options)
        self.stage_seconds = Histogram(
            "viewkeeper_batch_stage_seconds", "Time of a batch's stages.", ["stage"], buckets=_BUCKETS, **options
        )
        self.merges = Counter("viewkeeper_merges", "Arrangements that were merged.", **options)
        self.merge_seconds = Counter("viewkeeper_merge_seconds", "Time spent merging.", **options)
        self._merge_totals = (0.0, 0.0)

    def record_batch(self, batch: Mapping[str, Any]) -> None:
        """Count a batch from the batch record's list."""
        self.batches.labels(batch["lane"]).inc()
        self.changes.inc(batch["changes"])
        for stage in ("capture", "rounds", "commit"):
            if batch[stage] is not None:
                self.stage_seconds.labels(stage).observe(batch[stage])

    def record_merges(self, count: float, seconds: float) -> None:
        """Add the maintainer's totals, which restart at zero with a new maintainer process."""
        before = self._merge_totals if count >= self._merge_totals[0] else (0.0, 0.0)
        self.merges.inc(max(0.0, count - before[0]))
        self.merge_seconds.inc(max(0.0, seconds - before[1]))
        self._merge_totals = (count, seconds)

    def exposition(self, status: Status, log_bytes: int | None, subscribers: Mapping[str, int], cut_off: int) -> bytes:
        """All metrics in Prometheus' text format."""
        whole = CollectorRegistry()
        whole.register(_StatusCollector(status, log_bytes, subscribers, cut_off))
        return generate_latest(self.registry) + generate_latest(whole)


class _LoopCollector(Collector):
    """The counters of the event loop."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily("viewkeeper_http_requests", "Requests that were answered.", labels=["status"])
        for status, tally in self._metrics.requests.items():
            requests.add_metric([f"{status}xx"], tally.count)
        yield requests
        buckets, total = self._metrics.request_seconds.cumulative_buckets()
        yield HistogramMetricFamily("viewkeeper_http_request_seconds", "Time to answer a request.", buckets, total)
        reads = CounterMetricFamily("viewkeeper_reads", "Reads by kind.", labels=["kind"])
        for kind, tally in self._metrics.reads.items():
            reads.add_metric([kind], tally.count)
        yield reads


class _StatusCollector(Collector):
    """Gauges, from a status that was just read."""

    def __init__(self, status: Status, log_bytes: int | None, subscribers: Mapping[str, int], cut_off: int) -> None:
        self.status, self.log_bytes, self.subscribers, self.cut_off = status, log_bytes, subscribers, cut_off

    def collect(self) -> Iterator[Metric]:
        status = self.status
        yield GaugeMetricFamily("viewkeeper_epoch", "Number of the published batch.", status.epoch)
        yield GaugeMetricFamily("viewkeeper_log_position", "Position of the last write call.", status.position)
        yield GaugeMetricFamily("viewkeeper_lag_changes", "Changed rows that wait for a batch.", status.lag_changes)
        yield GaugeMetricFamily("viewkeeper_lag_seconds", "Age of the oldest of them.", status.lag_seconds)
        yield GaugeMetricFamily("viewkeeper_state_bytes", "State of all views, shared state once.", status.state_bytes)
        yield GaugeMetricFamily(
            "viewkeeper_maintained", "Whether somebody maintains.", float(status.maintainer is not None)
        )
        yield GaugeMetricFamily("viewkeeper_subscribers_cut_off", "Subscribers that read too slowly.", self.cut_off)
        if self.log_bytes is not None:
            yield GaugeMetricFamily("viewkeeper_log_bytes", "The change log.", self.log_bytes)
        rows = GaugeMetricFamily("viewkeeper_table_rows", "Rows of a table.", labels=["table"])
        for table in status.tables:
            rows.add_metric([table.name], table.rows)
        yield rows
        followers = GaugeMetricFamily("viewkeeper_subscribers", "Open subscriptions.", labels=["name"])
        for name, count in self.subscribers.items():
            followers.add_metric([name], count)
        yield followers
        yield from self._view_metrics()

    def _view_metrics(self) -> Iterator[Metric]:
        metrics: tuple[tuple[str, str, Any], ...] = (
            ("rows", "Rows of a view.", lambda v: v.rows),
            ("epoch", "The batch that a view shows.", lambda v: v.epoch),
            ("lag_changes", "Changed rows that a view does not show yet.", lambda v: v.lag_changes),
            ("lag_seconds", "Age of the oldest of them.", lambda v: v.lag_seconds),
            ("state_bytes", "State behind a view, shared state counted for each.", lambda v: v.state_bytes),
            ("suspended", "Whether a view is suspended.", lambda v: float(v.suspended is not None)),
        )
        for name, help_text, value_of in metrics:
            family = GaugeMetricFamily(f"viewkeeper_view_{name}", help_text, labels=["view"])
            for view in self.status.views:
                value = value_of(view)
                if value is not None:
                    family.add_metric([view.name], float(value))
            yield family
