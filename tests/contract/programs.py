"""Whole programs over a database with rows and views that need no JVM: how they end, and what they say."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PROLOGUE = """
import atexit, json, multiprocessing, os, signal, sys, threading, time, traceback
from tests.contract import planned
import viewkeeper as vk
from viewkeeper.errors import MaintainerBusy, StoreError

planned.install()
settings = json.loads(sys.argv[1])
db = vk.open(**settings)

def change(price):
    return db.put("items", [planned.item(n, price) for n in range(1000)])

def refused(work):
    try:
        work()
    except StoreError as error:
        assert f"by process {os.getppid()}, of which this one is a fork" in str(error), error
    else:
        raise AssertionError("it was not refused")

def in_child(work, end=os._exit):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.alarm(60)
    code = 1
    try:
        work()
        code = 5
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    end(code)
"""


def run(code: str, settings: dict[str, Any]) -> tuple[int, str, str]:
    """The exit code of a program that has the database open as `db`, and what it says."""
    command = [sys.executable, "-c", PROLOGUE + textwrap.dedent(code), json.dumps(settings)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr
