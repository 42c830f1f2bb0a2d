"""What a statement that defines has done, in a line: `table items created`, `view totals is there already`."""

from __future__ import annotations

from viewkeeper.syntax import alter, indexes, statements


def outcome(statement: statements.Statement, was_there: bool) -> str:
    """`was_there`: whether something of the statement's name was there before it ran."""
    match statement:
        case statements.CreateTable():
            return _created("table", statement.name, statement.if_not_exists and was_there)
        case indexes.CreateIndex():
            return _created("index", statement.name, statement.if_not_exists and was_there)
        case indexes.CreateCluster():
            return _created("view", statement.name, statement.if_not_exists and was_there)
        case statements.CreateView():
            if statement.or_replace and was_there:
                return f"view {statement.name} replaced"
            return _created("view", statement.name, statement.if_not_exists and was_there)
        case statements.DropTable():
            return _dropped("table", statement.name, was_there)
        case statements.DropView():
            return _dropped("view", statement.name, was_there)
        case indexes.DropIndex():
            return _dropped("index", statement.name, was_there)
        case indexes.RenameIndex():
            return f"index {statement.name} renamed to {statement.to}"
        case alter.Rename():
            return f"{statement.name} renamed to {statement.to}"
        case alter.AlterView():
            return f"view {statement.name} {'suspended' if statement.action == 'suspend' else 'resumed'}"
        case _:
            return f"table {getattr(statement, 'table', '')} altered"


def _created(kind: str, name: str, is_there: bool) -> str:
    return f"{kind} {name} is there already" if is_there else f"{kind} {name} created"


def _dropped(kind: str, name: str, was_there: bool) -> str:
    return f"{kind} {name} dropped" if was_there else f"there is no {kind} {name}"
