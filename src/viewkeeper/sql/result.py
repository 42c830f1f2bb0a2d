"""The result of a statement: rows, or a line that reports what it did.

It is read as dicts (`for row in result`), as Arrow (`to_arrow`, or any consumer of an Arrow stream), as a pandas or
polars frame; a prompt and a notebook show its first rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from viewkeeper.errors import MissingDependency
from viewkeeper.model.display import MAX_DISPLAY_ROWS, align_rows, count_text, html_table, value_text
from viewkeeper.read.suspension import SUSPENDED_METADATA


class Result:
    """The result of one statement, or of several: then it has the rows of the last, and `each` has all results."""

    def __init__(
        self, rows: pa.Table | None = None, done: str = "", engine: str = "", each: Sequence[Result] = ()
    ) -> None:
        self._rows = rows
        self._each = tuple(each)
        self.done = done
        """What a statement without rows did; empty if there is nothing to report."""
        self.engine = engine
        """The engine that answered a query: store, embedded or spark."""

    @staticmethod
    def of(results: Sequence[Result]) -> Result:
        """The result of statements that ran one after the other; at least one."""
        last = results[-1]
        return last if len(results) == 1 else Result(last._rows, last.done, last.engine, results)

    @property
    def each(self) -> tuple[Result, ...]:
        """The results of the statements of a text, in order (consecutive new views are created together and have one
        result); of one statement, its own."""
        return self._each or (self,)

    @property
    def suspended(self) -> dict[str, dict[str, Any]]:
        """The suspended views whose old rows the result contains: by name, since when, at which batch, and why."""
        mark = (self.to_arrow().schema.metadata or {}).get(SUSPENDED_METADATA)
        return {} if mark is None else json.loads(mark)

    @property
    def has_rows(self) -> bool:
        """Whether the statement returns rows, even if there are none."""
        return self._rows is not None

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table."""
        return pa.table({}) if self._rows is None else self._rows

    def to_pandas(self) -> Any:
        """The rows as a pandas frame; values without a pandas type (decimals, dates) as Python's own."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """The rows as a polars frame."""
        try:
            import polars
        except ImportError as error:
            raise MissingDependency(
                "polars is not installed.", hint="Run: pip install 'viewkeeper[polars]'."
            ) from error
        return polars.from_arrow(self.to_arrow())

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows as dicts."""
        return self.to_pylist()

    def to_pylist(self) -> list[dict[str, Any]]:
        """The rows as dicts."""
        found: list[dict[str, Any]] = self.to_arrow().to_pylist()
        return found

    @property
    def column_names(self) -> list[str]:
        return list(self.to_arrow().column_names)

    @property
    def num_rows(self) -> int:
        return int(self.to_arrow().num_rows)

    def column(self, which: int | str) -> pa.ChunkedArray:
        """A column by its name or its index."""
        return self.to_arrow().column(which)

    __getitem__ = column

    def __len__(self) -> int:
        return self.num_rows

    def __bool__(self) -> bool:
        return True  # also for a statement without rows: the statement has run

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.to_arrow().to_batches(max_chunksize=1024):
            yield from batch.to_pylist()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Result):
            return NotImplemented
        return _comparison_values(self) == _comparison_values(other)

    __hash__ = None  # type: ignore[assignment]

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        if self._each:
            return "\n".join(map(repr, self._each))
        if self._rows is None:
            return self.done or "done"
        return "\n".join(
            [*align_rows([self.column_names, *_first_rows(self._rows)]), f"({count_text(self.num_rows, 'row')})"]
        )

    def _repr_html_(self) -> str:
        if self._each:
            return "".join(result._repr_html_() for result in self._each)
        if self._rows is None:
            return f"<div>{self.done or 'done'}</div>"
        footer = count_text(self.num_rows, "row")
        if self.num_rows > MAX_DISPLAY_ROWS:
            footer += f", the first {MAX_DISPLAY_ROWS} are shown"
        return html_table(self.column_names, _first_rows(self._rows), footer=footer)


def _comparison_values(result: Result) -> list[tuple[pa.Table, str]]:
    return [(item.to_arrow(), item.done) for item in result.each]


def _first_rows(rows: pa.Table) -> list[list[str]]:
    """The first rows as texts; Arrow formats dates that Python's types cannot hold."""
    visible = rows.slice(0, MAX_DISPLAY_ROWS)
    try:
        columns = [[value_text(v) for v in column.to_pylist()] for column in visible.columns]
    except OverflowError:
        columns = [[str(v) for v in column] for column in visible.columns]
    return [list(row) for row in zip(*columns, strict=True)]
