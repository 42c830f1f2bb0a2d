"""Describe the outcome of a DDL statement in one line: `table items created`, `view totals is there already`."""

from __future__ import annotations

from viewkeeper.syntax import alter, indexes, statements


def describe_outcome(statement: statements.Statement, existed: bool) -> str:
    """Return the line. `existed`: whether an object of the statement's name existed before the statement ran."""
    match statement:
        case statements.CreateTable():
            return _creation_text("table", statement.name, statement.if_not_exists and existed)
        case indexes.CreateIndex():
            return _creation_text("index", statement.name, statement.if_not_exists and existed)
        case indexes.CreateCluster():
            return _creation_text("view", statement.name, statement.if_not_exists and existed)
        case statements.CreateView():
            if statement.or_replace and existed:
                return f"view {statement.name} replaced"
            return _creation_text("view", statement.name, statement.if_not_exists and existed)
        case statements.DropTable():
            return _drop_text("table", statement.name, existed)
        case statements.DropView():
            return _drop_text("view", statement.name, existed)
        case indexes.DropIndex():
            return _drop_text("index", statement.name, existed)
        case indexes.RenameIndex():
            return f"index {statement.name} renamed to {statement.to}"
        case alter.Rename():
            return f"{statement.name} renamed to {statement.to}"
        case alter.AlterView():
            return f"view {statement.name} {'suspended' if statement.action == 'suspend' else 'resumed'}"
        case _:
            return f"table {getattr(statement, 'table', '')} altered"


def _creation_text(kind: str, name: str, exists: bool) -> str:
    return f"{kind} {name} is there already" if exists else f"{kind} {name} created"


def _drop_text(kind: str, name: str, existed: bool) -> str:
    return f"{kind} {name} dropped" if existed else f"there is no {kind} {name}"
