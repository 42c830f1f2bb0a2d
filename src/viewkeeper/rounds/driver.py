"""The driver lane: the levels as a loop in this process, without a Spark job.

An operator runs once, after its last source; deltas wait at their ports in between.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

import pyarrow as pa

from viewkeeper.plan.dataflow import Operator, Sink
from viewkeeper.rounds.given import Given
from viewkeeper.rounds.site import Fed, Site


def run_in_driver(
    site: Site,
    given: Mapping[str, Given],
    seeds: Iterable[Fed] = (),
    on_error: Callable[[Operator, Exception], Exception] | None = None,
) -> dict[int, list[pa.Table]]:
    """Run every active operator once. `given` holds the outputs of inputs (and of operators that stand for their whole
    state); the result is what reached each view's sink."""
    waiting: dict[str, dict[int, list[pa.Table]]] = defaultdict(lambda: defaultdict(list))
    reached: dict[int, list[pa.Table]] = defaultdict(list)
    for consumer, port, delta in seeds:
        waiting[consumer][port].append(delta)
    for name, operator in site.flow.operators.items():
        if name not in site.active:
            continue
        started = time.perf_counter()
        try:
            if isinstance(operator, Sink):
                reached[operator.view].extend(waiting.pop(name, {}).get(0, ()))
                continue
            if name in given:
                output: pa.Table | None = given[name].rows(site.duck)
            elif name in waiting:
                ports = waiting.pop(name)
                output = site.run(operator, [ports.get(i, []) for i in range(operator.arity)])
            else:
                continue
            if output is not None and output.num_rows:
                for consumer, port, delta in site.feed(operator, output):
                    waiting[consumer][port].append(delta)
            site.clock[name] = time.perf_counter() - started
        except Exception as error:
            if on_error is None:
                raise
            failed = operator if site.feeding is None else site.flow.operators[site.feeding]
            raise on_error(failed, error) from error
    return dict(reached)
