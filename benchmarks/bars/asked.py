"""What a benchmark is asked to measure, by names: one that it does not have is refused before anything runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable


def some_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """The type of an option, for argparse: names of these with commas between them, one at least."""
    names = list(known)

    def chosen(text: str) -> list[str]:
        wanted = text.split(",")
        if unknown := [name for name in wanted if name not in names]:
            raise argparse.ArgumentTypeError(f"there is no {unknown[0]!r}; there are {', '.join(names)}")
        return wanted

    return chosen
