"""The command line `vk`. An error is one line on standard error; exit code 1 is an error, 2 a wrong call."""

from viewkeeper.cli.app import main

__all__ = ["main"]
