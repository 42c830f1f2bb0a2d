"""`vk hbase push` and `vk hbase listen`: capture of changes that HBase pushes, agreed with its administrator."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from viewkeeper.cli import help_format
from viewkeeper.cli.options import LocalDb, open_reader, open_writer

if TYPE_CHECKING:
    from viewkeeper.store.contract.store import Store
    from viewkeeper_hbase.push.settings import PushAgreement

app = typer.Typer(
    help="Let HBase push the changes of a database's tables from its write-ahead log.",
    epilog=help_format.format_example("Example: vk hbase push status --db hbase://127.0.0.1:9090/shop"),
    no_args_is_help=True,
    rich_markup_mode=None,
)

ConfDir = Annotated[
    Path,
    typer.Option(
        "--conf", envvar="HBASE_CONF_DIR", metavar="DIR", help="HBase's configuration, with its hbase-site.xml."
    ),
]
ClassPath = Annotated[
    str | None,
    typer.Option(
        "--classpath", metavar="PATH", help="HBase's classes, as `hbase classpath` prints them. Default: fetched ones."
    ),
]
PeerName = Annotated[
    str | None, typer.Option("--peer", metavar="NAME", help="The replication peer. Default: vk_NAMESPACE.")
]
_STANDBY_SECONDS = 1.0
_CONF_DIRECTORY = Path(".viewkeeper-hbase/conf")


def install(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A directory of HBase's class path.")],
) -> None:
    """Copy the endpoint's jar into HBase's class path, on the master and on every region server.

    They load it when they start. No table is altered, and nothing is sent until `vk hbase push enable`.

    Example: vk hbase push install /opt/hbase/lib
    """
    from viewkeeper_hbase.push import admin

    typer.echo(f"{admin.install_jar(directory)} is there; restart the master and the region servers, one at a time")


def enable(
    db: LocalDb,
    receiver: Annotated[
        list[str],
        typer.Option("--receiver", metavar="HOST:PORT", help="Who takes the changes; repeat it for a stand-in."),
    ],
    conf: ConfDir = _CONF_DIRECTORY,
    classpath: ClassPath = None,
    peer: PeerName = None,
    secret_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="On every region server, the secret; else the peer's settings have it."),
    ] = None,
    ca: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="On every region server: TLS, and whose certificates it believes."),
    ] = None,
    certificate: Annotated[str | None, typer.Option(metavar="FILE", help="TLS: the receivers' certificate.")] = None,
    key: Annotated[str | None, typer.Option(metavar="FILE", help="TLS: the key of that certificate.")] = None,
    pause: Annotated[
        int, typer.Option(min=1, help="Milliseconds at most between two looks at a WAL without news.")
    ] = 50,
) -> None:
    """Add the replication peer for the database's namespace and its tables in others, or update it.

    The maintainer receives at those of the addresses that belong to its machine; `vk hbase listen` receives
    without a maintainer. Repeat the command after a table of another namespace was mapped.

    Example: vk hbase push enable --db hbase://127.0.0.1:9090/shop --receiver 127.0.0.1:9191
    """
    from viewkeeper.errors import BadValue
    from viewkeeper_hbase.layout.layout import table_layout
    from viewkeeper_hbase.push import settings
    from viewkeeper_hbase.push.admin import PushAdmin
    from viewkeeper_hbase.push.settings import PushAgreement
    from viewkeeper_hbase.url import parse_url

    if (certificate is None) != (key is None) or (ca is None) != (certificate is None):
        raise BadValue("TLS needs --ca, --certificate and --key.", hint="Name all three, or none.")
    for address in receiver:
        settings.parse_address(address)
    with open_writer(db) as store:
        namespace = parse_url(store.url).namespace
        names = {table_layout(namespace, table).name for table in store.catalog().tables}
        others = tuple(sorted(name for name in names if name.partition(":")[0] != namespace))
        agreement = PushAgreement(peer or f"vk_{namespace}", tuple(receiver), (namespace,), others, certificate, key)
        secret = settings.read_secret(settings.push_directory(store.state_path), create=True)
        PushAdmin(conf, classpath).enable(agreement, secret, secret_file, ca, pause)
        store.put_note(settings.AGREEMENT_NOTE, agreement.to_json())
        if secret_file:
            typer.echo(f"the secret is in {settings.push_directory(store.state_path)}/secret: copy it to {secret_file}")
    typer.echo(f"the peer {agreement.peer} sends changes of {', '.join((namespace, *others))} to {', '.join(receiver)}")


def disable(
    db: LocalDb,
    conf: ConfDir = _CONF_DIRECTORY,
    classpath: ClassPath = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Only pause: HBase keeps its WALs until it is enabled again.")
    ] = False,
) -> None:
    """Remove the replication peer: changes are found by scans again. After the next enable, tables are compared.

    Example: vk hbase push disable --db hbase://127.0.0.1:9090/shop
    """
    from viewkeeper_hbase.push import settings
    from viewkeeper_hbase.push.admin import PushAdmin

    with open_writer(db) as store:
        agreement = _agreed_settings(store)
        if keep:
            PushAdmin(conf, classpath).disable(agreement.peer)
        else:
            PushAdmin(conf, classpath).remove(agreement.peer)
            store.put_note(settings.AGREEMENT_NOTE, None)
    typer.echo(f"the peer {agreement.peer} {'sends nothing; HBase keeps its WALs' if keep else 'is removed'}")


def status(db: LocalDb, conf: ConfDir = _CONF_DIRECTORY, classpath: ClassPath = None) -> None:
    """Show the peer, its queues with positions, its lag, and the bytes of WAL that HBase keeps for it.

    The exit code is 1 if changes are not pushed at present.

    Example: vk hbase push status --db hbase://127.0.0.1:9090/shop
    """
    from viewkeeper.cli.output import align_rows
    from viewkeeper_hbase.push import settings
    from viewkeeper_hbase.push.admin import PushAdmin

    with open_reader(db) as store:
        agreement, published_status = _agreed_settings(store), store.note(settings.STATUS_NOTE)
    peer_status = PushAdmin(conf, classpath).status(agreement.peer)
    typer.echo(
        f"peer      {agreement.peer}, {peer_status.state}, to {peer_status.receivers or ', '.join(agreement.receivers)}"
    )
    typer.echo(f"covers    {', '.join((*peer_status.namespaces, *peer_status.tables)) or 'nothing'}")
    capture = (
        "nobody maintains"
        if published_status is None
        else f"{published_status['by']}{': ' + published_status['reason'] if published_status['reason'] else ''}"
    )
    typer.echo(f"capture   by {capture}" if published_status is not None else f"capture   {capture}")
    typer.echo(f"lag       {peer_status.lag / 1000:.1f} s")
    typer.echo(f"held      {sum(q.unshipped_bytes for q in peer_status.queues):,} bytes of WAL")
    for line in align_rows([[q.server, q.queue, q.wal, q.shipped_text] for q in peer_status.queues]):
        typer.echo(f"queue     {line}")
    if any(q.length < 0 for q in peer_status.queues):
        typer.echo("gone      HBase waits for such a WAL for ever: vk hbase push disable, then enable")
    if peer_status.state != "enabled" or published_status is None or published_status["by"] != "push":
        raise typer.Exit(1)


def listen(
    db: LocalDb,
    at: Annotated[
        list[str] | None, typer.Option("--at", metavar="HOST:PORT", help="Only here, of the agreed addresses.")
    ] = None,
    spooled: Annotated[
        str, typer.Option("--spool", metavar="SIZE", help="Take no more when so much waits; HBase keeps it then.")
    ] = "4GB",
) -> None:
    """Receive pushed changes into the spool of the state directory, where the maintainer reads them, until stopped.

    It needs no Spark and little memory, and lets HBase drop its WALs while no maintainer runs. While all agreed
    addresses are in use it stands by.

    Example: vk hbase listen --db 'hbase://127.0.0.1:9090/shop?state=/data/viewkeeper'
    """
    import logging
    from dataclasses import replace

    from viewkeeper.resources.process_budget import parse_size
    from viewkeeper_hbase.push import settings
    from viewkeeper_hbase.push.inflow import open_receivers
    from viewkeeper_hbase.push.spool import Spool

    max_bytes = parse_size(spooled, "--spool")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    with open_reader(db) as store:
        agreement, directory = _agreed_settings(store), settings.push_directory(store.state_path)
    if at:
        agreement = replace(agreement, receivers=tuple(at))
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    spool, secret = Spool(directory, max_bytes=max_bytes, is_write_only=True), settings.read_secret(directory)
    receivers = open_receivers(agreement, spool, secret)
    if not receivers:
        typer.echo(f"standing by: none of {', '.join(agreement.receivers)} is an address of this machine that is free")
    with suppress(KeyboardInterrupt):
        while not receivers and not stopped.wait(_STANDBY_SECONDS):
            receivers = open_receivers(agreement, spool, secret)
        for receiver in receivers:
            typer.echo(f"receiving at {receiver.address[0]}:{receiver.address[1]} into {directory}")
        stopped.wait()
    for receiver in receivers:
        receiver.close()


def _agreed_settings(store: Store) -> PushAgreement:
    from viewkeeper.errors import Unsupported
    from viewkeeper_hbase.push import settings

    note = store.note(settings.AGREEMENT_NOTE)
    if note is None:
        raise Unsupported(
            f"HBase pushes nothing to {store.url}.", hint="vk hbase push enable --receiver HOST:PORT makes it so."
        )
    return settings.PushAgreement.from_json(note)


for command in (install, enable, disable, status):
    help_format.add_command(app, command)
