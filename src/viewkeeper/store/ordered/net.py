"""What is left of a stretch of the log: for each key the row before the first entry and the one after the last.

    k: −a +b   k: −b +c   m: +d   m: −d        ─▶        k: −a +c

The states of a key follow each other, so what lies between cancels, and a delta is consolidated without comparing rows
of different keys. A key whose wanted columns are the same at both ends falls out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from viewkeeper.model.chunks import one_chunk
from viewkeeper.model.codec import decode_rows
from viewkeeper.model.delta import identical
from viewkeeper.model.order import ascend, surely_different
from viewkeeper.model.schema import WEIGHT, Table
from viewkeeper.store.ordered.images import Images, is_present, join, present


def net(table: Table, pieces: Sequence[Images], wanted: list[str]) -> pa.Table:
    """The consolidated delta of the pieces, oldest first."""
    deltas = [_net(table, images, wanted) for images in _telescoped(pieces)]
    if not deltas:
        return pa.schema([*(table.arrow.field(c) for c in wanted), pa.field(WEIGHT, pa.int64())]).empty_table()
    return deltas[0] if len(deltas) == 1 else pa.concat_tables(deltas).combine_chunks()


def _telescoped(pieces: Sequence[Images]) -> Sequence[Images]:
    """What is left of many chunks, oldest first: each key once, as it was before the first and after the last."""
    if not pieces or _ascend([p.keys for p in pieces]):
        return pieces
    keys = one_chunk(pa.chunked_array([p.keys for p in pieces], pa.binary()))
    if surely_different(keys):
        return pieces
    codes = np.asarray(keys.dictionary_encode().indices)
    count = int(codes.max()) + 1 if len(codes) else 0
    if count == len(codes):
        return pieces
    first, last = np.empty(count, np.int64), np.empty(count, np.int64)
    places = np.arange(len(codes))
    first[codes[::-1]], last[codes] = places[::-1], places  # of several assignments to a place the last one stays
    whole = join(pieces)
    ends = pa.array(last)
    return [Images(whole.keys.take(ends), whole.before.take(pa.array(first)), whole.after.take(ends))]


def _ascend(pieces: Sequence[pa.BinaryArray]) -> bool:
    """Whether the keys ascend from piece to piece, as those of one call do: then none is there twice."""
    last = b""
    for keys in pieces:
        if not ascend(keys) or (len(keys) and last and keys[0].as_py() <= last):
            return False
        last = keys[-1].as_py() if len(keys) else last
    return True


def _net(table: Table, images: Images, wanted: list[str]) -> pa.Table:
    was, now = is_present(images.before), is_present(images.after)
    before, after = int(was.sum()), int(now.sum())
    rows = decode_rows(table, pa.concat_arrays([present(images.before), present(images.after)]), wanted)
    weights = np.repeat(np.array([-1, 1]), [before, after])
    rows = rows.append_column(WEIGHT, pa.array(weights))
    updated = was & now
    old, new = np.flatnonzero(updated[was]), before + np.flatnonzero(updated[now])
    same = identical(_at(rows, old), _at(rows, new), but=WEIGHT)
    if not same.any():
        return rows
    kept = np.ones(len(weights), np.bool_)
    kept[old[same]] = kept[new[same]] = False
    return rows.filter(pa.array(kept))


def _at(rows: pa.Table, places: npt.NDArray[np.int64]) -> pa.Table:
    """Neighbours, as in a batch of updates only, are not copied."""
    if len(places) and places[-1] - places[0] == len(places) - 1:
        return rows.slice(int(places[0]), len(places))
    return rows.take(pa.array(places))
