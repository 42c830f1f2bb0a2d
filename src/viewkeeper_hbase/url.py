"""`hbase://host:port/namespace?option=value`: where a database in HBase is, and how its gateway is spoken to.

    transport=framed|buffered    protocol=binary|compact    connect_timeout=SECONDS    read_timeout=SECONDS
    retries=N    tls=true|false    ca=FILE    certificate=FILE    key=FILE    verify=true|false
    state=DIRECTORY     where the maintainer keeps its state and redo files: a directory, or a URL (`store.files`)
    overlap=SECONDS     how late a write may become visible and still be found (`windows`)
    cache=SECONDS       how old what is known of the catalog and the published batch may be; 0 asks every time
    lease=SECONDS       how long a maintainer that died keeps others out
    gateways=HOST:PORT,…     others beside the one that is named first: the tasks of a Spark stage spread over all
    capture=auto|push|poll   what HBase pushes (`push`), where that is agreed; or windows of time are scanned
    create=true|false   make the namespace if it is not there

Port 9090 and namespace `default` unless named.
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
    """What a URL names."""

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
    """Gateways beside the first."""

    def choose_gateway(self, process: int) -> Gateway:
        """One of the gateways, for one of many who talk to them at the same time."""
        return (self.gateway, *self.other_gateways)[process % (1 + len(self.other_gateways))]


def parse_url(url: str, options: Mapping[str, Any] | None = None) -> DatabaseAddress:
    """Read a URL; `options` (of `open`) are the same ones and win over those in the URL."""
    parts = urlsplit(url)
    try:
        port = parts.port or 9090
    except ValueError as error:
        raise BadValue(f"{url} has no proper port: {error}.", hint=_HINT) from None
    namespace = parts.path.strip("/") or "default"
    if parts.scheme != "hbase" or not parts.hostname or "/" in namespace or parts.username or parts.fragment:
        raise BadValue(f"{url} is not the address of an HBase.", hint=_HINT)
    said: dict[str, Any] = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **(options or {})}
    unknown = [name for name in said if name not in _OPTIONS]
    if unknown:
        raise BadValue(f"{url}: there is no option {unknown[0]}.", hint=_HINT)
    how: dict[str, Any] = {name: said[name] for name in ("transport", "protocol") if name in said}
    how |= {name: _parse_number(url, name, said[name]) for name in ("connect_timeout", "read_timeout") if name in said}
    retry = (
        RetryPolicy(max_retries=int(_parse_number(url, "retries", said["retries"])))
        if "retries" in said
        else RetryPolicy()
    )
    own: dict[str, Any] = {name: _parse_number(url, name, said[name]) for name in _STORE_OPTIONS if name in said}
    own["state"] = str(said["state"]) if "state" in said else None
    own["capture"] = str(said.get("capture", "auto"))
    if own["capture"] not in _CAPTURE_MODES:
        raise BadValue(
            f"{url}: there is no capture={own['capture']}.", hint=f"Write one of: {', '.join(_CAPTURE_MODES)}."
        )
    own["create"] = _parse_boolean(url, "create", said.get("create", False))
    gateway = Gateway(parts.hostname, port, tls=_parse_tls(url, said), **how)
    named = [place for place in str(said.get("gateways", "")).split(",") if place]
    others = tuple(_parse_gateway(url, gateway, place) for place in named)
    return DatabaseAddress(gateway, namespace, retry, other_gateways=others, **own)


def _parse_gateway(url: str, first: Gateway, host_port: str) -> Gateway:
    """Another gateway, spoken to as the first."""
    host, _, port = host_port.partition(":")
    if not host or (port and not port.isdigit()):
        raise BadValue(f"{url}: {host_port} in gateways= is no host:port.", hint=_HINT)
    return replace(first, host=host, port=int(port or 9090))


def with_options(url: str, options: Mapping[str, Any]) -> str:
    """The URL that says all of it, so that another process opens the same."""
    parts = urlsplit(url)
    said = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **{k: str(v) for k, v in options.items()}}
    return urlunsplit(parts._replace(query=urlencode(said)))


def default_state_path(uuid: str) -> str:
    """Where a database's state is, unless the URL says it."""
    base = os.environ.get("XDG_STATE_HOME")
    return str((Path(base) if base else Path.home() / ".local" / "state") / "viewkeeper" / uuid)


def _parse_tls(url: str, options: Mapping[str, Any]) -> Tls | None:
    asked = (
        _parse_boolean(url, "tls", options["tls"])
        if "tls" in options
        else any(name in options for name in _TLS_OPTIONS)
    )
    if not asked:
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
