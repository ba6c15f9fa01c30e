"""What a benchmark found: tables, charts and lines, in JSON that the docs are made from."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

Cell = str | float | int | None
Points = Sequence[tuple[float, float]]
ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def shown(value: Cell) -> str:
    """*value* as a table has it: three digits or so."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else value


@dataclass
class Table:
    """Rows of as many cells as there are *columns*; *note* says how to read them."""

    title: str
    columns: list[str]
    rows: list[list[Cell]] = field(default_factory=list)
    note: str = ""

    def lines(self) -> list[str]:
        """The table as text."""
        cells = [self.columns, *([shown(cell) for cell in row] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        numbers = [any(isinstance(cell, int | float) for cell in column) for column in (
            zip(*self.rows, strict=True) if self.rows else [()] * len(widths)
        )]  # fmt: skip
        return [
            "  ".join(
                cell.rjust(width) if number else cell.ljust(width)
                for cell, width, number in zip(row, widths, numbers, strict=True)
            ).rstrip()
            for row in cells
        ]


@dataclass
class Report:
    """The findings of one run. *wrong*: what should not be; the exit code is 1 if there is any."""

    name: str
    command: str
    tables: list[Table] = field(default_factory=list)
    charts: list[dict[str, Any]] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    date: str = ""
    machine: dict[str, str] = field(default_factory=dict)

    def table(self, title: str, columns: Sequence[str], note: str = "") -> Table:
        """Return a table that is to be filled."""
        self.tables.append(Table(title, list(columns), note=note))
        return self.tables[-1]

    def say(self, line: str) -> None:
        """Print *line*, and keep it."""
        print(line, flush=True)
        self.text.append(line)

    def show(self, table: Table) -> None:
        """Print *table*."""
        print("\n".join([table.title, *table.lines(), table.note]), flush=True)

    def bars(self, title: str, bars: Sequence[tuple[str, float]]) -> None:
        """Add a chart of a bar for each label."""
        self.charts.append({"kind": "bars", "title": title, "bars": [list(bar) for bar in bars]})

    def lines(
        self, title: str, charts: Mapping[str, Mapping[str, Points]], across: str,
        least: float = 0.0,
    ) -> None:  # fmt: skip
        """Add charts of lines side by side; all begin at 0 *across*, and at *least* upwards."""
        self.charts.append(
            {"kind": "lines", "title": title, "charts": charts, "across": across, "least": least}
        )

    def save(self, folder: Path) -> Path:
        """Write ``NAME.json`` in *folder*, with the date and the machine."""
        self.date = datetime.now(UTC).date().isoformat()
        self.machine = machine()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")
        return path

    @classmethod
    def load(cls, path: Path) -> Report:
        """Reverse `save`."""
        values = json.loads(path.read_text())
        values["tables"] = [Table(**table) for table in values["tables"]]
        return cls(**values)


def machine() -> dict[str, str]:
    """What the figures depend on."""
    model = platform.processor() or platform.machine()
    if (facts := Path("/proc/cpuinfo")).exists():
        names = [line for line in facts.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(": ")[2] if names else model
    versions = []
    for package in ("scrapy-spider-suite", "scrapy", "uvloop", "rocksdict"):
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return {
        "processor": f"{os.cpu_count()} x {model}",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": ", ".join(versions),
    }


def spread(values: Sequence[float]) -> str:
    """How far rounds are apart: from the least to the most, in % of the median."""
    middle = median(values)
    return f"±{(max(values) - min(values)) / 2 / middle:.0%}" if middle and values[1:] else "-"
