"""The URL of a database in HBase, `hbase://host:port/namespace?option=value`: its location and connection settings.

    transport=framed|buffered    protocol=binary|compact    connect_timeout=SECONDS    read_timeout=SECONDS
    retries=N    tls=true|false    ca=FILE    certificate=FILE    key=FILE    verify=true|false
    state=DIRECTORY     where the maintainer keeps its state and redo files: a directory, or a URL
    overlap=SECONDS     how late a write may become visible and still be captured (`capture.time_windows`)
    cache=SECONDS       maximum age of the cached catalog and published batch; 0 reads them at every use
    lease=SECONDS       how long the lease of a maintainer that died keeps other processes out
    gateways=HOST:PORT,…     gateways in addition to the first one; the tasks of a Spark stage spread over all
    capture=auto|push|poll   auto: changes that HBase pushes, if that is agreed, else time windows are scanned;
                             push: refuse to maintain without push; poll: always scan time windows
    create=true|false   create the namespace if it does not exist

The default port is 9090, the default namespace is `default`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from viewkeeper.errors import BadValue
from viewkeeper_hbase.thrift.connection import Gateway, Tls
from viewkeeper_hbase.thrift.pool import RetryPolicy

_TLS_OPTIONS = ("tls", "ca", "certificate", "key", "verify")
_STORE_OPTIONS = ("overlap", "cache", "lease")
_GATEWAY_OPTIONS = ("transport", "protocol", "connect_timeout", "read_timeout", "retries")
_OPTIONS = (*_GATEWAY_OPTIONS, *_TLS_OPTIONS, *_STORE_OPTIONS, "state", "create", "capture", "gateways")
_CAPTURE_MODES = ("auto", "push", "poll")
_ZERO_ALLOWED = ("retries", "overlap", "cache")
_HINT = f"Write hbase://host:port/namespace; options after a ?: {', '.join(_OPTIONS)}."


@dataclass(frozen=True)
class DatabaseAddress:
    """A parsed URL."""

    gateway: Gateway
    namespace: str
    retry: RetryPolicy
    state: str | None = None
    overlap: float | None = None
    cache: float | None = None
    lease: float | None = None
    create: bool = False
    capture: str = "auto"
    other_gateways: tuple[Gateway, ...] = ()
    """Gateways in addition to the first."""

    def choose_gateway(self, process: int) -> Gateway:
        """Return the gateway for process number `process`: concurrent processes are spread over all gateways."""
        return (self.gateway, *self.other_gateways)[process % (1 + len(self.other_gateways))]


def parse_url(url: str, options: Mapping[str, Any] | None = None) -> DatabaseAddress:
    """Parse a URL. `options` (those of `open`) have the same names and take precedence over the URL's."""
    parts = urlsplit(url)
    try:
        port = parts.port or 9090
    except ValueError as error:
        raise BadValue(f"{url} has no proper port: {error}.", hint=_HINT) from None
    namespace = parts.path.strip("/") or "default"
    if parts.scheme != "hbase" or not parts.hostname or "/" in namespace or parts.username or parts.fragment:
        raise BadValue(f"{url} is not the address of an HBase.", hint=_HINT)
    settings: dict[str, Any] = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **(options or {})}
    unknown = [name for name in settings if name not in _OPTIONS]
    if unknown:
        raise BadValue(f"{url}: there is no option {unknown[0]}.", hint=_HINT)
    gateway_options: dict[str, Any] = {name: settings[name] for name in ("transport", "protocol") if name in settings}
    gateway_options |= {
        name: _parse_number(url, name, settings[name])
        for name in ("connect_timeout", "read_timeout")
        if name in settings
    }
    retry = (
        RetryPolicy(max_retries=int(_parse_number(url, "retries", settings["retries"])))
        if "retries" in settings
        else RetryPolicy()
    )
    store_options: dict[str, Any] = {
        name: _parse_number(url, name, settings[name]) for name in _STORE_OPTIONS if name in settings
    }
    store_options["state"] = str(settings["state"]) if "state" in settings else None
    store_options["capture"] = str(settings.get("capture", "auto"))
    if store_options["capture"] not in _CAPTURE_MODES:
        raise BadValue(
            f"{url}: there is no capture={store_options['capture']}.",
            hint=f"Write one of: {', '.join(_CAPTURE_MODES)}.",
        )
    store_options["create"] = _parse_boolean(url, "create", settings.get("create", False))
    gateway = Gateway(parts.hostname, port, tls=_parse_tls(url, settings), **gateway_options)
    host_ports = [host_port for host_port in str(settings.get("gateways", "")).split(",") if host_port]
    others = tuple(_parse_gateway(url, gateway, host_port) for host_port in host_ports)
    return DatabaseAddress(gateway, namespace, retry, other_gateways=others, **store_options)


def _parse_gateway(url: str, first: Gateway, host_port: str) -> Gateway:
    """Return a further gateway, with the first gateway's connection settings."""
    host, _, port = host_port.partition(":")
    if not host or (port and not port.isdigit()):
        raise BadValue(f"{url}: {host_port} in gateways= is no host:port.", hint=_HINT)
    return replace(first, host=host, port=int(port or 9090))


def with_options(url: str, options: Mapping[str, Any]) -> str:
    """Return the URL with `options` in its query, so that another process can open the same database from it."""
    parts = urlsplit(url)
    query = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **{k: str(v) for k, v in options.items()}}
    return urlunsplit(parts._replace(query=urlencode(query)))


def default_state_path(uuid: str) -> str:
    """Return the default location of a database's state, for URLs without `state=`."""
    base = os.environ.get("XDG_STATE_HOME")
    return str((Path(base) if base else Path.home() / ".local" / "state") / "viewkeeper" / uuid)


def _parse_tls(url: str, options: Mapping[str, Any]) -> Tls | None:
    uses_tls = (
        _parse_boolean(url, "tls", options["tls"])
        if "tls" in options
        else any(name in options for name in _TLS_OPTIONS)
    )
    if not uses_tls:
        return None
    files = {name: str(options[name]) for name in ("ca", "certificate", "key") if name in options}
    return Tls(**files, verify=_parse_boolean(url, "verify", options.get("verify", True)))


def _parse_number(url: str, name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number < 1e6 or (number == 0 and name not in _ZERO_ALLOWED):
        raise BadValue(f"{url}: {name}={value} is not a number above zero.", hint=_HINT)
    return number


def _parse_boolean(url: str, name: str, value: Any) -> bool:
    text = str(value).lower()
    if text not in ("true", "false", "1", "0", "yes", "no"):
        raise BadValue(f"{url}: {name}={value} is neither true nor false.", hint=_HINT)
    return text in ("true", "1", "yes")
