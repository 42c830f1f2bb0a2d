"""Rendering of a plan diagram as JSON, as Mermaid text, and as SVG.

The SVG is drawn from left to right: a round has a column for each step that deltas take within it. Each input has a
lane. An operator is placed in the lane of its source; arrangements, which pass no deltas on, are placed below it. Boxes
in the same lane and column are stacked. Each table has a colour, which shows the table that a lookup probes.

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
"""Pixels: the width of a box, the gap between columns, the height of a text line, the padding in and between boxes."""
LINE_CHARACTERS = 38
"""Maximum number of characters on a line of a box."""

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
    """Return the fields of the diagram as JSON."""
    return json.dumps(asdict(diagram), indent=2, ensure_ascii=False)


def to_mermaid(diagram: Diagram) -> str:
    """Return a Mermaid flowchart with a subgraph for each round."""
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
    """Return the text lines of a box: title, key, description, state."""
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
    """Return the diagram as a standalone SVG."""
    filter_lines = _filter_lines(diagram)
    layouts, bottom = _lay_out(diagram, filter_lines)
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
        round_columns = [columns[b.number] for b in diagram.boxes if b.round == number] or [0]
        x, end = _column_x(min(round_columns)), _column_x(max(round_columns)) + BOX_WIDTH
        parts.append(f'<text x="{x}" y="46" font-size="13" fill="#475569">round {number}</text>')
        parts.append(f'<line x1="{x}" y1="52" x2="{end}" y2="52" stroke="#cbd5e1"/>')
    arrangements = {box.number for box in diagram.boxes if KINDS[box.kind].is_arrangement}
    for link in diagram.links:
        parts.append(
            _edge_svg(layouts[link.source], layouts[link.target], link.subtracted, link.target in arrangements)
        )
    parts.extend(line for box in diagram.boxes for line in _box_svg(box, layouts[box.number], colours))
    return "\n".join([*parts, "</svg>"])


def _heading(diagram: Diagram) -> str:
    kind = "" if diagram.unique else ", a bag"
    return f"view {diagram.view}, key ({', '.join(diagram.key)}){kind}"


def _filter_lines(diagram: Diagram) -> Mapping[int, tuple[str, ...]]:
    """Return the filters before each box; the box shows them, because an edge is too short for text."""
    filters: dict[int, list[str]] = defaultdict(list)
    for link in diagram.links:
        if link.where and link.where not in filters[link.target]:
            filters[link.target].append(link.where)
    return {number: tuple(f"where {text}" for text in texts[:2]) for number, texts in filters.items()}


def _lay_out(diagram: Diagram, filter_lines: Mapping[int, tuple[str, ...]]) -> tuple[Mapping[int, _BoxLayout], int]:
    lanes, columns = _assign_lanes(diagram), _assign_columns(diagram)
    layouts: dict[int, _BoxLayout] = {}
    top = 64
    for lane in sorted(set(lanes.values())):
        for is_arrangement in (False, True):  # operators that pass deltas on, then arrangements
            heights: dict[int, int] = defaultdict(lambda y=top: y)  # type: ignore[misc]
            for box in diagram.boxes:
                if lanes[box.number] != lane or KINDS[box.kind].is_arrangement is not is_arrangement:
                    continue
                column = columns[box.number]
                lines = tuple(
                    _truncate(t, LINE_CHARACTERS) for t in (*box_text(box), *filter_lines.get(box.number, ()))
                )
                height = LINE_HEIGHT * len(lines) + PADDING
                layouts[box.number] = _BoxLayout(_column_x(column), heights[column], height, lines)
                heights[column] += height + PADDING
            top = max([top, *heights.values()])
        top += PADDING
    return layouts, top + PADDING


def _assign_columns(diagram: Diagram) -> Mapping[int, int]:
    """Return each box's column: the first of its round, plus the length of the longest chain before it in the round."""
    rounds = {b.number: b.round for b in diagram.boxes}
    steps = dict.fromkeys(rounds, 0)
    sinks = {b.number for b in diagram.boxes if KINDS[b.kind].is_sink}
    for _ in diagram.boxes:  # until nothing changes: a chain has at most as many boxes as the diagram
        before = dict(steps)
        for link in diagram.links:
            if rounds[link.source] == rounds[link.target]:
                step = steps[link.source] + (link.target not in sinks)
                steps[link.target] = max(steps[link.target], step)
        if steps == before:
            break
    first, first_columns = 0, {}
    for number in range(diagram.rounds):
        first_columns[number] = first
        first += max((steps[n] for n, r in rounds.items() if r == number), default=0) + 1
    return {n: first_columns[r] + steps[n] for n, r in rounds.items()}


def _column_x(column: int) -> int:
    return PADDING * 2 + column * (BOX_WIDTH + COLUMN_GAP)


def _assign_lanes(diagram: Diagram) -> Mapping[int, int]:
    """Return each box's lane: inputs have one each; another box has the middle one of its sources' lanes."""
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
        bend = x2 - COLUMN_GAP  # across several columns: straight behind the boxes, with a bend at the end
        path = f"M{x1} {y1} H{bend} C{bend + COLUMN_GAP // 2} {y1} {bend + COLUMN_GAP // 2} {y2} {x2} {y2}"
    dash = ' stroke-dasharray="4 3"' if subtracted else ""
    return f'<path d="{path}" fill="none" stroke="#64748b" stroke-width="1.2" marker-end="url(#a)"{dash}/>'


def _box_svg(box: DiagramBox, layout: _BoxLayout, colours: Mapping[str | None, str]) -> Sequence[str]:
    fill = colours.get(box.table, "#f8fafc")
    stroke_width = "2" if box.rows is not None else "1"
    kind = KINDS[box.kind]
    radius = "10" if kind.is_source or kind.is_sink else "2"
    title = escape("\n".join(box_text(box)))
    lines = [
        f'<g><title>{title}</title><rect x="{layout.x}" y="{layout.y}" width="{BOX_WIDTH}" height="{layout.height}" '
        f'rx="{radius}" fill="{fill}" stroke="#334155" stroke-width="{stroke_width}"/>'
    ]
    for i, text in enumerate(layout.lines):
        weight = ' font-weight="bold"' if i == 0 else ""
        y = layout.y + LINE_HEIGHT * (i + 1) - 1
        lines.append(f'<text x="{layout.x + PADDING}" y="{y}"{weight}>{escape(text)}</text>')
    return [*lines, "</g>"]
