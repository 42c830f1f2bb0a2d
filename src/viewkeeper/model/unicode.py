"""Strings and binaries of encoded rows (`rows`) as Arrow arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from viewkeeper.errors import CorruptState

Array = np.ndarray[Any, Any]


class VariableColumns:
    """The variable sections of encoded rows, viewed as one binary array.

    Its elements are, row by row, the fixed section and then each variable column: k + 1 elements a row, without gaps. A
    column is every (k + 1)-th element, which Arrow's `take` copies.
    """

    def __init__(self, variable: Sequence[bool], width: int, data: Array, starts: Array, fixed: Array) -> None:
        self.width, self.data, self.starts, self.fixed = width, data, starts, fixed
        self.columns = [at for at, is_variable in enumerate(variable) if is_variable]
        self.elements: pa.BinaryArray | None = None

    def decode_column(self, at: int, arrow: pa.DataType, valid: Any) -> pa.Array:
        rows, per_row = len(self.fixed), len(self.columns) + 1
        if self.elements is None:
            offsets = np.empty(rows * per_row + 1, np.int32)
            offsets[0] = self.starts[0]
            ends = offsets[1:].reshape(rows, per_row)
            body = self.starts[:-1] + np.int32(self.width)
            ends[:, 0] = body
            for index, column in enumerate(self.columns, 1):
                # An end beyond 2³¹, in a damaged row, becomes negative and is rejected below.
                np.add(body, self.fixed[f"c{column}"].view(np.int32), out=ends[:, index])
            if not (ends[:, -1] == self.starts[1:]).all() or (per_row > 2 and (offsets[1:] < offsets[:-1]).any()):
                raise CorruptState("A row's strings do not end where the row ends.")
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
            self.elements = pa.Array.from_buffers(pa.binary(), rows * per_row, buffers)
        first = self.columns.index(at) + 1
        values = self.elements.take(pa.array(np.arange(first, rows * per_row, per_row)))
        return pa.Array.from_buffers(arrow, rows, [valid, *values.buffers()[1:]])
