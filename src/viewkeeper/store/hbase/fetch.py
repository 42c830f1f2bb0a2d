"""HBase's jars, fetched once with Maven.

    home/                 VIEWKEEPER_HBASE_HOME, default ~/.cache/viewkeeper/hbase-2.6.1
      lib/                149 jars, 108 MB; complete as soon as it exists (moved into place in one rename)
      fetch.lock          held while fetching, so that two processes do not fetch twice
      fetch.log           what Maven said

What is fetched is pinned by `pom.xml` beside this file.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from viewkeeper.errors import MissingDependency, StoreError

VERSION = "2.6.1"
HOME_VARIABLE = "VIEWKEEPER_HBASE_HOME"
JAVA_AT_LEAST = 11


def home() -> Path:
    """Where the jars are kept; they need not be there yet."""
    chosen = os.environ.get(HOME_VARIABLE)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(chosen).expanduser().absolute() if chosen else cache / "viewkeeper" / f"hbase-{VERSION}"


def java() -> str:
    """The java command that runs HBase, checked for its version."""
    base = os.environ.get("JAVA_HOME")
    of_home = shutil.which("java", path=str(Path(base) / "bin")) if base else None
    command = of_home or shutil.which("java")
    if command is None:
        raise MissingDependency(
            "HBase needs Java and there is no `java` command.",
            hint="Install Java 17 or newer (Debian: apt-get install openjdk-17-jre-headless).",
        )
    said = subprocess.run([command, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if found is None or int(found[1]) < JAVA_AT_LEAST:
        first = said.splitlines()[0] if said else "nothing"
        raise MissingDependency(
            f"HBase needs Java {JAVA_AT_LEAST} or newer and `{command} -version` says {first}.",
            hint="Install Java 17, or set JAVA_HOME to one.",
        )
    return command


def jars(*, timeout: float = 900.0) -> Path:
    """The directory of HBase's jars, fetched first if it is not there."""
    where = home()
    lib = where / "lib"
    if lib.is_dir():
        return lib
    try:
        where.mkdir(parents=True, exist_ok=True)
        with locked(where / "fetch.lock"):
            if not lib.is_dir():
                _fetch(where, lib, timeout)
    except OSError as error:
        raise StoreError(
            f"The HBase jars cannot be written to {where}: {error.strerror}.",
            hint=f"Set {HOME_VARIABLE} to a directory with 150 MB free.",
        ) from error
    return lib


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an advisory lock on a file; it ends with the process that holds it, however that ends."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(where: Path, lib: Path, timeout: float) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingDependency(
            "HBase is fetched with Maven on first use and there is no `mvn` command.",
            hint="Install Maven 3.8 or newer (Debian: apt-get install maven), or set"
            f" {HOME_VARIABLE} to a directory whose lib/ holds HBase's jars.",
        )
    java()
    with tempfile.TemporaryDirectory(dir=where, prefix="fetch-") as name:
        work = Path(name)
        pom = work / "pom.xml"
        pom.write_bytes(resources.files(__package__).joinpath("pom.xml").read_bytes())
        goal = [maven, "-B", "-q", "-f", str(pom), "dependency:copy-dependencies"]
        options = ["-DincludeScope=runtime", f"-DoutputDirectory={work / 'lib'}", "-Dmdep.useBaseVersion=true"]
        log = where / "fetch.log"
        with log.open("wb") as out:
            try:
                done = subprocess.run(
                    goal + options,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    timeout=timeout,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise StoreError(
                    f"Maven did not fetch HBase within {timeout:.0f} s.",
                    hint=f"Its output is in {log}; start again to go on.",
                ) from None
        if done.returncode != 0 or not list((work / "lib").glob("hbase-thrift-*.jar")):
            errors = [line for line in log.read_text(errors="replace").splitlines() if "ERROR" in line]
            raise StoreError(
                f"Maven could not fetch HBase: {errors[0] if errors else f'exit code {done.returncode}'}.",
                hint=f"Its output is in {log}.",
            )
        (work / "lib").rename(lib)
