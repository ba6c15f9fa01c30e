"""docs/benchmarks.md: a section for each name, from the results that full runs have left."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS, ROOT, Report, Table, shown
from scrapy_spider_suite.analysis.charts import bar_chart, line_charts

DOCS = ROOT / "docs"
HEAD = """# Benchmarks

This page is written by `python -m benchmarks page`, from the results of full runs in
`benchmarks/results`. Each section names its command. Run it in a clone with the `dev` extra:

```sh
python -m benchmarks                    # the names, one line each
python -m benchmarks crawl              # one of them, at full size
python -m benchmarks crawl --small      # only show that it runs
python -m benchmarks crawl --help       # its options
```

- All crawlers of a table take turns on the same [in-vitro web](fakeweb.md), a process on another
  core. Each crawler has one core.
- *CPU a page* is the user and system time of all processes of a crawler, from a warm start to the
  last page. Other programs disturb it less than the clock.
- Figures are medians of rounds. A ratio is computed in each round. Compare figures of one table
  only.
- A peer that cannot start is left out of the run, which says so.

Figures that were measured once are in [Measurements](measurements.md).
"""


def write_page(names: Mapping[str, str], results: Path = RESULTS, docs: Path = DOCS) -> Path:
    """Write the page and its charts; *names* have their line each."""
    index = ["| `python -m benchmarks …` | measures |", "| --- | --- |"]
    sections = []
    for name, about in names.items():
        reports = [
            Report.load(path)
            for path in sorted(results.glob("*.json"), key=lambda path: path.stem)
            if path.stem.partition("+")[0] == name
        ]
        index.append(f"| {f'[`{name}`](#{name})' if reports else f'`{name}`'} | {about} |")
        if reports:
            sections.append("\n".join([f"## {name}\n", *(section(each, docs) for each in reports)]))
    path = docs / "benchmarks.md"
    path.write_text("\n".join([HEAD, *index, "", *sections]))
    return path


def section(report: Report, docs: Path) -> str:
    """The Markdown of one result; its charts are written beside the page."""
    about = report.machine
    parts = [
        f"`{report.command}`, {report.date}: {about.get('processor')}, {about.get('system')}, "
        f"Python {about.get('python')}, {about.get('versions')}.\n"
    ]
    parts += [markdown(table) for table in report.tables]
    if report.text:
        parts.append("\n".join(["```text", *report.text, "```\n"]))
    if report.wrong:
        parts.append("**Wrong**: " + "; ".join(report.wrong) + "\n")
    for number, chart in enumerate(report.charts):
        file = re.sub(r"[^a-z0-9]+", "-", f"bench-{report.name}-{number}") + ".svg"
        draw(chart, docs / file)
        parts.append(f"![{chart['title']}]({file})\n")
    return "\n".join(parts)


def markdown(table: Table) -> str:
    """*table* as Markdown."""
    rows = [[shown(cell).replace("|", "\\|") for cell in row] for row in table.rows]
    lines = ["| " + " | ".join(row) + " |" for row in [table.columns, *rows]]
    rule = "| --- |" + " ---: |" * (len(table.columns) - 1)
    note = f"\n{table.note}\n" if table.note else ""
    return f"**{table.title}**\n\n" + "\n".join([lines[0], rule, *lines[1:]]) + "\n" + note


def draw(chart: dict[str, Any], path: Path) -> None:
    """Write *chart* as SVG."""
    if chart["kind"] == "bars":
        bars = [(label, value, shown(value)) for label, value in chart["bars"]]
        drawn = bar_chart(chart["title"], bars)
    else:
        drawn = line_charts(chart["charts"], chart["across"], least=chart["least"])
    path.write_text(drawn)
