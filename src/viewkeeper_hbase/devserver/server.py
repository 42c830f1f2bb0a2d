"""A real HBase on this machine, for tests, demos and trials: one JVM for HBase, one for its Thrift2 gateway.

    data/                     chosen by the user; nothing outside of it is written (except the jars)
      instance.json           ports and processes; a command may stop the processes named here, and no others
      lock                    held while starting or stopping
      conf/                   hbase-site.xml, log4j.properties, written at each start
      ext/                    further jars for HBase's class path, such as the push endpoint's
      hbase/ zookeeper/ tmp/  the data
      logs/                   hbase.log, gateway.log, and the output of the JVMs (*.out)

HBase runs master, region server and ZooKeeper in one process ("standalone"); the gateway speaks framed Thrift2 on
loopback. Free ports are chosen at the first start and kept unless another process takes them, so the address
survives a restart. Each JVM can be killed and started again separately, as the fault tests do.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from viewkeeper.errors import BadValue, NotADatabase, StoreError, Timeout
from viewkeeper.resources.java_programs import hold_file_lock
from viewkeeper_hbase.devserver import processes
from viewkeeper_hbase.devserver.processes import HBASE_PROGRAM, ProcessRecord
from viewkeeper_hbase.thrift.client import HBaseClient
from viewkeeper_hbase.thrift.connection import Gateway
from viewkeeper_hbase.thrift.pool import RetryPolicy

DEFAULT_DATA = Path(".viewkeeper-hbase")
HOST = "127.0.0.1"

_OPENED_PACKAGES = ("java.nio", "sun.nio.ch", "java.lang", "java.lang.reflect", "java.util", "jdk.internal.misc")
JVM_OPTIONS = (
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED_PACKAGES),
    "--add-exports=java.base/jdk.internal.misc=ALL-UNNAMED",
    "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "-Djava.net.preferIPv4Stack=true",
    "-XX:+UseSerialGC",
)
_STOP_TIMEOUT = 30.0

_LOG4J = """log4j.rootLogger=INFO, file
log4j.appender.file=org.apache.log4j.RollingFileAppender
log4j.appender.file.File=${viewkeeper.log}
log4j.appender.file.MaxFileSize=20MB
log4j.appender.file.MaxBackupIndex=2
log4j.appender.file.layout=org.apache.log4j.PatternLayout
log4j.appender.file.layout.ConversionPattern=%d{ISO8601} %-5p [%t] %c{2}: %m%n
log4j.logger.org.apache.zookeeper=WARN
"""


@dataclass(frozen=True)
class Instance:
    """The contents of `instance.json`."""

    zookeeper_port: int
    gateway_port: int
    hbase: ProcessRecord | None = None
    gateway: ProcessRecord | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "format": 1,
            "hbase_version": HBASE_PROGRAM.version,
            "zookeeper_port": self.zookeeper_port,
            "gateway_port": self.gateway_port,
            "hbase": self.hbase.as_json() if self.hbase else None,
            "gateway": self.gateway.as_json() if self.gateway else None,
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> Instance:
        hbase, gateway = value["hbase"], value["gateway"]
        return Instance(
            int(value["zookeeper_port"]),
            int(value["gateway_port"]),
            ProcessRecord.from_json(hbase) if hbase else None,
            ProcessRecord.from_json(gateway) if gateway else None,
        )


@dataclass(frozen=True)
class Status:
    """The state of an instance."""

    data: Path
    hbase: bool
    """Its process runs."""
    gateway: bool
    """Its process runs."""
    answers: bool
    """A Thrift call through the gateway to HBase's master succeeded."""
    host: str
    port: int | None
    hbase_pid: int | None
    gateway_pid: int | None

    @property
    def url(self) -> str | None:
        return f"hbase://{self.host}:{self.port}/default" if self.port else None


class _ProcessEnded(StoreError):
    """A process ended before it answered."""


