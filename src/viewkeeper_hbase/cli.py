"""`vk hbase`: a private HBase on this machine, for tests and trials. The commands are mounted into `vk` as a group."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Annotated

import typer

from viewkeeper.cli import help_format
from viewkeeper_hbase import push_cli

app = typer.Typer(
    help="A real HBase on this machine, for tests and trials.",
    epilog=help_format.format_example("Example: vk hbase start"),
    no_args_is_help=True,
    rich_markup_mode=None,
)

Data = Annotated[
    Path, typer.Option("--data", envvar="VIEWKEEPER_HBASE_DATA", metavar="DIR", help="Its data, logs and settings.")
]
_DATA_DIRECTORY = Path(".viewkeeper-hbase")


def scratch_url(scratch: str) -> str:
    """Return the URL of a new namespace in the HBase that `vk hbase start` runs; its state is in the directory
    `scratch`."""
    from viewkeeper.errors import StoreError
    from viewkeeper_hbase.devserver.server import Server

    status = Server(os.environ.get("VIEWKEEPER_HBASE_DATA") or _DATA_DIRECTORY).status()
    if not status.answers:
        raise StoreError("No HBase answers on this machine.", hint="Run: vk hbase start.")
    return f"hbase://{status.host}:{status.port}/verify_{secrets.token_hex(4)}?create=true&state={scratch}/state"


def start(
    data: Data = _DATA_DIRECTORY,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait until it answers.")] = 180,
) -> None:
    """Start HBase and its Thrift2 gateway; the first time, fetch them with Maven (110 MB).

    Example: vk hbase start --data ./hbase
    """
    from viewkeeper_hbase.devserver.processes import HBASE_PROGRAM
    from viewkeeper_hbase.devserver.server import Server

    if not (HBASE_PROGRAM.home / "lib").is_dir():
        typer.echo(f"Fetching HBase {HBASE_PROGRAM.version} into {HBASE_PROGRAM.home} ...", err=True)
        HBASE_PROGRAM.fetch_jars()
    status = Server(data).start(timeout=timeout)
    typer.echo(f"HBase runs at {status.url}")
    typer.echo(f"stop it: vk hbase stop --data {data}")


def stop(data: Data = _DATA_DIRECTORY) -> None:
    """Stop the HBase of this data directory, and no other. Its data stays.

    Example: vk hbase stop --data ./hbase
    """
    from viewkeeper_hbase.devserver.server import Server

    typer.echo("HBase stopped" if Server(data).stop() else f"no HBase ran in {data}")


def status(data: Data = _DATA_DIRECTORY) -> None:
    """Show which processes run and whether HBase answers. The exit code is 1 if it does not.

    Example: vk hbase status --data ./hbase
    """
    from viewkeeper_hbase.devserver.server import Server

    server_status = Server(data).status()
    typer.echo(f"data     {server_status.data}")
    typer.echo(f"hbase    {f'runs (pid {server_status.hbase_pid})' if server_status.hbase else 'does not run'}")
    typer.echo(f"gateway  {f'runs (pid {server_status.gateway_pid})' if server_status.gateway else 'does not run'}")
    typer.echo(f"answers  {f'yes, at {server_status.url}' if server_status.answers else 'no'}")
    if not server_status.answers:
        raise typer.Exit(1)


for command in (start, stop, status, push_cli.listen):
    help_format.add_command(app, command)
app.add_typer(push_cli.app, name="push")
