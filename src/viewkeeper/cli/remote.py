"""Commands on a database behind a server: `--db http://HOST:PORT`, with the token in VIEWKEEPER_TOKEN."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from viewkeeper.client.client import Client

TOKEN_VARIABLE = "VIEWKEEPER_TOKEN"


def is_remote(url: str) -> bool:
    return url.startswith(("http://", "https://"))


@contextmanager
def open_client(url: str) -> Iterator[Client]:
    from viewkeeper.client.client import connect

    with connect(url, token=os.environ.get(TOKEN_VARIABLE) or None) as client:
        yield client


def get(url: str, name: str, key_texts: Sequence[str], output: str, stale: bool) -> bool:
    """Print the row with a key; False if there is none."""
    import pyarrow as pa

    from viewkeeper.cli.output import print_rows
    from viewkeeper.model.intake.text import parse_key
    from viewkeeper.read.freshness import ANY, STALE

    with open_client(url) as client:
        table = client.shape(name)
        row = client.get(name, parse_key(table, key_texts), STALE if stale else ANY)
        _warn_if_suspended(client, name, stale)
    if row is not None:
        print_rows(table.external_schema, [pa.Table.from_pylist([row], table.external_schema)], output)
    return row is not None


def scan(url: str, name: str, key_texts: Sequence[str], limit: int | None, output: str, stale: bool) -> None:
    from viewkeeper.cli.output import print_rows
    from viewkeeper.model.intake.text import parse_key
    from viewkeeper.read.freshness import ANY, STALE

    with open_client(url) as client:
        table = client.shape(name)
        if not table.has_rows:
            print_rows(table.external_schema, [client.read(name).slice(0, limit)], output)
            return
        prefix = parse_key(table, key_texts, complete=False) or None
        _warn_if_suspended(client, name, stale)
        print_rows(table.external_schema, client.pages(name, prefix, limit, STALE if stale else ANY), output)


def _warn_if_suspended(client: Client, name: str, stale: bool) -> None:
    from viewkeeper.cli.output import warn_suspended

    if stale and (found := client.suspension(name)) is not None:
        warn_suspended({name: found})


def put(url: str, name: str, rows: list[dict[str, Any]]) -> None:
    from viewkeeper.model.intake.json import convert_objects

    with open_client(url) as client:
        typer.echo(str(client.put(name, convert_objects(client.shape(name), rows))))


def delete(url: str, name: str, key_texts: Sequence[str]) -> bool:
    """Delete the row with a key; False if there is none."""
    from viewkeeper.model.intake.text import parse_key

    with open_client(url) as client:
        key = parse_key(client.shape(name), key_texts)
        if client.get(name, key) is None:
            return False
        typer.echo(str(client.delete(name, key)))
    return True


def sql(url: str, text: str | None, output: str, engine: str, stale: bool) -> None:
    """Run statements; without a text, run a shell."""
    from viewkeeper.cli.commands.sql import run_script

    with open_client(url) as client:
        if text is None:
            from viewkeeper.cli.shell import shell

            client.status()  # reports a missing server or a wrong token at once
            shell(client, output, url)
            return
        run_script(client, text, output, engine, stale)


def status(url: str, output: str, watch: bool, views: str | None, limit: int) -> None:
    from viewkeeper.cli.output import print_report
    from viewkeeper.read.status import filter_views

    with open_client(url) as client:
        while True:
            database_status = filter_views(client.status(), views)
            if watch and output == "table":
                typer.echo("\x1b[2J\x1b[H", nl=False)
            print_report(database_status, output, limit)
            if not watch:
                return
            time.sleep(1)
