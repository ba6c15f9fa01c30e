"""``python -m benchmarks NAME``: the benchmarks, and the page of their results."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parents[1]
# Crawls of the suite, webs and servers are made as the tests make them.
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from benchmarks.report import RESULTS, Report  # noqa: E402

NAMES: Final = {
    "crawl": "a broad crawl beside its peers, CPU a page on one core; with features on, one by one",
    "ordinary": "an ordinary spider with items: plain Scrapy without and with the add-on",
    "growth": "what a page costs with 10,000 to 10 million known URLs, 1,000 to 1 million hosts",
    "papers": "the figures of published crawlers beside ours: connections, agents, MB/s a core",
    "pipelining": "several pages a visit, with and without pipelining, 50 and 300 connections",
    "pythons": "the broad crawl on each Python of this machine",
    "politeness": "delays kept and time used, from the server's log, beside plain Scrapy",
    "scaling": "1 and 2 agents for real, bound by politeness, by transfers or by cores",
    "agents": "1 to 8 agents in virtual time: pages a second, and what they exchange",
    "chaos": "agents that are stopped, killed and frozen at random: still one polite crawl",
    "runs": "the queue of runs in Redis: 12 million runs filled and drained",
    "watching": "pulses, roll-ups, series, and the page in a browser",
    "drill": "an operator's commands on a running crawl, judged by the server's log",
    "seeds": "ten million seeds, killed and resumed: time, memory, longest stall",
    "frontier": "time a URL, memory a pending URL and a host, refills",
    "seen": "what remembering URLs costs as it grows to 100 million",
    "links": "links of a page: extraction beside Scrapy's, and each stage to the seen set",
    "packs": "what packing a page costs and saves in each format, and reading it back",
    "tools": "packs of a crawl that is killed again and again, as tools of others read them",
    "revisits": "freshness of a copy by how its visits are chosen, in virtual time",
    "traps": "a crawl of real pages and six traps ends by itself, with few trap pages",
}
"""A name is a module with ``add_options(parser, name)`` and ``run(options, report)``."""
MODULES: Final = {
    "ordinary": "crawl", "pythons": "crawl", "agents": "scaling", "drill": "chaos",
}  # fmt: skip


def names() -> str:
    """The names, one line each."""
    lines = [f"  {name:12}{about}" for name, about in NAMES.items()]
    return "\n".join(["names:", *lines, "  page        write docs/benchmarks.md"])


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line says. Exit code 1: something is wrong, 2: no such name."""
    given = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", usage="%(prog)s NAME [options]", epilog=names(),
        description="Measure the suite and its peers. `NAME --help` has the options of a name.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    if not given or given[0].startswith("-"):
        parser.parse_args(given)
        parser.print_help()
        return 0
    name, *rest = given
    if name == "page":
        from benchmarks.page import write_page

        print(write_page(NAMES))
        return 0
    if name not in NAMES:
        print(f"no benchmark is called {name!r}\n{names()}", file=sys.stderr)
        return 2
    try:
        module = import_module(f"benchmarks.{MODULES.get(name, name)}")
    except ModuleNotFoundError as error:
        print(f"{error}: in the clone, pip install -e '.[dev]'", file=sys.stderr)
        return 2
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks {name}", description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.set_defaults(name=name)
    parser.add_argument("--small", action="store_true", help="only show that it runs")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help=(
        "leave NAME.json there; by default a full run does, in benchmarks/results"
    ))  # fmt: skip
    parser.add_argument("--as", dest="label", default="", metavar="LABEL", help=(
        "a result of its own, NAME+LABEL.json, beside that of other options"
    ))  # fmt: skip
    module.add_options(parser, name)
    options = parser.parse_args(rest)
    report = Report(
        f"{name}+{options.label}" if options.label else name,
        shlex.join(["python", "-m", "benchmarks", *without_folders(given)]),
    )
    module.run(options, report)
    folder = options.results or (None if options.small else RESULTS)
    if folder is not None:
        print(f"written: {report.save(folder)}")
    print("\n".join(report.wrong), end="\n" if report.wrong else "")
    return int(bool(report.wrong))


def without_folders(given: list[str]) -> list[str]:
    """A command line without the folders to which it writes."""
    pairs = zip(["", *given], given, strict=False)
    return [each for before, each in pairs if not {before, each} & {"--results", "--keep"}]


if __name__ == "__main__":
    # Who is stopped leaves no server and no agent behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    sys.exit(main())
