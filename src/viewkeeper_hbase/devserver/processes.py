"""Processes that outlive the one that started them, known for certain.

A pid alone may by now belong to somebody else. A process is ours when its pid runs, started at the recorded time, and
carries the recorded mark on its command line; anything else is never signalled. A child of this very process is known
by its handle instead: while it begins, the system shows it without a command line, and it would be taken for ended.
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
    """A process as it was when we started it."""

    pid: int
    start_time: str
    """Its start time as the system tells it; compared as text, never read."""
    argument_mark: str
    """An argument that no other process has."""

    def as_json(self) -> dict[str, Any]:
        return {"pid": self.pid, "began": self.start_time, "mark": self.argument_mark}

    @staticmethod
    def from_json(value: dict[str, Any]) -> ProcessRecord:
        return ProcessRecord(int(value["pid"]), str(value["began"]), str(value["mark"]))


_children: dict[int, tuple[ProcessRecord, subprocess.Popen[bytes]]] = {}
"""Those this process started, so that they are reaped and never stay behind as zombies."""


def start_process(command: Sequence[str], *, mark: str, log: Path, cwd: Path) -> ProcessRecord:
    """Start a process in a session of its own (a Ctrl-C at our terminal is not for it), its output added to `log`."""
    with log.open("ab") as out:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            start_new_session=True,
        )
    seen = _read_process(child.pid)
    process = ProcessRecord(child.pid, seen[0] if seen else "", mark)
    _children[child.pid] = process, child
    return process


def is_running(process: ProcessRecord | None) -> bool:
    """Whether this very process still runs."""
    if process is None:
        return False
    child = _find_child(process)
    if child is not None:
        return child.poll() is None
    seen = _read_process(process.pid)
    return seen is not None and seen[0] == process.start_time and process.argument_mark in seen[1]


def exit_code(process: ProcessRecord | None) -> int | None:
    """How a child of this process ended, -9 for SIGKILL; None of one that runs or that another process started."""
    child = _find_child(process)
    return None if child is None else child.poll()


def _find_child(process: ProcessRecord | None) -> subprocess.Popen[bytes] | None:
    started, child = _children.get(process.pid, (None, None)) if process else (None, None)
    return child if started == process else None


def kill_process(process: ProcessRecord | None) -> None:
    """SIGKILL, and wait until it is gone."""
    _send_signal(process, signal.SIGKILL)
    _wait_for_exit(process, 10.0)


def stop_process(process: ProcessRecord | None, *, timeout: float) -> bool:
    """SIGTERM, then SIGKILL after `patience` seconds; whether SIGTERM was enough."""
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
    """Start time and command line of a live process; a zombie is not one."""
    proc = Path("/proc") / str(pid)
    if Path("/proc/self/stat").exists():
        try:
            # The name in parentheses may hold blanks and parentheses; the fields after the last one are fixed.
            fields = (proc / "stat").read_text().rpartition(")")[2].split()
            return (
                None
                if fields[0] == "Z"
                else (fields[19], (proc / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            )
        except (OSError, IndexError):
            return None
    said = subprocess.run(
        ["ps", "-o", "state=,lstart=,command=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.split()
    return None if len(said) < 7 or said[0].startswith("Z") else (" ".join(said[1:6]), " ".join(said[6:]))


# HBase's jars: 149 of them, 108 MB.


HBASE_PROGRAM = JavaProgram(
    program="HBase",
    version="2.6.1",
    package=__package__,
    variable="VIEWKEEPER_HBASE_HOME",
    main_jar="hbase-thrift-*.jar",
    megabytes=150,
)
