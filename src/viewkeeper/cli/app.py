"""`vk`: the program. Commands are in `commands/`; each opens the database, calls the public API and prints the result.

    exit code   0 done · 1 a ViewkeeperError, printed as `error[code]: message hint` · 2 a wrong call · 130 Ctrl-C

Packages that are slow to import are imported by the command that needs them: `vk --help` answers at once.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import entry_points
from typing import Annotated, NoReturn

import typer
from typer._click.exceptions import ClickException, NoArgsIsHelpError

from viewkeeper import __version__
from viewkeeper.cli import help_format
from viewkeeper.cli.commands import health, rows, serve, sql, verify, views
from viewkeeper.cli.options import check_choice, without_pandas
from viewkeeper.errors import ViewkeeperError

app = typer.Typer(
    help="SQL materialized views over key-value stores, kept fresh incrementally.\n\n"
    "Exit codes: 0 done, 1 an error, 2 a wrong call, 130 interrupted.",
    epilog=help_format.format_example("Example: vk demo"),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

for command in (
    sql.init,
    sql.sql,
    rows.load,
    rows.put,
    rows.delete,
    rows.get,
    rows.scan,
    views.refresh,
    views.run,
    views.watch,
    views.status,
    views.explain,
    serve.serve,
    health.audit,
    health.doctor,
    health.backup,
    health.restore,
    verify.verify,
    verify.bench,
    verify.demo,
):
    help_format.add_command(app, command)
app.add_typer(serve.token, name="token")
for group in entry_points(group="viewkeeper.commands"):
    app.add_typer(group.load(), name=group.name)


@app.callback()
def _vk(
    context: typer.Context,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=lambda is_requested: _print_version(is_requested),
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
    log: Annotated[
        str | None, typer.Option(metavar="FORM", help="Log to standard error, one line a batch: text or json.")
    ] = None,
) -> None:
    if log is not None:
        check_choice(context, "log", log, LOG_FORMATS)
        enable_logging(log)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"viewkeeper {__version__}")
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run `vk` and exit. Every expected error is one line, never a traceback."""
    if arguments is None and len(sys.argv) > 1 and sys.argv[1].isalpha():  # a command, not --help and the like
        without_pandas()
    try:
        code = app(args=arguments, prog_name="vk", standalone_mode=False)
    except ViewkeeperError as error:
        _fail(format_error(error), 1)
    except NoArgsIsHelpError as error:
        _fail(error.format_message(), 2)
    except ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "vk"
        message = _single_line(error.format_message()).rstrip(".")
        if re.match(r"No such option: -(\d|-? )", message):
            message += ", and a value that begins with a minus comes after --"
        _fail(f"{command}: {message}. See {command} --help.", error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        _fail("interrupted", 130)
    except BrokenPipeError:  # `vk scan … | head`: the reader of the output has closed it, which is no error
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:  # a file of the user that cannot be written, or no space for the output
        file_prefix = f"{error.filename}: " if error.filename else ""
        _fail(f"error: {file_prefix}{error.strerror or error}.", 1)
    sys.exit(code if isinstance(code, int) else 0)


def format_error(error: ViewkeeperError) -> str:
    """An error as the command line and the shell print it."""
    return f"error[{error.code}]: {_single_line(error.message)} {_single_line(error.hint)}".rstrip()


def _single_line(text: str) -> str:
    return " ".join(text.split())


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(message, err=True)
    sys.exit(code)


# `vk --log`: log lines on standard error, for people or for a log collector.
#
#     text    2026-01-31 12:00:00 viewkeeper.batch batch 7: 120 changes, 14 ms, driver
#     json    {"time": "2026-01-31T12:00:00.123Z", "level": "info", "logger": "viewkeeper.batch",
#              "message": "batch 7: …", "epoch": 7, "changes": 120, "seconds": 0.014, "lane": "driver", …}
#
# A record's own fields (`extra=`) are members beside the first four.


LOG_FORMATS = ("text", "json")
_STANDARD_FIELDS = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {"message", "asctime"}


class JsonLineFormatter(logging.Formatter):
    """Formats a record as one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in record.__dict__.items() if name not in _STANDARD_FIELDS},
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def enable_logging(log_format: str) -> None:
    """Send Viewkeeper's log to standard error from now on."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        JsonLineFormatter()
        if log_format == "json"
        else logging.Formatter("%(asctime)s %(name)s %(message)s", "%Y-%m-%d %H:%M:%S")
    )
    log = logging.getLogger("viewkeeper")
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)
