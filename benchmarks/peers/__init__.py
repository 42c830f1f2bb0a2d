"""Systems beside us: each is installed into an environment of its own and run as a program on the recorded stream.

A peer's program is given the stream's directory, writes what its view holds at the end to `answer.parquet` in it, and
prints one line of JSON: seconds to load, milliseconds of each small batch, seconds of each large one. What could not
be run is told with its reason.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Peer:
    name: str
    package: str
    program: str
    environment: tuple[tuple[str, str], ...] = ()


PATHWAY = Peer(
    "Pathway",
    "pathway==0.33.0",
    "pathway_q3.py",
    # Two workers, and nothing sent anywhere.
    (("PATHWAY_THREADS", "2"), ("PATHWAY_TELEMETRY_SERVER", "")),
)

LEFT_OUT = {
    "Feldera": "from PyPI comes a client of 90 kB; the engine is a server, to be run as a container",
    "RisingWave": "from PyPI comes a client of 11 kB; the engine is a server, to be run as a container or a binary",
    "Materialize": "a server, to be run as a container; the package of that name on PyPI (2 kB) is no engine",
    "pg_ivm": "neither on PyPI nor among the packages of Debian 12: it has to be built against a PostgreSQL server",
}


def run(peer: Peer, environments: Path, stream: Path) -> dict[str, Any]:
    """What the peer's program found; `{"error": …}` if it cannot be installed or fails."""
    try:
        python = installed(peer, environments)
        command = [str(python), str(Path(__file__).with_name(peer.program)), str(stream)]
        told = {**os.environ, **dict(peer.environment)}
        told.pop("PYTHONPATH", None)
        done = subprocess.run(command, env=told, capture_output=True, text=True, check=True)
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or "").strip().splitlines()
        return {"error": lines[-1] if lines else str(error)}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def installed(peer: Peer, environments: Path) -> Path:
    """The Python of the peer's environment, made on first use."""
    place = environments / peer.package.replace("==", "-")
    python = place / "bin" / "python"
    if not (place / "done").exists():
        for command in (
            [sys.executable, "-m", "venv", str(place)],
            [python, "-m", "pip", "install", "-q", peer.package],
        ):
            subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)
        (place / "done").touch()
    return python
