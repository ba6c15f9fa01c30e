"""The benchmarks, small: each says what it should, and what peers and pages are made of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import forks
from support.forks import Fork
from support.projects import environment
from support.webs import FakeWebProcess

from benchmarks import __main__ as entry
from benchmarks.measure import Command, Load, PeerError, apart, cpu_at, measure, tree, visiting
from benchmarks.page import write_page
from benchmarks.report import Report, shown, spread
from scrapy_spider_suite.testing import FakeWebConfig

ROOT = Path(__file__).parents[1]
LINUX = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")


@pytest.fixture
def small(tmp_path: Path) -> Callable[..., Report]:
    """Run a name in this process, small; its report."""

    def run(name: str, *more: str) -> Report:
        assert entry.main([name, "--small", "--results", str(tmp_path), *more]) == 0
        return Report.load(tmp_path / f"{name}.json")

    return run


_FORKED = """
import os, runpy, sys
os.setsid()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Crawler(Fork):
    """A crawler as a fork: its start by import takes longer than its small crawl."""

    def __init__(self, argv: Sequence[str], *, cwd: Path, env: dict[str, str], **files: Any):
        super().__init__(_FORKED, argv[1:], cwd, env, files["stdout"], files["stderr"])

    def wait(self, timeout: float | None = None) -> int:
        """Its group was killed, if it was one by then."""
        self.kill()
        return super().wait(timeout)


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Crawlers and their webs are forks, on any core."""
    forks.run("", folder=tmp_path, environment=environment())  # what forks is on all cores
    monkeypatch.setattr("benchmarks.measure.subprocess", SimpleNamespace(Popen=Crawler))
    monkeypatch.setattr("benchmarks.measure.FakeWebProcess", FakeWebProcess)


def test_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    """A line each, without an option; another one is exit code 2."""
    assert entry.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    words = [line.split()[0] for line in lines if line.startswith("  ")]
    assert words[-len(entry.NAMES) - 1 :] == [*entry.NAMES, "page"]
    assert max(map(len, lines)) <= 100
    assert entry.main(["nothing"]) == 2


@pytest.mark.parametrize("name", entry.NAMES)
def test_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every name has it."""
    with pytest.raises(SystemExit) as ended:
        entry.main([name, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "--small" in said
    assert f"python -m benchmarks {name}" in said


# What runs without a crawl


def test_links(small: Callable[..., Report]) -> None:
    """Three ways, two extractors, and each stage."""
    report = small("links")
    assert [row[0] for row in report.tables[0].rows] == ["suite", "tree", "Scrapy"]
    assert all(table.rows[0][2] == 1.0 for table in report.tables)
    assert sum("sum of those" in line for line in report.text) == 2


def test_packs(small: Callable[..., Report]) -> None:
    """A line for each format."""
    said = small("packs").text
    for name in ("lzo, lzallright", "zst", "gz", "records, head as it came", "20 packs: by URL",
                 "index of 1,000 pages"):  # fmt: skip
        assert any(line.startswith(name) for line in said), name


def test_agents(small: Callable[..., Report]) -> None:
    """Each page once, which it checks itself."""
    rows = small("agents").tables[0].rows
    assert {(str(row[0]), row[1]) for row in rows} >= {("ring", 2), ("host-parity", 2)}


@pytest.mark.slow
@pytest.mark.long
def test_seen(small: Callable[..., Report]) -> None:
    """A row for each tenth; no URL is lost, which it checks itself."""
    trie, sieve = small("seen").tables
    assert [row[0] for row in trie.rows] == [400 * tenth for tenth in range(1, 11)]
    assert [row[0] for row in sieve.rows] == [row[0] for row in trie.rows]


# Crawls


@LINUX
@pytest.mark.slow
@pytest.mark.long
def test_crawl(small: Callable[..., Report]) -> None:
    """The suite beside its peers; ratios are to the suite."""
    peers = ("suite", "no-framework")
    report = small("crawl", *(word for peer in peers for word in ("--peer", peer)))
    (table,) = report.tables
    rows = {str(row[0]): row for row in table.rows}
    assert rows.keys() == {"suite", "no framework"}
    assert rows["suite"][3] == 1.0
    assert report.charts[0]["bars"][0][0] == "suite"


@LINUX
@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.long
def test_real_sites(small: Callable[..., Report], tmp_path: Path) -> None:
    """Each folder is a host; pages are found from its index."""
    for name, index in ("one", "index.html"), ("two", "contents.html"):
        (tmp_path / "sites" / name).mkdir(parents=True)
        links = "".join(f"<a href='{number}.html'>page</a>" for number in range(20))
        for page in (index, *(f"{number}.html" for number in range(20))):
            (tmp_path / "sites" / name / page).write_text(links)
    pages = ("--pages", str(tmp_path / "sites"))
    rows = small("crawl", "--peer", "suite", "--peer", "scrapy", *pages).tables[0].rows
    assert [row[0] for row in rows] == ["suite", "Scrapy"]


@LINUX
@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.long
def test_features(small: Callable[..., Report]) -> None:
    """What each adds, and plain Scrapy where the web is another one."""
    report = small("crawl", "--with", "tls")
    rows = {row[0]: row for row in report.tables[0].rows}
    assert list(rows) == ["none", "tls"]
    assert rows["tls"][5] is not None
    assert rows["none"][5] is None


@LINUX
@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(("name", "given"), [
    ("ordinary", ()), ("growth", ()), ("papers", ()), ("pipelining", ()),
    ("growth", ("--part", "time")), ("watching", ("--part", "cost")),
])  # fmt: skip
@pytest.mark.long
def test_a_crawl(small: Callable[..., Report], name: str, given: tuple[str, ...]) -> None:
    """A table of the suite's figures."""
    report = small(name, *given)
    assert report.tables[0].rows
    assert all(row[2] for row in report.tables[0].rows)


@pytest.mark.parametrize(("part", "rows"), [("runs", 20), ("blobs", 1), ("speed", 1)])
def test_runs(small: Callable[..., Report], part: str, rows: int) -> None:
    """A row of each tenth of the way, there and back, and what it checks itself."""
    assert len(small("runs", "--part", part).tables[0].rows) == rows


def test_watching(small: Callable[..., Report]) -> None:
    """A roll-up, and what is read of the series of a long crawl."""
    said = small("watching", "--part", "roll-up", "--part", "year").text
    assert [line.split()[0] for line in said] == ["roll-up", *["series"] * 4]


@pytest.mark.slow
@pytest.mark.long
def test_tools(small: Callable[..., Report]) -> None:
    """Packs of a crawl in every coding; kills and lzop are in `test_kills_lose_no_page`."""
    assert any("; 21 pages" in line for line in small("tools", "--form", "gz", "--kills", "0").text)


# Measuring


@LINUX
def test_a_peer_that_cannot_start() -> None:
    """The reason is the last line that it said; its servers are closed."""
    load = Load(FakeWebConfig(hosts=2, pages=2, addresses=2), 4, 1)
    with apart() as core, visiting(load) as (visit, web):
        command = Command([sys.executable, "-c", "raise SystemExit('no such thing')"])
        with pytest.raises(PeerError, match=r"0 of 5 pages: no such thing"):
            measure(command, visit, web, core)
    assert os.sched_getaffinity(0) >= core


@LINUX
def test_cpu_of_processes() -> None:
    """A child's seconds are counted, while it lives and when it has ended; between samples too."""
    def spent() -> float:
        return sum(cpu for _, cpu, _ in tree(os.getpid()))

    before = spent()
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    assert spent() > before
    assert cpu_at([(0.0, 1.0), (10.0, 2.0)], 5.0) == pytest.approx(1.5)
    assert cpu_at([(0.0, 1.0), (10.0, 2.0)], 50.0) == 2.0


# The page


def test_the_page_is_made_of_results(tmp_path: Path) -> None:
    """Tables, charts, lines, in the order of the names; a result with a label is one more."""
    report = Report("crawl", "python -m benchmarks crawl")
    table = report.table("12 links", ["crawler", "µs"], "A note.")
    table.rows = [["suite", 512.3], ["a|b", None]]
    report.bars("CPU", [("suite", 512.3)])
    report.lines("Growth", {"disk": {"trie": [(0.0, 1.0), (2.0, 3.0)]}}, "million URLs")
    report.text.append("a line")
    report.save(tmp_path / "results")
    Report("crawl+features", "python -m benchmarks crawl --with all").save(tmp_path / "results")
    path = write_page({"crawl": "one line", "seeds": "another"}, tmp_path / "results", tmp_path)
    text = path.read_text()
    assert "| suite | 512 |" in text
    assert "| a\\|b | - |" in text
    assert "| [`crawl`](#crawl) | one line |\n| `seeds` | another |\n" in text
    assert text.index("## crawl") < text.index("12 links") < text.index("--with all")
    assert "## seeds" not in text
    for number in (0, 1):
        assert f"(bench-crawl-{number}.svg)" in text
        assert (tmp_path / f"bench-crawl-{number}.svg").read_text().startswith("<svg")


def test_the_page_is_that_of_the_results(tmp_path: Path) -> None:
    """docs/benchmarks.md is what `python -m benchmarks page` writes."""
    written = write_page(entry.NAMES, docs=tmp_path)
    assert written.read_text() == (ROOT / "docs" / "benchmarks.md").read_text()


def test_cells() -> None:
    """As people read them."""
    cells = [shown(cell) for cell in (1234.5, 0.12345, 1_000_000, None, "x")]
    assert cells == ["1,234", "0.123", "1,000,000", "-", "x"]
    assert spread([90.0, 100.0, 110.0]) == "\u00b110%"
    assert spread([1.0]) == "-"
    assert json.loads(json.dumps({"cell": None}))["cell"] is None