class Server:
    """One HBase with its gateway, in one data directory. It is a context manager, or is started and stopped
    explicitly."""

    def __init__(self, data: str | os.PathLike[str] = DEFAULT_DATA, *, settings: dict[str, str] | None = None) -> None:
        self.data = Path(data).absolute()
        self.settings = dict(settings or {})
        """Further properties for hbase-site.xml; they take precedence."""

    # -- start and stop -----------------------------------------------------------------------------------------------

    def start(self, *, timeout: float = 120.0) -> Status:
        """Start the processes that do not run yet, and wait until HBase answers. A running instance is left as it
        is."""
        deadline = time.monotonic() + timeout
        HBASE_PROGRAM.java_command()
        self._prepare_directory()
        with hold_file_lock(self.data / "lock"):
            self._start_listening(deadline)
            # The gateway may start while the master still initialises: it only needs ZooKeeper.
            self._start_gateway()
        self.wait(timeout=deadline - time.monotonic())
        return self.status()

    def stop(self, *, timeout: float = _STOP_TIMEOUT) -> bool:
        """Stop both processes with SIGTERM, then SIGKILL. Return False if neither ran."""
        if not (self.data / "instance.json").exists():
            return False
        with hold_file_lock(self.data / "lock"):
            instance = self.instance()
            ran = processes.is_running(instance.gateway) or processes.is_running(instance.hbase)
            processes.stop_process(instance.gateway, timeout=min(timeout, 10.0))
            processes.stop_process(instance.hbase, timeout=timeout)
            self._write_instance(replace(instance, hbase=None, gateway=None))
        return ran

    def status(self) -> Status:
        """Return what runs and whether it answers; nothing is changed."""
        if not (self.data / "instance.json").exists():
            return Status(self.data, False, False, False, HOST, None, None, None)
        instance = self.instance()
        hbase, gateway = processes.is_running(instance.hbase), processes.is_running(instance.gateway)
        return Status(
            data=self.data,
            hbase=hbase,
            gateway=gateway,
            answers=hbase and gateway and is_answering(instance.gateway_port),
            host=HOST,
            port=instance.gateway_port,
            hbase_pid=instance.hbase.pid if instance.hbase and hbase else None,
            gateway_pid=instance.gateway.pid if instance.gateway and gateway else None,
        )

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- single processes, for fault tests ----------------------------------------------------------------------------

    def kill_hbase(self) -> None:
        """Kill HBase (master, region server and ZooKeeper at once); the gateway keeps running."""
        processes.kill_process(self.instance().hbase)

    def kill_gateway(self) -> None:
        """Kill the gateway; HBase keeps running."""
        processes.kill_process(self.instance().gateway)

    def start_hbase(self, *, wait: bool = True, timeout: float = 120.0) -> None:
        """Start HBase again after it was killed, on the same ports and data."""
        with hold_file_lock(self.data / "lock"):
            self._start_hbase()
        if wait:
            self.wait(timeout=timeout)

    def start_gateway(self, *, wait: bool = True, timeout: float = 60.0) -> None:
        """Start the gateway again after it was killed, on the same port."""
        with hold_file_lock(self.data / "lock"):
            self._start_gateway()
        if wait:
            self.wait(timeout=timeout)

    def wait(self, *, timeout: float = 120.0) -> None:
        """Wait until a Thrift call through the gateway reaches the master and a region server; otherwise raise
        Timeout."""
        port = self.instance().gateway_port
        self._wait(lambda: is_answering(port), time.monotonic() + timeout, "HBase", "hbase", "gateway")

    def instance(self) -> Instance:
        """Return the record of this instance."""
        path = self.data / "instance.json"
        try:
            return Instance.from_json(json.loads(path.read_text()))
        except FileNotFoundError:
            raise NotADatabase(
                f"{self.data} holds no HBase instance.", hint="`vk hbase start --data DIR` makes one."
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise NotADatabase(
                f"{path} cannot be read: {error}.", hint="Remove it when no HBase of this directory runs."
            ) from error

    @property
    def port(self) -> int:
        """The gateway's port."""
        return self.instance().gateway_port

    @property
    def host(self) -> str:
        return HOST

    # -- details ------------------------------------------------------------------------------------------------------

    def _prepare_directory(self) -> None:
        """Make the data directory an instance's; raise if it holds something else."""
        if (self.data / "instance.json").exists():
            return
        if ":" in str(self.data):
            raise BadValue(
                f"{self.data} has a colon in it, which Java's class path cannot have.", hint="Choose another."
            )
        try:
            if self.data.exists() and any(path.name not in ("lock", "ext") for path in self.data.iterdir()):
                raise NotADatabase(
                    f"{self.data} is not empty and holds no HBase instance.",
                    hint="Choose another directory with --data.",
                )
            for name in ("conf", "logs", "tmp", "hbase", "zookeeper"):
                (self.data / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"{self.data} cannot be written: {error.strerror}.", hint="Choose another directory with --data."
            ) from error
        self._write_instance(Instance(free_port(), free_port()))

    def _write_instance(self, instance: Instance) -> None:
        path = self.data / "instance.json"
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(instance.as_json(), indent=1) + "\n")
        temporary.replace(path)

    def _start_listening(self, deadline: float) -> None:
        """Start HBase and wait for its ZooKeeper. Another process may take its port meanwhile, so there are three
        attempts."""
        for can_retry in (True, True, False):
            self._start_hbase()
            try:
                self._wait(
                    lambda: _is_listening(self.instance().zookeeper_port), deadline, "HBase's ZooKeeper", "hbase"
                )
            except _ProcessEnded:
                if not can_retry:
                    raise
            else:
                return

    def _start_hbase(self) -> None:
        instance = self.instance()
        if processes.is_running(instance.hbase):
            return
        # A running gateway knows the old port; without one, a port that another process has taken is replaced.
        if not processes.is_running(instance.gateway) and not _is_free(instance.zookeeper_port):
            instance = replace(instance, zookeeper_port=free_port())
        self._configure(instance)
        # At a stop, ZooKeeper may end before the region server has signed off there: one retry, not 20 s of retries.
        options = ("-Dzookeeper.recovery.retry=1", "-Dzookeeper.recovery.retry.intervalmill=200", "start")
        process = self._start_java("hbase", "1g", "org.apache.hadoop.hbase.master.HMaster", *options)
        self._write_instance(replace(instance, hbase=process))

    def _start_gateway(self) -> None:
        instance = self.instance()
        if processes.is_running(instance.gateway):
            return
        if not _is_free(instance.gateway_port):
            instance = replace(instance, gateway_port=free_port())
        self._configure(instance)
        main = "org.apache.hadoop.hbase.thrift2.ThriftServer"
        options = ("start", "-b", HOST, "-p", str(instance.gateway_port), "-f", "--infoport", "-1", "-threadpool")
        self._write_instance(replace(instance, gateway=self._start_java("gateway", "512m", main, *options)))

    def _start_java(self, name: str, heap: str, main: str, *arguments: str) -> ProcessRecord:
        mark = f"-Dviewkeeper.instance={self.data}/{name}"
        log = self.data / "logs" / f"{name}.log"
        jvm = (*JVM_OPTIONS, f"-Xmx{heap}", mark, f"-Dviewkeeper.log={log}", f"-Djava.io.tmpdir={self.data / 'tmp'}")
        classes = f"{self.data / 'conf'}:{self.data / 'ext'}/*:{HBASE_PROGRAM.fetch_jars()}/*"
        command = (HBASE_PROGRAM.java_command(), *jvm, "-cp", classes, main, *arguments)
        return processes.start_process(command, mark=mark, log=log.with_suffix(".out"), cwd=self.data)

    def _configure(self, instance: Instance) -> None:
        properties = {
            "hbase.cluster.distributed": "false",
            "hbase.rootdir": (self.data / "hbase").as_uri(),
            "hbase.tmp.dir": str(self.data / "tmp"),
            "hbase.zookeeper.quorum": HOST,
            "hbase.zookeeper.property.dataDir": str(self.data / "zookeeper"),
            "hbase.zookeeper.property.clientPort": str(instance.zookeeper_port),
            "hbase.zookeeper.property.clientPortAddress": HOST,
            "hbase.zookeeper.property.admin.enableServer": "false",
            "hbase.unsafe.stream.capability.enforce": "false",
            "hbase.wal.provider": "filesystem",
            "hbase.master.hostname": "localhost",
            "hbase.regionserver.hostname": "localhost",
            "hbase.localcluster.assign.random.ports": "true",
            "hbase.master.info.port": "-1",
            "hbase.regionserver.info.port": "-1",
            # A call through the gateway while HBase is down ends with a retriable error, not after twenty minutes.
            "hbase.client.operation.timeout": "20000",
            "hbase.client.meta.operation.timeout": "20000",
            "hbase.rpc.timeout": "20000",
            # On a busy machine HBase may pause for longer than the default of 10 s, after which it aborts.
            "zookeeper.session.timeout.localHBaseCluster": "40000",
            **self.settings,
        }
        write_conf(self.data / "conf", properties)

    def _wait(self, condition: Callable[[], bool], deadline: float, what: str, *required: str) -> None:
        while not condition():
            instance = self.instance()
            for name in required:
                if not processes.is_running(getattr(instance, name)):
                    code = processes.exit_code(getattr(instance, name))
                    ended = "" if code is None else f" with exit code {code}"
                    raise _ProcessEnded(
                        f"{what} did not start: its {name} process ended{ended}. {self._last_error_line(name)}",
                        hint=f"See {self.data / 'logs'}.",
                    )
            if time.monotonic() > deadline:
                raise Timeout(f"{what} in {self.data} did not answer in time.", hint=f"See {self.data / 'logs'}.")
            time.sleep(0.2)

    def _last_error_line(self, name: str) -> str:
        last = ""
        for suffix in (".out", ".log"):
            path = self.data / "logs" / f"{name}{suffix}"
            lines = path.read_text(errors="replace").splitlines() if path.exists() else []
            errors = [line for line in lines[-200:] if "Exception" in line or "Error" in line or "ERROR" in line]
            if errors:
                return errors[-1].strip()[:300]
            last = last or next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
        return last


def write_conf(conf: Path, properties: Mapping[str, str]) -> None:
    """Write HBase's settings and its log configuration."""
    lines = (f"<property><name>{escape(k)}</name><value>{escape(v)}</value></property>" for k, v in properties.items())
    site = '<?xml version="1.0"?>\n<configuration>\n' + "\n".join(lines) + "\n</configuration>\n"
    (conf / "hbase-site.xml").write_text(site)
    (conf / "log4j.properties").write_text(_LOG4J)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def _is_listening(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1.0):
            return True
    except OSError:
        return False


def is_answering(port: int) -> bool:
    """Return whether a call reaches the master (namespaces) and another a region server (hbase:meta)."""
    if not _is_listening(port):
        return False
    with HBaseClient(
        Gateway(HOST, port, connect_timeout=2.0, read_timeout=5.0), retry=RetryPolicy(max_retries=0)
    ) as client:
        try:
            client.admin.list_namespaces()
            client.admin.exists("default:viewkeeper-asks")
        except StoreError:
            return False
        return True
