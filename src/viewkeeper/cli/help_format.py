"""Help that ends with an example, on a line of its own that can be copied whole."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import typer

_AS_IT_IS = "\b\n"
"""Before a paragraph: its lines are not wrapped."""


def add(app: typer.Typer, command: Callable[..., Any], name: str | None = None) -> None:
    """Make a function a command. The last paragraph of its docstring is `Example: vk …`."""
    text, _, example = inspect.cleandoc(command.__doc__ or "").rpartition("\n\n")
    app.command(name, help=text, epilog=as_example(example))(command)


def as_example(text: str) -> str:
    return _AS_IT_IS + " ".join(text.split())
