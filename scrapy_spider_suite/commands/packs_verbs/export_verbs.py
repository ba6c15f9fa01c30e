"""``scrapy packs export`` and ``graph``."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_spider_suite.commands.packs_verbs.options import (
    add_choice,
    add_paths,
    choice_of,
    of_extra,
    packs_of,
    progress,
    tell_left_out,
)
from scrapy_spider_suite.operate.verb import Invocation, Verb, value_argument
from scrapy_spider_suite.operate.verbs.log import read_manifest
from scrapy_spider_suite.packs import CrawlInfo, Packs
from scrapy_spider_suite.packs.export import ExportResult, export_files, export_wacz, export_warc
from scrapy_spider_suite.packs.reader import Selection, select
from scrapy_spider_suite.packs.warc import SOFTWARE
from scrapy_spider_suite.runtime.text import printable
from scrapy_spider_suite.settings.values import size
from scrapy_spider_suite.store.job_directory import FOLDER

if TYPE_CHECKING:
    from scrapy_spider_suite.analysis.link_graph import Level, LinkGraph


def _add_export_options(parser: argparse.ArgumentParser) -> None:
    add_paths(parser)
    form = parser.add_mutually_exclusive_group(required=True)
    form.add_argument(
        "--warc-gz", type=Path, metavar="FILE|DIR",
        help="one file *.warc.gz, or several in a folder; every WARC tool opens them",
    )  # fmt: skip
    form.add_argument(
        "--warc-zst", type=Path, metavar="FILE|DIR",
        help="one file *.warc.zst, or several in a folder; FastWARC and zstd -dc open them, "
        "warcio does not",
    )  # fmt: skip
    form.add_argument(
        "--dir", type=Path, metavar="DIR", help="a file for each page, and pages.jsonl"
    )
    form.add_argument(
        "--parquet", type=Path, metavar="FILE",
        help="a table like Common Crawl's index, with title, language and text ([parquet])",
    )  # fmt: skip
    form.add_argument("--wacz", type=Path, metavar="FILE", help="a file for replayweb.page: *.wacz")
    parser.add_argument(
        "--job", type=Path, metavar="DIR", help="with --wacz: add the manifest of this job"
    )
    add_choice(parser, sample=True)


def _run_export(call: Invocation) -> int:
    packs, choice = packs_of(call), choice_of(call.options)
    with progress(sum(1 for _ in select(packs, choice)), "pages") as move:
        done = _export(call.options, packs, choice, move)
    for url, why in done.failed:
        print(f"{printable(url)}: {printable(why)}", file=sys.stderr)
    files = list(map(str, done.files))
    call.facts({"pages": done.pages, "files": files, "failed": len(done.failed)})
    return 1 if tell_left_out(packs) or done.failed else 0


def _export(
    options: argparse.Namespace, packs: Packs, choice: Selection, move: Callable[[int], object]
) -> ExportResult:
    if options.parquet is not None:
        table = of_extra("analysis.parquet", "parquet")
        done: ExportResult = table.export_parquet(packs, choice, options.parquet, move)
        return done
    if options.dir is not None:
        return export_files(packs, choice, options.dir, move)
    info = CrawlInfo(name="export", software=SOFTWARE, notes={"description": "pages out of packs"})
    if options.wacz is not None:
        manifest = b""
        if options.job is not None:
            manifest = json.dumps(read_manifest(options.job / FOLDER), indent=1).encode()
        return export_wacz(packs, choice, options.wacz, info, time.time(), move, manifest)
    form = "gz" if options.warc_zst is None else "zst"
    target = options.warc_gz or options.warc_zst
    return export_warc(packs, choice, target, info, time.time(), move, form)


def _add_graph_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="a folder for the files")
    add_paths(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--hosts", dest="levels", action="store_const", const=("host",),
                       default=("page", "host"), help="the graph of hosts alone")  # fmt: skip
    which.add_argument("--pages", dest="levels", action="store_const", const=("page",),
                       help="the graph of pages alone")  # fmt: skip
    parser.add_argument(
        "--format", action="append", choices=("tables", "arcs", "ascii"), dest="forms",
        help="tables: vertices and edges like Common Crawl's (the default); arcs: edges for "
        "networkx, igraph and WebGraph; ascii: WebGraph's ASCIIGraph; may be given again",
    )  # fmt: skip
    parser.add_argument("--rank", action="store_true", help="PageRank, too: see SUITE_SCORE")
    parser.add_argument("--plot", action="store_true", help="the degrees as SVG, too")
    parser.add_argument(
        "--memory", type=value_argument(size(32 << 20)), default=512 << 20, metavar="SIZE",
        help="memory for sorting (512M); the rest is on disk",
    )  # fmt: skip
    add_choice(parser)


def _run_graph(call: Invocation) -> int:
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
    return tell_left_out(packs)


def _write(graph: LinkGraph, folder: Path, level: Level, options: argparse.Namespace) -> None:
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


VERBS = (
    Verb(
        "export", "pages in forms that other programs open", _run_export, _add_export_options,
        "[PATH...] --FORM FILE",
        about=(
            "In WARC, a page comes with its request and its metadata. A revisit stays a revisit;\n"
            "it is complete if the page that it repeats is exported, too. In the other forms it\n"
            "has the body of that page. An export that fails leaves no files."
        ),
        examples=(
            "export crawls/news/packs --warc-gz news.warc.gz --host '*.example.com'",
            "export crawls/news/packs --warc-zst warcs/ --from 2026-11",
            "export crawls/news/packs --parquet news.parquet",
            "export crawls/news/packs --wacz news.wacz --host example.com --job crawls/news",
            "export crawls/news/packs --dir pages --sample 100 --mime text/html",
        ),
        exits={1: "something could not be read, and was left out"},
    ),
    Verb(
        "graph", "pages and hosts as graphs: vertices, edges, ranks", _run_graph,
        _add_graph_options, "DIR [PATH...]",
        about=(
            "Reads the HTML pages and redirects in the packs, or the pages of --mime. Folders of\n"
            "several agents make one graph. Each page counts as it was last fetched. Vertices are\n"
            "fetched pages and the pages that they link to; ids count from 0 in the order of\n"
            "SURT. docs/links.md has the files and the programs that load them. Needs the extra\n"
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
