"""A file writer that computes a checksum of what it writes, so that a reader can verify that the file is complete."""

from __future__ import annotations

from typing import IO, Any

import xxhash


class ChecksummedWriter:
    """Tracks the position in the file, and the checksum of the bytes since its last reset."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.position = 0
        self.checksum = xxhash.xxh3_64()
        self.closed = False

    def write(self, data: Any) -> int:
        self.file.write(data)
        self.checksum.update(data)
        self.position += len(data)
        return len(data)

    def flush(self) -> None:
        self.file.flush()

    def pad(self, alignment: int) -> None:
        self.write(b"\0" * (-self.position % alignment))
