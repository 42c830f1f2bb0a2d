"""The code in a page of the docs, run in order.

```python            executed, one namespace a page; `expression  # → value` is checked
```console           `$ vk …` and `$ curl …` are run; the lines below are what they print (… stands for anything).
                     `$ vk serve … &` goes on until the page ends; its port is another than the page says
```csv title="f"     the file that the page speaks of
```bash, ```text     only read
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import threading
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from queue import Queue
from typing import Any

from viewkeeper.cli import main

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
RESULT = re.compile(r"^(\s*)(\S.*?)  # → (.*)$", re.MULTILINE)
RUN = ("python", "console", "csv")


def pages() -> list[Path]:
    """Pages with code that is run."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if any(kind in RUN for kind, _, _ in FENCE.findall(page.read_text("utf-8")))]


def run_page(page: Path, **names: Any) -> int:
    """Run a page's code in the current directory; returns how many results were checked."""
    checked = 0

    def same(got: Any, said: Any) -> None:
        nonlocal checked
        checked += 1
        assert got == said

    scope: dict[str, Any] = {"same": same, "Decimal": Decimal, **names}
    with Servers() as servers:
        for kind, title, body in FENCE.findall(page.read_text("utf-8")):
            if kind == "python":
                code = RESULT.sub(r"\1same(\2, \3)", servers.with_server_address(body))
                exec(compile(code, page.name, "exec"), scope)
            elif kind == "console":
                checked += _console(body, servers)
            elif title:
                Path(title).write_text(body, encoding="utf-8")
    return checked


class Servers:
    """The servers that a page starts, each at a port of its own."""

    def __init__(self) -> None:
        self._address = ""
        self._exit_stack = ExitStack()

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        self._exit_stack.close()

    def start(self, url: str, maintain: bool) -> None:
        import viewkeeper
        from viewkeeper.server.context import Settings
        from viewkeeper.server.process import serve

        told: Queue[Any] = Queue()
        db = self._exit_stack.enter_context(viewkeeper.open(url))
        settings = Settings(port=0, maintain=maintain)
        thread = threading.Thread(
            target=serve, args=(db, settings), kwargs={"on_ready": lambda *found: told.put(found)}
        )
        thread.start()
        address, stop = told.get(timeout=60)
        self._exit_stack.callback(thread.join, 60)
        self._exit_stack.callback(stop)
        self._address = address.removeprefix("http://")

    def with_server_address(self, text: str) -> str:
        return text.replace("localhost:8080", self._address) if self._address else text


def _console(body: str, servers: Servers) -> int:
    commands = re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]
    for command in commands:
        line, _, expected = command.partition("\n")
        words = shlex.split(servers.with_server_address(line))
        if words[:2] == ["vk", "serve"]:
            servers.start(words[words.index("--db") + 1], "--maintain" in words)
            continue
        if words[0] == "curl":
            found = subprocess.run(["curl", "--silent", *words[1:]], capture_output=True, text=True, timeout=60)
            _same(line, found.stdout, expected)
            continue
        assert words[0] == "vk", line
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            code = _exit_code(words[1:])
        assert code == 0, f"$ {line}\n{printed.getvalue()}"
        _same(line, printed.getvalue(), expected)
    return len(commands)


def _same(line: str, printed: str, expected: str) -> None:
    pattern = "(?s)" + re.escape(expected.strip()).replace("…", ".*")
    assert re.fullmatch(pattern, printed.replace("\r\n", "\n").strip()), f"$ {line}\n{printed}"


def _exit_code(arguments: list[str]) -> int:
    try:
        main(arguments)
    except SystemExit as done:
        return int(done.code or 0)
