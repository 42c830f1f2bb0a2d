"""What `vk hbase` does before a JVM starts, and that it never touches a process that is not its own."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("thriftpy2")

from viewkeeper.errors import MissingDependency, NotADatabase, StoreError
from viewkeeper_hbase.cli import app
from viewkeeper_hbase.devserver import processes
from viewkeeper_hbase.devserver.processes import HBASE_PROGRAM
from viewkeeper_hbase.devserver.server import Server

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


def sleeper(
    tmp_path: Path, code: str = "print('up', flush=True); import time; time.sleep(60)"
) -> processes.ProcessRecord:
    mark = f"--mark={tmp_path}"
    log = tmp_path / "out.log"
    started = processes.start_process((sys.executable, "-c", code, mark), mark=mark, log=log, cwd=tmp_path)
    while "up" not in log.read_text():
        time.sleep(0.02)
    return started


def command(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_process_is_stopped_gently_and_a_stubborn_one_with_force(tmp_path: Path) -> None:
    gentle = sleeper(tmp_path)
    assert processes.is_running(gentle)
    assert processes.stop_process(gentle, timeout=5)
    assert not processes.is_running(gentle)
    other = tmp_path / "other"
    other.mkdir()
    stubborn = sleeper(other, STUBBORN)
    assert not processes.stop_process(stubborn, timeout=0.3), "SIGTERM was not enough"
    assert not processes.is_running(stubborn)


def test_a_pid_that_belongs_to_somebody_else_by_now_is_never_signalled(tmp_path: Path) -> None:
    mine = sleeper(tmp_path)
    for stranger in (replace(mine, start_time="12345"), replace(mine, argument_mark="--mark=elsewhere")):
        assert not processes.is_running(stranger)
        processes.kill_process(stranger)
        processes.stop_process(stranger, timeout=0.1)
    assert processes.is_running(mine)
    processes.kill_process(mine)
    assert not processes.is_running(mine)


def test_a_process_runs_from_its_first_moment_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system shows a process that just begins without a command line."""
    look = processes._read_process
    monkeypatch.setattr(processes, "_read_process", lambda pid: seen and (seen[0], "") if (seen := look(pid)) else None)
    begun = sleeper(tmp_path)
    assert processes.is_running(begun)
    assert processes.exit_code(begun) is None
    processes.kill_process(begun)
    assert not processes.is_running(begun)
    assert processes.exit_code(begun) == -9


def test_a_port_taken_between_choosing_and_listening_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first java finds its port taken and ends; the second one listens on another."""
    listens = "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); time.sleep(60)"
    taken: list[socket.socket] = []
    tried: list[int] = []

    def java(server: Server, name: str, heap: str, main: str, *arguments: str) -> processes.ProcessRecord:
        site = (server.data / "conf" / "hbase-site.xml").read_text()
        port = int(re.search(r"clientPort</name><value>(\d+)", site)[1])  # type: ignore[index]
        if not taken:  # by the near end of somebody's connection, as ports of this range are
            far = socket.create_server(("127.0.0.1", 0))
            near = socket.socket()
            near.bind(("127.0.0.1", port))
            near.connect(far.getsockname())
            taken.extend((far, near))
        tried.append(port)
        mark, log = f"--mark={tmp_path}/{name}", tmp_path / f"{name}.out"
        return processes.start_process(
            (sys.executable, "-c", listens, str(port), mark), mark=mark, log=log, cwd=tmp_path
        )

    monkeypatch.setattr(Server, "_start_java", java)
    server = Server(tmp_path / "data")
    server._prepare_directory()
    server._start_listening(time.monotonic() + 60)
    try:
        assert tried == [tried[0], server.instance().zookeeper_port]
        assert tried[0] != tried[1]
        assert processes.is_running(server.instance().hbase)
    finally:
        processes.kill_process(server.instance().hbase)
        for end in taken:
            end.close()


def test_stopping_an_instance_leaves_another_one_alone(tmp_path: Path) -> None:
    mine = sleeper(tmp_path)
    data = tmp_path / "data"
    server = Server(data)
    server._prepare_directory()
    record = json.loads((data / "instance.json").read_text())
    record["hbase"] = replace(mine, argument_mark=f"-Dviewkeeper.instance={data}/hbase").as_json()
    (data / "instance.json").write_text(json.dumps(record))
    assert not server.status().hbase
    assert not server.stop(), "nothing of this instance ran"
    assert processes.is_running(mine)
    processes.kill_process(mine)


def test_a_directory_with_other_things_in_it_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(NotADatabase, match=r"not empty.*--data"):
        Server(tmp_path)._prepare_directory()
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    (tmp_path / "instance.json").write_text("{")
    with pytest.raises(NotADatabase, match=r"instance\.json cannot be read"):
        Server(tmp_path).status()


def test_what_never_ran_is_stopped_already(tmp_path: Path) -> None:
    run = CliRunner()
    stopped = run.invoke(app, ["stop", "--data", str(tmp_path / "none")])
    assert (stopped.exit_code, stopped.output.startswith("no HBase ran in")) == (0, True)
    shown = run.invoke(app, ["status", "--data", str(tmp_path / "none")])
    assert shown.exit_code == 1
    assert "hbase    does not run" in shown.output
    assert not (tmp_path / "none").exists()


# -- Java and Maven ---------------------------------------------------------------------------------------------------


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Java, Maven or HBase: the directory where its commands would be."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv(HBASE_PROGRAM.variable, str(tmp_path / "home"))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def test_no_java_is_one_line_that_says_what_to_install(bare: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingDependency, match="Install Java 17") as caught:
        Server(tmp_path / "data").start()
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "data").exists()
    command(bare / "java", "echo 'openjdk version \"1.8.0_402\"' >&2")
    with pytest.raises(MissingDependency, match=r"1\.8\.0.*JAVA_HOME"):
        HBASE_PROGRAM.java_command()


def test_no_maven_is_one_line_that_says_what_to_install(bare: Path) -> None:
    command(bare / "java", "echo 'openjdk version \"17.0.9\"' >&2")
    with pytest.raises(MissingDependency, match="Install Maven") as caught:
        HBASE_PROGRAM.fetch_jars()
    assert "\n" not in str(caught.value)


def test_a_fetch_that_fails_says_why_and_leaves_nothing_half_done(bare: Path) -> None:
    command(bare / "java", "echo 'openjdk version \"17.0.9\"' >&2")
    command(bare / "mvn", "echo '[ERROR] Unknown host repo.example'; exit 1")
    with pytest.raises(StoreError, match=r"Unknown host.*fetch\.log"):
        HBASE_PROGRAM.fetch_jars()
    assert not (HBASE_PROGRAM.home / "lib").exists()


def test_two_at_once_fetch_once(bare: Path, tmp_path: Path) -> None:
    command(bare / "java", "echo 'openjdk version \"17.0.9\"' >&2")
    calls = tmp_path / "calls"
    command(
        bare / "mvn",
        f"""PATH=/usr/bin:/bin
echo one >> {calls}
for option in "$@"; do case $option in -DoutputDirectory=*) out=${{option#*=}};; esac; done
sleep 0.3; mkdir -p $out; touch $out/hbase-thrift-2.6.1.jar""",
    )
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(HBASE_PROGRAM.fetch_jars())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [HBASE_PROGRAM.home / "lib"] * 3
    assert calls.read_text() == "one\n"
    assert os.listdir(found[0]) == ["hbase-thrift-2.6.1.jar"]  # noqa: PTH208
