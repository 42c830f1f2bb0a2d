"""The statement that makes a clustered view.

    CREATE MATERIALIZED VIEW [IF NOT EXISTS] name CLUSTER BY ( columns ) [options] OF table_or_view, …

The columns are in every table, by these names and with the same types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from viewkeeper.errors import BadStatement
from viewkeeper.plan.words import Words


@dataclass(frozen=True)
class CreateCluster:
    name: str
    by: tuple[str, ...]
    of: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    if_not_exists: bool = False


def clustered(
    words: Words, name: str, exists_ok: bool, or_replace: bool, options: Callable[[Words], dict[str, str]]
) -> CreateCluster:
    """What follows CLUSTER BY."""
    if or_replace:
        raise BadStatement(f"View {name}: a clustered view is not replaced.", hint="Drop it and create it again.")
    by = words.names("column")
    found = options(words)
    words.need("OF")
    of = [words.name("table or view")]
    while words.take(","):
        of.append(words.name("table or view"))
    for listed, what in ((by, "column"), (of, "table")):
        lower = [n.lower() for n in listed]
        if twice := [n for i, n in enumerate(listed) if lower[i] in lower[:i]]:
            raise BadStatement(f"View {name}: {what} {twice[0]} is there twice.", hint="Name each once.")
    return CreateCluster(name, by, tuple(of), found, exists_ok)
