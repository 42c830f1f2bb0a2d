"""The endpoint's jar: the packaged one, or one that is built from the packaged sources.

    push/viewkeeper-push.jar          made by tools/push-jar; in a wheel that was built where a JDK is
    java/viewkeeper/push/*.java       the sources (in a wheel: push/java/…)
    home/push-<digest>.jar            built by `javac` on first use, beside HBase's own jars

It is compiled for Java 8 and uses only what HBase 2.4, 2.5 and 2.6 have in common.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

from viewkeeper.errors import MissingDependency, StoreError
from viewkeeper_hbase.devserver.processes import HBASE_PROGRAM

JAR_NAME = "viewkeeper-push.jar"
ENDPOINT = "viewkeeper.push.PushEndpoint"
_DIGEST_ENTRY = "viewkeeper/push/sources"


def find_jar() -> Path:
    """Return the jar's path; build the jar if none was built from the present sources."""
    digest = _sources_digest()
    packaged = Path(__file__).with_name(JAR_NAME)
    if packaged.exists() and (digest is None or _jar_sources_digest(packaged) == digest):
        return packaged
    if digest is None:
        raise MissingDependency(
            f"This installation has neither {JAR_NAME} nor its sources.", hint="Install viewkeeper again."
        )
    built = HBASE_PROGRAM.home / f"push-{digest}.jar"
    if not built.exists():
        build_jar(built)
    return built


def build_jar(target: Path) -> None:
    """Compile the sources against HBase's jars, which are fetched if they are missing."""
    javac = _find_javac()
    lib = HBASE_PROGRAM.fetch_jars()
    sources = _find_sources()
    with tempfile.TemporaryDirectory(prefix="viewkeeper-push-") as work:
        classes = Path(work) / "classes"
        # HBase 2.4 still runs on Java 8. `-options` silences javac's warning that this release is old.
        command = [javac, "-nowarn", "-Xlint:-options", "--release", "8", "-cp", f"{lib}/*", "-d", str(classes)]
        process = subprocess.run([*command, *map(str, sources)], capture_output=True, text=True, check=False)
        if process.returncode != 0:
            raise StoreError(f"javac did not compile the endpoint: {process.stderr.strip()[:500]}")
        new_jar = Path(work) / JAR_NAME
        with zipfile.ZipFile(new_jar, "w", zipfile.ZIP_DEFLATED) as out:
            out.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n\n")
            out.writestr(_DIGEST_ENTRY, _sources_digest() or "")
            for path in sorted(classes.rglob("*.class")):
                out.write(path, path.relative_to(classes).as_posix())
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.new")
        shutil.copyfile(new_jar, temporary)
        temporary.replace(target)


def _find_javac() -> str:
    sibling = Path(HBASE_PROGRAM.java_command()).with_name("javac")
    found = str(sibling) if sibling.exists() else shutil.which("javac")
    if found is None:
        raise MissingDependency(
            "The push endpoint is built on first use and there is no `javac` command.",
            hint="Install a JDK (Debian: apt-get install openjdk-17-jdk-headless), or a wheel that has the jar.",
        )
    return found


def _find_sources() -> list[Path]:
    package = Path(__file__).parent
    for root in (package / "java", package.parents[2] / "java"):
        found = sorted(root.glob("viewkeeper/push/*.java"))
        if found:
            return found
    return []


def _sources_digest() -> str | None:
    sources = _find_sources()
    if not sources:
        return None
    digest = hashlib.sha256()
    for path in sources:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _jar_sources_digest(path: Path) -> str | None:
    try:
        with zipfile.ZipFile(path) as jar:
            return jar.read(_DIGEST_ENTRY).decode()
    except (OSError, KeyError, zipfile.BadZipFile):
        return None
