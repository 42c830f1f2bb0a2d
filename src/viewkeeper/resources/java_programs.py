"""Java programs that run as separate processes: their jars are fetched with Maven on first use.

    home/                 named by an environment variable, by default ~/.cache/viewkeeper/NAME-VERSION
      lib/                the jars; complete as soon as it exists (moved into place with one rename)
      fetch.lock          held while fetching, so that two processes do not fetch twice
      fetch.log           Maven's output

The versions of the jars are pinned by a `pom.xml` in the package that runs the program.
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
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from viewkeeper.errors import MissingDependency, StoreError


@dataclass(frozen=True)
class JavaProgram:
    """A Java program, and where its jars come from."""

    program: str
    """The program's name for users, such as HBase."""
    version: str
    package: str
    """The package whose `pom.xml` lists the jars."""
    variable: str
    """The environment variable that overrides the home directory."""
    main_jar: str
    """Glob pattern of the main jar; a fetch without it is incomplete."""
    megabytes: int
    min_java_version: int = 11

    @property
    def home(self) -> Path:
        """The directory of the jars; it need not exist yet."""
        chosen = os.environ.get(self.variable)
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        name = f"{self.program.lower()}-{self.version}"
        return Path(chosen).expanduser().absolute() if chosen else cache / "viewkeeper" / name

    def java_command(self) -> str:
        """Return the java command that runs the program, after a check of its version."""
        base = os.environ.get("JAVA_HOME")
        in_java_home = shutil.which("java", path=str(Path(base) / "bin")) if base else None
        command = in_java_home or shutil.which("java")
        if command is None:
            raise MissingDependency(
                f"{self.program} needs Java and there is no `java` command.",
                hint="Install Java 17 or newer (Debian: apt-get install openjdk-17-jre-headless).",
            )
        output = subprocess.run([command, "-version"], capture_output=True, text=True, check=False).stderr
        match = re.search(r'version "(?:1\.)?(\d+)', output)
        if match is None or int(match[1]) < self.min_java_version:
            first = output.splitlines()[0] if output else "nothing"
            raise MissingDependency(
                f"{self.program} needs Java {self.min_java_version} or newer and `{command} -version` says {first}.",
                hint="Install Java 17, or set JAVA_HOME to one.",
            )
        return command

    def fetch_jars(self, *, timeout: float = 900.0) -> Path:
        """Return the directory of the jars; fetch them first if it does not exist."""
        home = self.home
        lib = home / "lib"
        if lib.is_dir():
            return lib
        try:
            home.mkdir(parents=True, exist_ok=True)
            with hold_file_lock(home / "fetch.lock"):
                if not lib.is_dir():
                    self._fetch_with_maven(home, lib, timeout)
        except OSError as error:
            raise StoreError(
                f"The {self.program} jars cannot be written to {home}: {error.strerror}.",
                hint=f"Set {self.variable} to a directory with {self.megabytes} MB free.",
            ) from error
        return lib

    def _fetch_with_maven(self, home: Path, lib: Path, timeout: float) -> None:
        maven = shutil.which("mvn")
        if maven is None:
            raise MissingDependency(
                f"{self.program} is fetched with Maven on first use and there is no `mvn` command.",
                hint="Install Maven 3.8 or newer (Debian: apt-get install maven), or set"
                f" {self.variable} to a directory whose lib/ holds {self.program}'s jars.",
            )
        self.java_command()
        with tempfile.TemporaryDirectory(dir=home, prefix="fetch-") as name:
            work = Path(name)
            pom = work / "pom.xml"
            pom.write_bytes(resources.files(self.package).joinpath("pom.xml").read_bytes())
            goal = [maven, "-B", "-q", "-f", str(pom), "dependency:copy-dependencies"]
            options = ["-DincludeScope=runtime", f"-DoutputDirectory={work / 'lib'}", "-Dmdep.useBaseVersion=true"]
            log = home / "fetch.log"
            with log.open("wb") as out:
                try:
                    run = subprocess.run(
                        goal + options,
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=subprocess.STDOUT,
                        timeout=timeout,
                        check=False,
                    )
                except subprocess.TimeoutExpired:
                    raise StoreError(
                        f"Maven did not fetch {self.program} within {timeout:.0f} s.",
                        hint=f"Its output is in {log}; start again to go on.",
                    ) from None
            if run.returncode != 0 or not list((work / "lib").glob(self.main_jar)):
                errors = [line for line in log.read_text(errors="replace").splitlines() if "ERROR" in line]
                raise StoreError(
                    f"Maven could not fetch {self.program}: {errors[0] if errors else f'exit code {run.returncode}'}.",
                    hint=f"Its output is in {log}.",
                )
            (work / "lib").rename(lib)


@contextmanager
def hold_file_lock(path: Path) -> Iterator[None]:
    """Hold an advisory lock on a file. The system releases it when the process ends for any reason."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
