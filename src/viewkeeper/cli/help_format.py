"""Help texts that end with an example, on a line of its own that can be copied whole."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import typer

_NO_WRAP = "\b\n"
"""Prefix of a paragraph whose lines are not wrapped."""


def add_command(app: typer.Typer, command: Callable[..., Any], name: str | None = None) -> None:
    """Register a function as a command. The last paragraph of its docstring is `Example: vk …`."""
    text, _, example = inspect.cleandoc(command.__doc__ or "").rpartition("\n\n")
    app.command(name, help=text, epilog=format_example(example))(command)


def format_example(text: str) -> str:
    return _NO_WRAP + " ".join(text.split())
