"""The command line `vk`. Errors are one line on standard error: 1 is an error of ours, 2 is a wrong call."""

from viewkeeper.cli.app import main

__all__ = ["main"]
