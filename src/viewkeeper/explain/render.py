"""Drawing a picture: as JSON, as Mermaid text, and as SVG.

The SVG goes from left to right: a round has a column for each step that deltas take within it. Each input has a lane;
an operator lies in that of its source, state that is only kept for lookups below it. What shares a place is stacked.
Each table has a colour, so one sees which table a lookup goes to.

    round 0                            round 1
    ┌─────────┐    ┌────────────────┐  ┌────────────────┐
    │Δ orders ├───▶│look up items   ├─▶│aggregate       ├──▶ …
    └────┬────┘    └────────────────┘  └────────────────┘
         │                             ┌────────────────┐
         └────────────────────────────▶│image of orders │
                                       └────────────────┘
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape

from viewkeeper.explain.diagram import Diagram, DiagramBox
from viewkeeper.operators.kinds import KINDS

BOX_WIDTH, COLUMN_GAP, LINE_HEIGHT, PADDING = 250, 60, 15, 8
"""Pixels: a box's width, the gap between columns, a line of text, the room inside and between boxes."""
LINE_CHARACTERS = 38
"""Characters on a line of a box."""

_COLOURS = (
    "#dbeafe",
    "#dcfce7",
    "#fef3c7",
    "#fce7f3",
    "#ede9fe",
    "#cffafe",
    "#ffedd5",
    "#e2e8f0",
    "#f5d0fe",
    "#ecfccb",
)


def to_json(diagram: Diagram) -> str:
    """The picture's own structure."""
    return json.dumps(asdict(diagram), indent=2, ensure_ascii=False)


def to_mermaid(diagram: Diagram) -> str:
    """A flowchart for Mermaid: a subgraph for each round."""
    lines = ["flowchart LR"]
    for number in range(diagram.rounds):
        lines.append(f'  subgraph round{number}["round {number}"]')
        for box in (b for b in diagram.boxes if b.round == number):
            text = "<br/>".join(_mermaid_text(t) for t in box_text(box))
            left, right = (
                ("[(", ")]") if box.rows is not None else ("([", "])") if KINDS[box.kind].is_sink else ("[", "]")
            )
            lines.append(f'    n{box.number}{left}"{text}"{right}')
        lines.append("  end")
    for link in diagram.links:
        label = f'|"{_mermaid_text(_truncate(("− " if link.subtracted else "") + link.where, 60))}"|'
        lines.append(f"  n{link.source} -->{label if link.where or link.subtracted else ''} n{link.target}")
    for box in diagram.boxes:
        if box.reads is not None:
            lines.append(f"  n{box.reads} -.-> n{box.number}")
    return "\n".join(lines)


def _mermaid_text(text: str) -> str:
    return escape(text, quote=False).replace('"', "#quot;")


def box_text(box: DiagramBox) -> list[str]:
    """What stands in a box: its title, its key, what it does, its state."""
    lines = [f"#{box.number} {box.title}"]
    if box.key:
        lines.append(f"by ({', '.join(box.key)})")
    lines.extend(box.lines)
    if box.rows is not None and box.bytes is not None:
        lines.append(f"{box.rows:,} rows, {_format_bytes(box.bytes)}")
    if box.shared:
        lines.append(f"shared: {', '.join(box.shared)}")
    return lines


def _format_bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def _truncate(text: str, max_length: int) -> str:
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


# -- SVG ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _BoxLayout:
    x: int
    y: int
    height: int
    lines: tuple[str, ...]

    @property
    def middle(self) -> int:
        return self.y + self.height // 2


def to_svg(diagram: Diagram) -> str:
    """The picture as a standalone SVG."""
    wheres = _filter_lines(diagram)
    places, bottom = _lay_out(diagram, wheres)
    colours = _table_colours(diagram)
    columns = _assign_columns(diagram)
    width = _column_x(max(columns.values(), default=0)) + BOX_WIDTH + 2 * PADDING
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom}" viewBox="0 0 {width} {bottom}" '
        'font-family="DejaVu Sans, Verdana, sans-serif" font-size="11">',
        '<defs><marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#64748b"/></marker></defs>',
        f'<rect width="{width}" height="{bottom}" fill="#ffffff"/>',
        f'<text x="{PADDING * 2}" y="22" font-size="15" font-weight="bold">{escape(_heading(diagram))}</text>',
    ]
    for number in range(diagram.rounds):
        mine = [columns[b.number] for b in diagram.boxes if b.round == number] or [0]
        x, end = _column_x(min(mine)), _column_x(max(mine)) + BOX_WIDTH
        parts.append(f'<text x="{x}" y="46" font-size="13" fill="#475569">round {number}</text>')
        parts.append(f'<line x1="{x}" y1="52" x2="{end}" y2="52" stroke="#cbd5e1"/>')
    kept = {box.number for box in diagram.boxes if KINDS[box.kind].is_arrangement}
    for link in diagram.links:
        parts.append(_edge_svg(places[link.source], places[link.target], link.subtracted, link.target in kept))
    parts.extend(line for box in diagram.boxes for line in _box_svg(box, places[box.number], colours))
    return "\n".join([*parts, "</svg>"])


def _heading(diagram: Diagram) -> str:
    kind = "" if diagram.unique else ", a bag"
    return f"view {diagram.view}, key ({', '.join(diagram.key)}){kind}"


def _filter_lines(diagram: Diagram) -> Mapping[int, tuple[str, ...]]:
    """The filters in front of each box: said in the box, since a link is too short for them."""
    found: dict[int, list[str]] = defaultdict(list)
    for link in diagram.links:
        if link.where and link.where not in found[link.target]:
            found[link.target].append(link.where)
    return {n: tuple(f"where {w}" for w in ws[:2]) for n, ws in found.items()}


