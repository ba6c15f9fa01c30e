"""``scrapy packs graph``."""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_spider_suite.commands.packs_verbs.common import (
    add_choice,
    add_paths,
    choice_of,
    of_extra,
    packs_of,
    progress,
    tell_absent,
    tell_damage,
)
from scrapy_spider_suite.commands.verb import Call, Verb
from scrapy_spider_suite.packs.selection import select
from scrapy_spider_suite.settings.values import size

if TYPE_CHECKING:
    from scrapy_spider_suite.analysis.link_graph import Level, LinkGraph

_FORMS = ("tables", "arcs", "ascii")


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="a folder for the files")
    add_paths(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--hosts", dest="levels", action="store_const", const=("host",),
                       default=("page", "host"), help="the graph of hosts alone")  # fmt: skip
    which.add_argument("--pages", dest="levels", action="store_const", const=("page",),
                       help="the graph of pages alone")  # fmt: skip
    parser.add_argument(
        "--format", action="append", choices=_FORMS, dest="forms",
        help="tables: vertices and edges as Common Crawl has them (the default); arcs: edges for "
        "networkx, igraph and WebGraph; ascii: WebGraph's ASCIIGraph; may be given again",
    )  # fmt: skip
    parser.add_argument("--rank", action="store_true", help="PageRank, too: see SUITE_SCORES")
    parser.add_argument("--plot", action="store_true", help="the degrees as SVG, too")
    parser.add_argument("--memory", type=_size, default=512 << 20, metavar="SIZE",
                        help="what sorting may use (512M); the rest is on disk")  # fmt: skip
    add_choice(parser)


def _run(call: Call) -> int:
    options, packs, choice = call.options, packs_of(call), choice_of(call.options)
    graphs = of_extra("analysis.link_graph", "graph")
    if not choice.mimes:
        choice = graphs.LinkingPages(**asdict(choice))
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="making-") as scratch:
        with progress(sum(1 for _ in select(packs, choice)), "pages") as move, \
                graphs.GraphBuilder(Path(scratch), memory=options.memory) as builder:  # fmt: skip
            builder.add(graphs.page_records(packs, choice, move))
            graph = builder.finish()
            made = Path(scratch) / "made"
            made.mkdir()
            for level in options.levels:
                _write(graph, made, level, options)
            sizes = graph.sizes._asdict()
        names = sorted(path.name for path in made.iterdir())
        for name in names:
            os.replace(made / name, options.folder / name)
    call.facts({**sizes, "files": [str(options.folder / name) for name in names]})
    tell_absent(packs)
    return tell_damage(packs)


def _write(graph: LinkGraph, folder: Path, level: Level, options: argparse.Namespace) -> None:
    """The files of one of the two graphs."""
    forms = options.forms or ["tables"]
    if "tables" in forms:
        (graph.write_hosts if level == "host" else graph.write_pages)(folder)
    if "arcs" in forms:
        graph.write_arcs(folder / f"{level}-arcs.txt.gz", level)
    if "ascii" in forms:
        graph.write_ascii(folder / f"{level}s.graph-txt", level)
    if options.rank:
        path = folder / f"{level}-ranks.txt.gz"
        graph.write_scores(path, level, graph.rank(level, folder))
    if options.plot:
        from scrapy_spider_suite.analysis.link_graph import plot_degrees

        plot_degrees(folder / f"{level}-degrees.svg", f"{level.title()}s", graph.degrees(level))


def _size(text: str) -> int:
    declared = size(32 << 20)
    try:
        found = declared.parse(text)
        assert isinstance(found, int)
        return found
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected {declared.allowed}") from None


VERBS = (
    Verb(
        "graph", "pages and hosts as graphs: vertices, edges, ranks", _run, _options,
        "DIR [PATH...]",
        about=(
            "Of the HTML pages and redirects in the packs, or of pages of the --mime that is\n"
            "given, of several agents' folders together: each page as it was last fetched.\n"
            "Vertices are pages that were fetched and those that they lead to; ids from 0, in\n"
            "the order of SURT. docs/links.md has the files and who loads them. Needs the extra\n"
            "graph."
        ),
        examples=(
            "graph graphs/ crawls/news/packs other-machine/packs",
            "graph ranks/ crawls/news/packs --hosts --rank --plot",
            "graph graphs/ crawls/news/packs --pages --format arcs --format ascii",
        ),
        exits={1: "something is damaged, and was left out"},
    ),
)  # fmt: skip
