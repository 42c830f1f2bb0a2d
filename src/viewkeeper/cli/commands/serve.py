"""`vk serve`, `vk token`: a server for the database, and its tokens."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from viewkeeper.cli import help_format
from viewkeeper.cli.options import (
    REPORT_FORMATS,
    Budget,
    Conf,
    LocalDb,
    Master,
    ReportOutput,
    check_choice,
    open_database,
    spark_session,
    usage_error,
)
from viewkeeper.errors import MissingDependency

token = typer.Typer(help="Tokens for `vk serve`: who may read, write, or define views.", no_args_is_help=True)
Tokens = Annotated[Path, typer.Option("--tokens", metavar="FILE", help="The file of tokens.")]


def serve(
    context: typer.Context,
    db: LocalDb,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen.")] = "127.0.0.1:8080",
    maintain: Annotated[bool, typer.Option("--maintain", help="Also keep the views fresh.")] = False,
    tokens: Annotated[Path | None, typer.Option(metavar="FILE", help="Who may do what; see vk token.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="A certificate: serve by https.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="The certificate's key.")] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="No writes, no statements that define.")] = False,
    host: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Another name of this server.")] = None,
    max_lag: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="/readyz fails when views are further behind.")
    ] = None,
    suspended: Annotated[
        str, typer.Option(metavar="HOW", help="count: suspended views count in the lag of /readyz; list: only listed.")
    ] = "count",
    max_body: Annotated[int, typer.Option(min=1024, metavar="BYTES", help="Of a request's body.")] = 64 << 20,
    max_rows: Annotated[int, typer.Option(min=1, help="Of a page.")] = 10_000,
    max_requests: Annotated[int, typer.Option(min=1, help="At the same time.")] = 256,
    max_subscribers: Annotated[int, typer.Option(min=1, help="At the same time.")] = 2_000,
    max_seconds: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="For one request.")] = 30.0,
    retention: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How long subscribers may stay away; with --maintain.")
    ] = 60.0,
    memory: Budget = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Serve tables and views over HTTP, with a page at /, until Ctrl-C.

    Without --tokens it listens on this machine only, and every local user may do everything.

    SIGTERM ends it in order: open requests end, subscribers are told where to resume, and
    the batch in progress is finished or discarded.

    Example: vk serve --maintain --db lmdb:./shop
    """
    try:
        from viewkeeper.server.context import Limits, Settings
        from viewkeeper.server.process import serve as run
    except ImportError as error:
        raise MissingDependency(
            f"The server needs packages that are not installed ({error.name}).", hint="pip install 'viewkeeper[server]'"
        ) from None
    import viewkeeper
    from viewkeeper.cli.run_loop import announce_when_ready

    check_choice(context, "suspended", suspended, ("count", "list"))
    name, _, port = listen.rpartition(":")
    if not port.isdigit() or int(port) > 65_535:
        raise usage_error(context, f"--listen {listen} is no HOST:PORT")
    if (tls_cert is None) != (tls_key is None):
        raise usage_error(context, "A certificate needs its key: give --tls-cert and --tls-key")
    if maintain and read_only:
        raise usage_error(context, "--maintain writes: leave out --read-only")
    settings = Settings(
        host=name.strip("[]") or "127.0.0.1",
        port=int(port),
        hosts=tuple(host or ()),
        tokens=None if tokens is None else str(tokens),
        read_only=read_only,
        maintain=maintain,
        max_lag=max_lag,
        suspended=suspended,
        limits=Limits(
            body=max_body,
            page=max_rows,
            requests=max_requests,
            subscribers=max_subscribers,
            seconds=max_seconds,
        ),
    )
    certificate = None if tls_cert is None else (str(tls_cert), str(tls_key))
    if read_only:
        database = viewkeeper.open(db, mode="r", spark=spark_session(master, conf))
    else:
        with open_database(db):
            pass
        database = viewkeeper.open(db, spark=spark_session(master, conf), retention=retention, memory=memory)
    with database, announce_when_ready(f"{db}", maintain) as ready:
        run(database, settings, certificate=certificate, on_ready=ready)


def create(
    role: Annotated[str, typer.Option(help="reader, writer or admin.")],
    tokens: Tokens = Path("viewkeeper.tokens"),
    expires: Annotated[
        str | None, typer.Option(metavar="SPAN", help="90m, 12h, 30d, 4w or 1y; never if not given.")
    ] = None,
    name: Annotated[str, typer.Option(help="Whose it is, for `vk token list`.")] = "",
) -> None:
    """Create a token and print it. It is shown only once: the file has only its hash.

    Example: vk token create --role reader --expires 30d --tokens viewkeeper.tokens
    """
    from viewkeeper.server.auth import TokenFile, parse_span

    span = None if expires is None else parse_span(expires)
    typer.echo(TokenFile(tokens).create(role, span, name))


def list_tokens(
    context: typer.Context, tokens: Tokens = Path("viewkeeper.tokens"), output: ReportOutput = "table"
) -> None:
    """The tokens of a file: id, role, expiry and name.

    Example: vk token list --tokens viewkeeper.tokens
    """
    check_choice(context, "output", output, REPORT_FORMATS)
    from viewkeeper.cli.output import align_rows, json_line
    from viewkeeper.server.auth import TokenFile

    now = time.time()
    rows = [["id", "role", "expires", "name"]]
    for entry in TokenFile(tokens).entries():
        until = "never" if entry.expires is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(entry.expires))
        past = entry.expires is not None and entry.expires <= now
        if output == "json":
            typer.echo(json_line({"id": entry.id, "role": entry.role, "expires": entry.expires, "name": entry.name}))
        rows.append([entry.id, entry.role, f"{until} (over)" if past else until, entry.name])
    if output == "table":
        typer.echo("\n".join(align_rows(rows)))


def revoke(
    token: Annotated[str, typer.Argument(metavar="ID", help="The token's id, as `vk token list` shows it.")],
    tokens: Tokens = Path("viewkeeper.tokens"),
) -> None:
    """Revoke a token. A running server refuses it within a second.

    Example: vk token revoke 1f0c5a9be2d4 --tokens viewkeeper.tokens
    """
    from viewkeeper.server.auth import TokenFile

    TokenFile(tokens).revoke(token)
    typer.echo(f"{token} is no longer a token")


help_format.add_command(token, create)
help_format.add_command(token, list_tokens, name="list")
help_format.add_command(token, revoke)
