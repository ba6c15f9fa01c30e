"""Small charts as SVG, for the documentation: lines side by side, and bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

Points = Sequence[tuple[float, float]]
COLOURS = ("#1b6ca8", "#c2571a", "#3a7d44", "#7b4b94")
WIDTH, HEIGHT, MARGIN = 260, 170, 44


def line_charts(
    path: Path, charts: Mapping[str, Mapping[str, Points]], across: str, *, least: float = 0.0
) -> None:
    """A chart for each title, of a line for each name; all begin at 0, *across* alike.

    The axis upwards begins at *least*.
    """
    columns = 3
    rows = -(-len(charts) // columns)
    parts = []
    for number, (title, lines) in enumerate(charts.items()):
        left, top = number % columns * (WIDTH + MARGIN), number // columns * (HEIGHT + MARGIN)
        parts.append(f'<g transform="translate({left + MARGIN},{top + MARGIN / 2})">')
        parts += _chart(title, lines, across, least)
        parts.append("</g>")
    _write(path, parts, columns * (WIDTH + MARGIN) + 10, rows * (HEIGHT + MARGIN) + 10)


def _chart(title: str, lines: Mapping[str, Points], across: str, least: float) -> list[str]:
    points = [point for line in lines.values() for point in line]
    right, high = max(x for x, _ in points), max(y for _, y in points) * 1.1 or 1.0
    high -= least
    low = HEIGHT - MARGIN
    parts = [
        _text(0, -6, title, bold=True),
        f'<path d="M0,0V{low}H{WIDTH}" fill="none" stroke="#888"/>',
        _text(-4, 8, f"{high + least:.3g}", anchor="end"),
        _text(-4, low, f"{least:g}", anchor="end"),
        _text(WIDTH, low + 14, f"{right:,.0f} {across}", anchor="end"),
    ]
    for number, (name, line) in enumerate(lines.items()):
        places = " ".join(
            f"{x / right * WIDTH:.1f},{low - (y - least) / high * low:.1f}" for x, y in line
        )
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<polyline points="{places}" fill="none" stroke="{colour}"/>')
        parts.append(_text(4 + 80 * number, low + 14, name, colour=colour))
    return parts


def bar_chart(path: Path, title: str, bars: Sequence[tuple[str, float, str]]) -> None:
    """A bar for each label, as long as its value, with a text behind it."""
    longest = max(value for _, value, _ in bars)
    parts = [_text(0, 16, title, bold=True)]
    for number, (label, value, shown) in enumerate(bars):
        top = 30 + number * 20
        length = value / longest * 380
        parts += [
            _text(190, top + 11, label, anchor="end"),
            f'<rect x="196" y="{top}" width="{length:.1f}" height="14" fill="{COLOURS[0]}"/>',
            _text(202 + length, top + 11, shown),
        ]
    _write(path, parts, 700, 40 + 20 * len(bars))


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", bold: bool = False,
    colour: str = "#333",
) -> str:  # fmt: skip
    weight = ' font-weight="bold"' if bold else ""
    place = f'x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"'
    return f'<text {place} fill="{colour}"{weight}>{escape(text)}</text>'


def _write(path: Path, parts: Sequence[str], width: float, height: float) -> None:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
    )
    path.write_text("\n".join([head, *parts, "</svg>"]) + "\n")
