"""What a statement gave: rows, or a line that says what was done.

It is read as dicts (`for row in result`), as Arrow (`to_arrow`, or wherever an Arrow stream is taken), as a pandas or
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
    """The answer to one statement, or to several: then it has the rows of the last, and `each` has all of them."""

    def __init__(
        self, rows: pa.Table | None = None, done: str = "", engine: str = "", each: Sequence[Result] = ()
    ) -> None:
        self._rows = rows
        self._each = tuple(each)
        self.done = done
        """What a statement that gives no rows did; empty if there is nothing to say."""
        self.engine = engine
        """What answered a query: store, embedded or spark."""

    @staticmethod
    def of(results: Sequence[Result]) -> Result:
        """The answer to statements that were run one after the other; at least one."""
        last = results[-1]
        return last if len(results) == 1 else Result(last._rows, last.done, last.engine, results)

    @property
    def each(self) -> tuple[Result, ...]:
        """The answers to the statements of a text, in their order (new views that follow each other are made together,
        and have one); of one statement, its own."""
        return self._each or (self,)

    @property
    def suspended(self) -> dict[str, dict[str, Any]]:
        """The suspended views whose old rows the answer is made of: by name, since when, at which batch, and why."""
        mark = (self.to_arrow().schema.metadata or {}).get(SUSPENDED_METADATA)
        return {} if mark is None else json.loads(mark)

    @property
    def has_rows(self) -> bool:
        """Whether the statement gives rows, be there any or not."""
        return self._rows is not None

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table."""
        return pa.table({}) if self._rows is None else self._rows

    def to_pandas(self) -> Any:
        """The rows as a pandas frame; what pandas has no type for (decimals, dates) as Python's own values."""
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
        """A column by its name or its place."""
        return self.to_arrow().column(which)

    __getitem__ = column

    def __len__(self) -> int:
        return self.num_rows

    def __bool__(self) -> bool:
        return True  # also where a statement gives no rows: it was run

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
            return "".join(one._repr_html_() for one in self._each)
        if self._rows is None:
            return f"<div>{self.done or 'done'}</div>"
        below = count_text(self.num_rows, "row")
        if self.num_rows > MAX_DISPLAY_ROWS:
            below += f", the first {MAX_DISPLAY_ROWS} are shown"
        return html_table(self.column_names, _first_rows(self._rows), footer=below)


def _comparison_values(result: Result) -> list[tuple[pa.Table, str]]:
    return [(one.to_arrow(), one.done) for one in result.each]


def _first_rows(rows: pa.Table) -> list[list[str]]:
    """The first rows as texts; Arrow writes dates that Python has none for."""
    shown = rows.slice(0, MAX_DISPLAY_ROWS)
    try:
        columns = [[value_text(v) for v in column.to_pylist()] for column in shown.columns]
    except OverflowError:
        columns = [[str(v) for v in column] for column in shown.columns]
    return [list(row) for row in zip(*columns, strict=True)]
