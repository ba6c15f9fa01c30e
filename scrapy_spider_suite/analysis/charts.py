"""Charts as SVG text, without scripts or style sheets: lines, points on log scales, bars.

Lines differ in colour and in dashes, so that they can be told apart on black-and-white paper too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby

from scrapy_spider_suite.runtime.text import printable

Points = Sequence[tuple[float, float]]
"""Pairs of x and y; a y that is not finite interrupts the line."""
Lines = Mapping[str, Points]

COLOURS = ("#1b6ca8", "#c2571a", "#3a7d44", "#7b4b94", "#8a6d00", "#b0305c")
DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "1 4")
WIDTH, HEIGHT = 360, 200
_COLUMNS = 3
_BARS_WIDTH = 480
_FONT = 11
_LETTER = 6.1  # pixels of a mean letter of that size
_LEFT, _RIGHT, _BELOW, _LINE = 48, 12, 34, 15
_LEGEND = 3  # rows of the legend that a chart of the usual height has room for
_INK, _GRID = "#333", "#ddd"
_SUFFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def line_chart(
    title: str, lines: Lines, across: str, *, least: float = 0.0, log: bool = False
) -> str:
    """A line for each name; the axes begin at 0, the one upwards at *least*.

    *across*: the unit of x. *log*: points on two logarithmic axes, of values above 0.
    """
    shown = {
        name: [(x, y) for x, y in points if not log or (x > 0 and 0 < y < math.inf)]
        for name, points in lines.items()
    }
    rows = list(_legend_rows(shown)) if len(shown) > 1 else []
    top = 24 + _LINE * len(rows)
    height = HEIGHT + _LINE * max(0, len(rows) - _LEGEND)
    finite = [(x, y) for points in shown.values() for x, y in points if math.isfinite(y)]
    if not finite:
        parts = [_text(_LEFT, top + 40, "no values")]
        return _svg([_text(0, 14, title, bold=True), *parts], WIDTH, height, title)
    x_axis = _Axis([x for x, _ in finite], _LEFT, WIDTH - _RIGHT, log=log)
    y_axis = _Axis(
        [y for _, y in finite], height - _BELOW, top, log=log, least=least, round_up=True
    )
    axes = _axes(x_axis, y_axis, height - _BELOW, across)
    parts = [_text(0, 14, title, bold=True), *rows, *axes]
    for number, points in enumerate(shown.values()):
        places = [(x_axis.place(x), y_axis.place(y)) for x, y in points]
        parts.append(_dots(places, number) if log else _path(places, number))
    return _svg(parts, WIDTH, height, title)


def line_charts(charts: Mapping[str, Lines], across: str, *, least: float = 0.0) -> str:
    """A `line_chart` for each title, side by side in one picture."""
    drawn = [line_chart(title, lines, across, least=least) for title, lines in charts.items()]
    parts = []
    for number, chart in enumerate(drawn):
        place = f'x="{number % _COLUMNS * WIDTH}" y="{number // _COLUMNS * HEIGHT}"'
        parts.append(chart.replace("<svg", f"<svg {place}", 1))
    rows = -(-len(drawn) // _COLUMNS)
    return _svg(parts, WIDTH * min(_COLUMNS, len(drawn)), HEIGHT * rows, "; ".join(charts))


def bar_chart(title: str, bars: Sequence[tuple[str, float, str]]) -> str:
    """A bar for each label, as long as its value, with a text behind it."""
    longest = max((value for _, value, _ in bars), default=0.0) or 1.0
    label_width = max((len(label) for label, _, _ in bars), default=0) * _LETTER + 6
    text_width = max((len(text) for _, _, text in bars), default=0) * _LETTER + 12
    room = max(60.0, _BARS_WIDTH - label_width - text_width)
    parts = [_text(0, 14, title, bold=True)]
    for number, (label, value, shown) in enumerate(bars):
        top = 24 + number * 18
        length = max(0.0, value) / longest * room
        parts += [
            _text(label_width - 6, top + 11, label, anchor="end"),
            f'<rect x="{label_width:.0f}" y="{top}" width="{length:.1f}" height="14" '
            f'fill="{COLOURS[0]}"/>',
            _text(label_width + length + 6, top + 11, shown),
        ]
    return _svg(parts, label_width + room + text_width, 30 + 18 * len(bars), title)


def short_number(number: float) -> str:
    """Return *number* with three digits: ``1.5M``, ``20k``, ``0.25``."""
    for size, suffix in _SUFFIXES:
        if abs(number) >= size:
            return f"{number / size:.3g}{suffix}"
    return f"{number:.3g}"


class _Axis:
    """Places of values between two pixels."""

    def __init__(
        self, values: Sequence[float], begin: float, end: float, *, log: bool,
        least: float = 0.0, round_up: bool = False,
    ) -> None:  # fmt: skip
        low, high = (min(values), max(values)) if log else (least, max(values))
        if log:
            low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high))
            high = max(high, low * 10)
            self.ticks = [10.0**power for power in range(_power(low), _power(high) + 1)]
        else:
            high = high if high > low else low + 1.0
            self.ticks = _ticks(low, high)
            if round_up and self.ticks[-1] < high * (1 - 1e-9):
                self.ticks.append(2 * self.ticks[-1] - self.ticks[-2])
                high = self.ticks[-1]
        self._log = log
        self._begin, self._end = begin, end
        self._low, self._high = low, high

    def place(self, value: float) -> float:
        if not math.isfinite(value):
            return math.nan
        if self._log:
            share = math.log(value / self._low) / math.log(self._high / self._low)
        else:
            share = (value - self._low) / (self._high - self._low)
        return self._begin + share * (self._end - self._begin)


def _ticks(low: float, high: float) -> list[float]:
    """Four or so round numbers from *low* to *high*."""
    rough = (high - low) / 4
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 2.5, 5, 10) if power * each >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _power(number: float) -> int:
    return round(math.log10(number))


def _axes(x_axis: _Axis, y_axis: _Axis, low: float, across: str) -> Iterator[str]:
    for value in y_axis.ticks:
        y = y_axis.place(value)
        yield f'<path d="M{_LEFT},{y:.1f}H{WIDTH - _RIGHT}" stroke="{_GRID}"/>'
        yield _text(_LEFT - 5, y + 4, short_number(value), anchor="end")
    yield f'<path d="M{_LEFT},{low}H{WIDTH - _RIGHT}" stroke="#888"/>'
    for value in x_axis.ticks:
        x = x_axis.place(value)
        yield f'<path d="M{x:.1f},{low}v4" stroke="#888"/>'
        yield _text(x, low + 16, short_number(value), anchor="middle")
    yield _text(WIDTH - _RIGHT, low + 30, across, anchor="end")


def _legend_rows(lines: Lines) -> Iterator[str]:
    """A text of SVG for each row of the legend."""
    row, x, y = "", float(_LEFT), 29
    for number, name in enumerate(lines):
        width = 26 + len(name) * _LETTER
        if row and x + width > WIDTH - _RIGHT:
            yield row
            row, x, y = "", float(_LEFT), y + _LINE
        row += f'<path d="M{x:.0f},{y - 4}h18" {_stroke(number)}/>' + _text(x + 22, y, name)
        x += width + 8
    yield row


def _path(places: Points, number: int) -> str:
    drawn = ""
    for part in _unbroken(places):
        drawn += "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in part)
        drawn += "h0" if len(part) == 1 else ""  # a round cap makes it a point
    return f'<path d="{drawn}" {_stroke(number)} stroke-linecap="round"/>'


def _unbroken(places: Points) -> Iterator[Points]:
    for is_finite, part in groupby(places, key=lambda place: math.isfinite(place[1])):
        if is_finite:
            yield list(part)


def _dots(places: Points, number: int) -> str:
    dots = "".join(f"M{x:.1f},{y:.1f}h0" for x, y in places)
    colour = COLOURS[number % len(COLOURS)]
    return f'<path d="{dots}" stroke="{colour}" stroke-width="3" stroke-linecap="round"/>'


def _stroke(number: int) -> str:
    dash = DASHES[number % len(DASHES)]
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'fill="none" stroke="{COLOURS[number % len(COLOURS)]}" stroke-width="1.6"{dashes}'


def _text(x: float, y: float, text: str, *, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    place = f'x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"'
    return f'<text {place} fill="{_INK}"{weight}>{escape(printable(text))}</text>'


def _svg(parts: Sequence[str], width: float, height: float, title: str) -> str:
    label = escape(printable(title))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img" aria-label="{label}" '
        f'font-family="sans-serif" font-size="{_FONT}">'
        '<rect width="100%" height="100%" fill="white"/>'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"