def _lay_out(diagram: Diagram, filter_lines: Mapping[int, tuple[str, ...]]) -> tuple[Mapping[int, _BoxLayout], int]:
    lanes, columns = _assign_lanes(diagram), _assign_columns(diagram)
    places: dict[int, _BoxLayout] = {}
    top = 64
    for lane in sorted(set(lanes.values())):
        for below in (False, True):  # what passes deltas on, then what ends there
            heights: dict[int, int] = defaultdict(lambda y=top: y)  # type: ignore[misc]
            for box in diagram.boxes:
                if lanes[box.number] != lane or KINDS[box.kind].is_arrangement is not below:
                    continue
                column = columns[box.number]
                lines = tuple(
                    _truncate(t, LINE_CHARACTERS) for t in (*box_text(box), *filter_lines.get(box.number, ()))
                )
                height = LINE_HEIGHT * len(lines) + PADDING
                places[box.number] = _BoxLayout(_column_x(column), heights[column], height, lines)
                heights[column] += height + PADDING
            top = max([top, *heights.values()])
        top += PADDING
    return places, top + PADDING


def _assign_columns(diagram: Diagram) -> Mapping[int, int]:
    """Each box's column: its round's first one, and one further for each box before it in the same round."""
    rounds = {b.number: b.round for b in diagram.boxes}
    steps = dict.fromkeys(rounds, 0)
    sinks = {b.number for b in diagram.boxes if KINDS[b.kind].is_sink}
    for _ in diagram.boxes:  # until nothing moves: a chain is at most as long as there are boxes
        before = dict(steps)
        for link in diagram.links:
            if rounds[link.source] == rounds[link.target]:
                there = steps[link.source] + (link.target not in sinks)
                steps[link.target] = max(steps[link.target], there)
        if steps == before:
            break
    first, firsts = 0, {}
    for number in range(diagram.rounds):
        firsts[number] = first
        first += max((steps[n] for n, r in rounds.items() if r == number), default=0) + 1
    return {n: firsts[r] + steps[n] for n, r in rounds.items()}


def _column_x(column: int) -> int:
    return PADDING * 2 + column * (BOX_WIDTH + COLUMN_GAP)


def _assign_lanes(diagram: Diagram) -> Mapping[int, int]:
    """Inputs have a lane each; all else lies in that of its source, and where lanes meet, in the middle one."""
    sources: dict[int, list[int]] = defaultdict(list)
    for link in diagram.links:
        sources[link.target].append(link.source)
    inputs = [b.number for b in diagram.boxes if KINDS[b.kind].is_source]
    lanes = {number: lane for lane, number in enumerate(inputs)}

    def lane(number: int) -> int:
        if number not in lanes:
            found = sorted({lane(s) for s in sources[number]})
            lanes[number] = found[len(found) // 2] if found else 0
        return lanes[number]

    for box in diagram.boxes:
        lane(box.number)
    return lanes


def _table_colours(diagram: Diagram) -> Mapping[str | None, str]:
    tables = dict.fromkeys(b.table for b in diagram.boxes if KINDS[b.kind].is_source)
    return {table: _COLOURS[i % len(_COLOURS)] for i, table in enumerate(tables)}


def _edge_svg(source: _BoxLayout, target: _BoxLayout, subtracted: bool, is_arrangement: bool) -> str:
    x1, y1, x2, y2 = source.x + BOX_WIDTH, source.middle, target.x, target.middle
    if is_arrangement and x2 > source.x and y2 > source.y + source.height:  # below the boxes of the same lane
        x1, y1 = source.x + COLUMN_GAP // 2, source.y + source.height
        path = f"M{x1} {y1} V{y2} H{x2}"
    elif x2 <= source.x:  # a sink or segment of the same step
        x1, y1, x2, y2 = source.x + BOX_WIDTH // 2, source.y + source.height, target.x + BOX_WIDTH // 2, target.y
        path = f"M{x1} {y1} L{x2} {y2}"
    else:
        bend = x2 - COLUMN_GAP  # over more than one column: straight on, behind the boxes, and a bend at the end
        path = f"M{x1} {y1} H{bend} C{bend + COLUMN_GAP // 2} {y1} {bend + COLUMN_GAP // 2} {y2} {x2} {y2}"
    dash = ' stroke-dasharray="4 3"' if subtracted else ""
    return f'<path d="{path}" fill="none" stroke="#64748b" stroke-width="1.2" marker-end="url(#a)"{dash}/>'


def _box_svg(box: DiagramBox, layout: _BoxLayout, colours: Mapping[str | None, str]) -> Sequence[str]:
    fill = colours.get(box.table, "#f8fafc")
    thick = "2" if box.rows is not None else "1"
    kind = KINDS[box.kind]
    round_ = "10" if kind.is_source or kind.is_sink else "2"
    title = escape("\n".join(box_text(box)))
    lines = [
        f'<g><title>{title}</title><rect x="{layout.x}" y="{layout.y}" width="{BOX_WIDTH}" height="{layout.height}" '
        f'rx="{round_}" fill="{fill}" stroke="#334155" stroke-width="{thick}"/>'
    ]
    for i, text in enumerate(layout.lines):
        weight = ' font-weight="bold"' if i == 0 else ""
        y = layout.y + LINE_HEIGHT * (i + 1) - 1
        lines.append(f'<text x="{layout.x + PADDING}" y="{y}"{weight}>{escape(text)}</text>')
    return [*lines, "</g>"]
