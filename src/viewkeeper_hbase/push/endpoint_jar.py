"""The endpoint's jar: the one that came with the package, or one that is built from the sources that did.

    push/viewkeeper-push.jar          made by tools/push-jar; in a wheel that was built where a JDK is
    java/viewkeeper/push/*.java       the sources (in a wheel: push/java/…)
    home/push-<digest>.jar            built when first needed, beside HBase's own jars, by `javac`

It is compiled for Java 8 and uses what HBase 2.4, 2.5 and 2.6 have in common.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

from viewkeeper.errors import MissingDependency, StoreError
from viewkeeper_hbase.devserver.processes import HBASE

NAME = "viewkeeper-push.jar"
ENDPOINT = "viewkeeper.push.PushEndpoint"
_MARK = "viewkeeper/push/sources"


def jar() -> Path:
    """Where the jar is; built first if there is none of these sources."""
    digest = _digest()
    packaged = Path(__file__).with_name(NAME)
    if packaged.exists() and (digest is None or _made_from(packaged) == digest):
        return packaged
    if digest is None:
        raise MissingDependency(
            f"This installation has neither {NAME} nor its sources.", hint="Install viewkeeper again."
        )
    built = HBASE.home / f"push-{digest}.jar"
    if not built.exists():
        build(built)
    return built


def build(target: Path) -> None:
    """Compile the sources against HBase's jars, which are fetched if they are not there."""
    javac = _javac()
    lib = HBASE.lib()
    sources = _sources()
    with tempfile.TemporaryDirectory(prefix="viewkeeper-push-") as work:
        classes = Path(work) / "classes"
        # --release 8: HBase 2.4 still runs there. That it is old is known.
        command = [javac, "-nowarn", "-Xlint:-options", "--release", "8", "-cp", f"{lib}/*", "-d", str(classes)]
        done = subprocess.run([*command, *map(str, sources)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise StoreError(f"javac did not compile the endpoint: {done.stderr.strip()[:500]}")
        fresh = Path(work) / NAME
        with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as out:
            out.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n\n")
            out.writestr(_MARK, _digest() or "")
            for path in sorted(classes.rglob("*.class")):
                out.write(path, path.relative_to(classes).as_posix())
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f".{target.name}.new")
        shutil.copyfile(fresh, beside)
        beside.replace(target)


def _javac() -> str:
    beside = Path(HBASE.java()).with_name("javac")
    found = str(beside) if beside.exists() else shutil.which("javac")
    if found is None:
        raise MissingDependency(
            "The push endpoint is built on first use and there is no `javac` command.",
            hint="Install a JDK (Debian: apt-get install openjdk-17-jdk-headless), or a wheel that has the jar.",
        )
    return found


def _sources() -> list[Path]:
    here = Path(__file__).parent
    for root in (here / "java", here.parents[2] / "java"):
        found = sorted(root.glob("viewkeeper/push/*.java"))
        if found:
            return found
    return []


def _digest() -> str | None:
    sources = _sources()
    if not sources:
        return None
    whole = hashlib.sha256()
    for path in sources:
        whole.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return whole.hexdigest()[:16]


def _made_from(path: Path) -> str | None:
    try:
        with zipfile.ZipFile(path) as made:
            return made.read(_MARK).decode()
    except (OSError, KeyError, zipfile.BadZipFile):
        return None
