"""Processes that outlive the process that started them, identified reliably.

A pid alone may have been reused. A process is the recorded one if its pid runs, it started at the recorded time,
and its command line has the recorded mark; no other process is ever signalled. A child of this process is
identified by its handle instead: while it starts, the system shows it without a command line, as if it had ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from viewkeeper.resources.java_programs import JavaProgram


@dataclass(frozen=True)
class ProcessRecord:
    """A process as it was when it was started."""

    pid: int
    start_time: str
    """Its start time as the system reports it; compared as text, never parsed."""
    argument_mark: str
    """An argument that no other process has."""

    def as_json(self) -> dict[str, Any]:
        return {"pid": self.pid, "began": self.start_time, "mark": self.argument_mark}

    @staticmethod
    def from_json(value: dict[str, Any]) -> ProcessRecord:
        return ProcessRecord(int(value["pid"]), str(value["began"]), str(value["mark"]))


_children: dict[int, tuple[ProcessRecord, subprocess.Popen[bytes]]] = {}
"""The children of this process, which are reaped so that none remains a zombie."""


def start_process(command: Sequence[str], *, mark: str, log: Path, cwd: Path) -> ProcessRecord:
    """Start a process in a session of its own, so that a Ctrl-C at the terminal does not reach it; append its output
    to `log`."""
    with log.open("ab") as out:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            start_new_session=True,
        )
    started = _read_process(child.pid)
    process = ProcessRecord(child.pid, started[0] if started else "", mark)
    _children[child.pid] = process, child
    return process


def is_running(process: ProcessRecord | None) -> bool:
    """Return whether this very process still runs."""
    if process is None:
        return False
    child = _find_child(process)
    if child is not None:
        return child.poll() is None
    current = _read_process(process.pid)
    return current is not None and current[0] == process.start_time and process.argument_mark in current[1]


def exit_code(process: ProcessRecord | None) -> int | None:
    """Return the exit code of a child of this process, -9 for SIGKILL; None if it runs or another process started
    it."""
    child = _find_child(process)
    return None if child is None else child.poll()


def _find_child(process: ProcessRecord | None) -> subprocess.Popen[bytes] | None:
    started, child = _children.get(process.pid, (None, None)) if process else (None, None)
    return child if started == process else None


def kill_process(process: ProcessRecord | None) -> None:
    """Send SIGKILL, and wait until the process has ended."""
    _send_signal(process, signal.SIGKILL)
    _wait_for_exit(process, 10.0)


def stop_process(process: ProcessRecord | None, *, timeout: float) -> bool:
    """Send SIGTERM, then SIGKILL after `timeout` seconds; return whether SIGTERM was enough."""
    _send_signal(process, signal.SIGTERM)
    if _wait_for_exit(process, timeout):
        return True
    kill_process(process)
    return False


def _send_signal(process: ProcessRecord | None, number: int) -> None:
    if process is not None and is_running(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _wait_for_exit(process: ProcessRecord | None, timeout: float) -> bool:
    end = time.monotonic() + timeout
    while is_running(process):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def _read_process(pid: int) -> tuple[str, str] | None:
    """Return start time and command line of a live process; None for a zombie."""
    proc = Path("/proc") / str(pid)
    if Path("/proc/self/stat").exists():
        try:
            # The name in parentheses may contain blanks and parentheses; the fields after the last one are fixed.
            fields = (proc / "stat").read_text().rpartition(")")[2].split()
            return (
                None
                if fields[0] == "Z"
                else (fields[19], (proc / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            )
        except (OSError, IndexError):
            return None
    ps_fields = subprocess.run(
        ["ps", "-o", "state=,lstart=,command=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.split()
    return (
        None
        if len(ps_fields) < 7 or ps_fields[0].startswith("Z")
        else (" ".join(ps_fields[1:6]), " ".join(ps_fields[6:]))
    )


# HBase's jars: 149 files, 108 MB.


HBASE_PROGRAM = JavaProgram(
    program="HBase",
    version="2.6.1",
    package=__package__,
    variable="VIEWKEEPER_HBASE_HOME",
    main_jar="hbase-thrift-*.jar",
    megabytes=150,
)
