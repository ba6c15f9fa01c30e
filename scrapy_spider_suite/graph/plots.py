"""Degree distributions as SVG, both axes logarithmic, as the literature shows them."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from math import ceil, log10
from pathlib import Path

_WIDTH, _HEIGHT, _MARGIN = 420, 300, 56
_COLOURS = ("#1b6ca8", "#c2571a", "#3a7d44", "#7b4b94")


def plot_degrees(path: Path, title: str, degrees: Mapping[str, Mapping[int, int]]) -> None:
    """Write a plot of how many vertices have at least a degree, a line for each name.

    *degrees*: of each name, how many vertices have each degree. Those of degree 0, which have no
    place on the axis, are named in the legend. Raises `OSError`.
    """
    lines = {name: _at_least(counts) for name, counts in degrees.items()}
    points = [point for line in lines.values() for point in line]
    across = max([1, *(ceil(log10(x)) for x, _ in points)])
    up = max([1, *(ceil(log10(y)) for _, y in points)])
    parts = [
        f'<text x="{_WIDTH / 2}" y="-12" text-anchor="middle" font-weight="bold">'
        f"{escape(title)}</text>",
        f'<path d="M0,0V{_HEIGHT}H{_WIDTH}" fill="none" stroke="#888"/>',
        *_ticks(across, up),
        f'<text x="{_WIDTH / 2}" y="{_HEIGHT + 36}" text-anchor="middle">degree</text>',
    ]
    for number, (name, line) in enumerate(lines.items()):
        places = " ".join(
            f"{log10(x) / across * _WIDTH:.1f},{_HEIGHT - log10(y) / up * _HEIGHT:.1f}"
            for x, y in line
        )
        colour = _COLOURS[number % len(_COLOURS)]
        legend = f"{name} ({degrees[name].get(0, 0):,} of degree 0)"
        parts += [
            f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5"/>',
            f'<text x="{_WIDTH}" y="{14 + 15 * number}" text-anchor="end" fill="{colour}">'
            f"{escape(legend)}</text>",
        ]
    _write(path, parts)


def _at_least(counts: Mapping[int, int]) -> list[tuple[int, int]]:
    """How many have at least each degree that occurs, 0 aside."""
    line, left = [], sum(number for degree, number in counts.items() if degree)
    for degree in sorted(degree for degree in counts if degree):
        line.append((degree, left))
        left -= counts[degree]
    return line


def _ticks(across: int, up: int) -> list[str]:
    """The powers of ten along both axes."""
    below = [
        f'<text x="{n / across * _WIDTH:.0f}" y="{_HEIGHT + 16}" text-anchor="middle">'
        f"{10**n:,}</text>"
        for n in range(across + 1)
    ]
    beside = [
        f'<text x="-6" y="{_HEIGHT - n / up * _HEIGHT + 4:.0f}" text-anchor="end">{10**n:,}</text>'
        for n in range(up + 1)
    ]
    return below + beside


def _write(path: Path, parts: list[str]) -> None:
    width, height = _WIDTH + 2 * _MARGIN + 20, _HEIGHT + 2 * _MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
        f'<g transform="translate({_MARGIN + 20},{_MARGIN - 16})">'
    )
    path.write_text("\n".join([head, *parts, "</g></svg>"]) + "\n", encoding="utf-8")
