"""The commands of docs/how-to/hbase.md, at the address of an HBase that runs here."""

from __future__ import annotations

import re
import secrets
import shlex
from pathlib import Path
from typing import Any

import pytest

from viewkeeper.cli import main

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "hbase.md"


def test_the_commands_of_the_page_work(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = re.search(r"^export VIEWKEEPER_DB='(\S+)'\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert written is not None
    url, commands = written[1], written[2].splitlines()
    here = f"{server.host}:{server.port}/shop_{secrets.token_hex(6)}?"
    monkeypatch.setenv("VIEWKEEPER_DB", re.sub(r"(?<=//).*\?", here, url))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "vk"
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        assert exit_.value.code == 0, capsys.readouterr().err
    assert "Kite" in capsys.readouterr().out
