"""Charts: places of lines and bars, gaps, texts that are escaped."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from scrapy_spider_suite.analysis.charts import bar_chart, line_chart, line_charts, short_number

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    """The texts of a chart, which is XML."""
    return [str(each.text) for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_a_line_is_interrupted_where_nothing_is_known() -> None:
    """One value between two gaps is a point."""
    nan = math.nan
    chart = line_chart("rate", {"a": [(0, 1), (1, 2), (2, nan), (3, 4), (4, nan)]}, "hours")
    (path,) = re.findall(r'<path d="(M[^"]*)" fill="none"', chart)
    assert re.fullmatch(r"M[\d.,]+L[\d.,]+M[\d.,]+h0", path)


def test_axes_have_round_numbers_and_the_lines_fit() -> None:
    """The axis upwards ends at a round number above the highest value."""
    chart = line_chart("rate", {"a": [(0, 0), (10, 87_000)]}, "minutes")
    assert {"0", "25k", "100k", "10", "minutes"} <= set(texts(chart))
    assert {"0.4", "0.8"} <= set(texts(line_chart("", {"a": [(0, 0.4), (1, 0.77)]}, "", least=0.4)))


@pytest.mark.parametrize("points", [[], [(0.0, math.nan)], [(0.0, 0.0)], [(5.0, 5.0)]])
def test_few_values_are_a_chart_too(points: list[tuple[float, float]]) -> None:
    for log in (False, True):
        assert texts(line_chart("empty", {"a": points}, "s", log=log))


def test_logarithmic_axes_have_powers_of_ten() -> None:
    """Values that have no logarithm are left out."""
    chart = line_chart("degrees", {"out": [(0, 9), (1, 5_000), (40, 2)]}, "links", log=True)
    assert texts(chart)[1:] == ["1", "10", "100", "1k", "10k", "1", "10", "100", "links"]


def test_several_lines_have_a_legend() -> None:
    """With a long name it has several rows; colours and dashes differ."""
    names = ["one", "the name of a crawl that is long", "a third of the same kind, long too"]
    chart = line_chart("rate", {name: [(0, 1), (1, 2)] for name in names}, "s")
    assert set(names) <= set(texts(chart))
    assert len(set(re.findall(r'stroke-dasharray="[^"]+"', chart))) == 2


def test_a_long_legend_leaves_room_for_the_lines() -> None:
    """The axis upwards goes upwards, below the last row of the legend."""
    lines = {f"the long name of crawl number {n}": [(0.0, 1.0), (1.0, 80.0)] for n in range(12)}
    parts = ElementTree.fromstring(line_chart("rate", lines, "s")).iter(f"{SVG}text")
    places = {str(each.text): float(each.get("y") or 0) for each in parts}
    assert max(places[name] for name in lines) < places["80"] < places["0"] - 50


def test_texts_are_escaped() -> None:
    hostile = "<script>&\"'"
    for chart in (
        line_chart(hostile, {hostile: [(0, 1)], "b": [(0, 1)]}, hostile),
        bar_chart(hostile, [(hostile, 1, hostile)]),
        line_charts({hostile: {"a": [(0, 1)]}}, hostile),
    ):
        assert "<script" not in chart
        assert hostile in texts(chart)


def test_bars_are_as_long_as_their_values() -> None:
    widths = re.findall(r'<rect x="\d+" y="\d+" width="([\d.]+)"', bar_chart(
        "", [("a", 10, "10"), ("b", 5, "5"), ("c", 0, "0")]
    ))  # fmt: skip
    assert float(widths[0]) == pytest.approx(2 * float(widths[1]), abs=0.2)
    assert float(widths[2]) == 0
    assert bar_chart("nothing", []).startswith("<svg")


def test_short_numbers() -> None:
    numbers = (0, 0.25, 12, 1_500_000, 20_000, 3e9)
    assert [*map(short_number, numbers)] == ["0", "0.25", "12", "1.5M", "20k", "3G"]
