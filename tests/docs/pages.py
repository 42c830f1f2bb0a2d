"""The code in a page of the docs, run in order.

```python            executed, one namespace a page; `expression  # → value` is checked
```console           `$ vk …` is run; the lines below it are what it prints (… stands for anything)
```csv title="f"     the file that the page speaks of
```bash, ```text     only read
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from decimal import Decimal
from pathlib import Path
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
    for kind, title, body in FENCE.findall(page.read_text("utf-8")):
        if kind == "python":
            code = RESULT.sub(r"\1same(\2, \3)", body)
            exec(compile(code, page.name, "exec"), scope)
        elif kind == "console":
            checked += _console(body)
        elif title:
            Path(title).write_text(body, encoding="utf-8")
    return checked


def _console(body: str) -> int:
    commands = re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]
    for command in commands:
        line, _, expected = command.partition("\n")
        words = shlex.split(line)
        assert words[0] == "vk", line
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            code = _exit_code(words[1:])
        assert code == 0, f"$ {line}\n{printed.getvalue()}"
        pattern = "(?s)" + re.escape(expected.strip()).replace("…", ".*")
        assert re.fullmatch(pattern, printed.getvalue().strip()), f"$ {line}\n{printed.getvalue()}"
    return len(commands)


def _exit_code(arguments: list[str]) -> int:
    try:
        main(arguments)
    except SystemExit as done:
        return int(done.code or 0)
