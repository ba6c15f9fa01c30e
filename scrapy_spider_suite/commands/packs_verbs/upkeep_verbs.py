"""``scrapy packs verify``, ``merge``, ``upload``, ``redact``, ``export`` and ``graph``."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs
from scrapy.exceptions import UsageError

from scrapy_spider_suite.analysis import search
from scrapy_spider_suite.analysis.search.index_place import verify_index
from scrapy_spider_suite.commands.packs_verbs import options as shared
from scrapy_spider_suite.errors import PackError, PackUploadError
from scrapy_spider_suite.operate import verb
from scrapy_spider_suite.operate.actions import whoami
from scrapy_spider_suite.operate.executors.one_job import ask_job
from scrapy_spider_suite.operate.job_redaction import count_traces, redact_job
from scrapy_spider_suite.operate.verbs.log import read_manifest
from scrapy_spider_suite.packs import CrawlInfo, Packs, redaction
from scrapy_spider_suite.packs.export import ExportResult, export_files, export_wacz, export_warc
from scrapy_spider_suite.packs.folder_index import merge_indexes, repair_indexes
from scrapy_spider_suite.packs.item_file import is_item_pack
from scrapy_spider_suite.packs.pack_file import closed_path, format_of, is_pack, packs_to_upload
from scrapy_spider_suite.packs.reader import Selection, select
from scrapy_spider_suite.packs.upload import UploadTarget, upload_pack
from scrapy_spider_suite.packs.verify import PackFinding, verify_merged, verify_missing, verify_pack
from scrapy_spider_suite.packs.warc import SOFTWARE
from scrapy_spider_suite.runtime.text import counted, printable
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.settings.values import ValueDetailError, remote_folder, size
from scrapy_spider_suite.store.job_directory import FOLDER, JobFile

if TYPE_CHECKING:
    from scrapy_spider_suite.analysis.link_graph import Level, LinkGraph

_WAIT: Final = 60.0  # seconds to wait for a job that cannot be written


def _run_verify(call: verb.Invocation) -> int:
    packs = shared.packs_of(call)
    files = packs.files()
    sizes = {path: path.stat().st_size for path in files if path.exists()}
    found = 0
    with shared.progress(sum(sizes.values()), "B") as move:
        for path in files:
            try:
                findings = list(verify_pack(path))
            except FileNotFoundError:  # it was closed meanwhile
                findings = list(verify_pack(closed_path(path)))
            found += _tell(call, findings)
            move(sizes.get(path, 0))
    for folder in (path for path in packs.paths if path.is_dir()):
        for look in (verify_missing, verify_merged, verify_index):
            found += _tell(call, look(folder))
    if not found and not call.json:
        print(f"{counted(len(files), 'pack')}: everything is as it was written")
    return 1 if found else 0


def _tell(call: verb.Invocation, findings: Iterable[PackFinding]) -> int:
    count = 0
    for count, finding in enumerate(findings, 1):  # noqa: B007
        if call.json:
            print(json.dumps({**finding._asdict(), "path": str(finding.path)}))
        else:
            where = f", {finding.length} bytes at {finding.offset}" if finding.offset >= 0 else ""
            url = f" ({printable(finding.url)})" if finding.url else ""
            print(f"{finding.path}: {finding.kind}{where}: {finding.what}{url}")
    return count


def _run_merge(call: verb.Invocation) -> int:
    for folder in shared.paths_of(call):
        if not folder.is_dir():
            raise PackError(f"a folder has an index of its packs, {folder} is none")
    for folder in shared.packs_of(call).paths:
        made = repair_indexes(folder)
        call.facts({"folder": str(folder), "made": made, "files": merge_indexes(folder)})
    return 0


def _run_upload(call: verb.Invocation) -> int:
    options, settings = call.options, SuiteSettings.from_settings(call.settings)
    if not (url := _place(options.to) if options.to else settings.packs_upload):
        raise UsageError("where to? give --to, or set SUITE_PACKS_UPLOAD", print_help=False)
    keep = settings.packs_keep if options.keep is None else options.keep
    target = UploadTarget(url)
    paths = shared.packs_of(call).paths
    packs = [pack for path in paths for pack in _packs(path, target, keep=keep)]
    failed = 0
    with shared.progress(sum(pack.stat().st_size for pack in packs), "B") as move:
        for pack in packs:
            size = pack.stat().st_size
            try:
                done = upload_pack(pack, target, time.time(), keep=keep)
            except (PackUploadError, OSError) as error:
                print(f"scrapy packs: {error}", file=sys.stderr)
                failed += 1
                continue
            move(size)
            if done is None:
                print(f"scrapy packs: {pack} is being uploaded or replaced", file=sys.stderr)
                failed += 1
            elif call.json:
                print(json.dumps({"pack": str(pack), "kept": keep, **structs.asdict(done)}))
            else:
                print(done.url)
    return 1 if failed else 0


def _place(to: str) -> str:
    """A value of SUITE_PACKS_UPLOAD; a relative folder is made absolute. Raises `UsageError`."""
    try:
        return str(remote_folder.parse(to if ":" in to else str(Path(to).absolute())))
    except ValueDetailError as error:
        raise UsageError(f"--to: {error}", print_help=False) from None
    except ValueError:
        raise UsageError(f"--to: expected {remote_folder.allowed}", print_help=False) from None


def _packs(path: Path, target: UploadTarget, *, keep: bool) -> list[Path]:
    """The packs of *path* to upload. Raises `PackError`: no pack, or the target is its folder."""
    folder = path if path.is_dir() else path.parent
    target.require_elsewhere(folder)
    if path != folder:
        format_of(path)
    waiting = packs_to_upload(folder, keep=keep, target=target.url)
    return [pack for pack in waiting if path in (folder, pack)]


def _run_redact(call: verb.Invocation) -> int:
    options = call.options
    folders = shared.paths_of(call)
    for folder in folders:
        if not folder.is_dir():
            raise PackError(f"a folder of packs is redacted as a whole: {folder}")
    if options.job is None and options.items is None:
        shared.packs_of(call)
    subject = redaction.RedactionTarget(options.host or "", options.url or "", options.mentions)
    if options.job is not None and not options.host:
        raise UsageError("--job is for a host: `scrapy frontier drop` takes URLs", print_help=False)
    if options.items is not None and not options.items.is_dir():
        raise PackError(f"not a folder of item packs: {options.items}")
    if options.job is not None:
        JobFile.require(options.job / FOLDER)
    if not options.dry_run:
        verb.confirm(call, f"Take {options.host or options.url} out of these packs for good?")
    code = _redact_job(call) if options.job is not None else 0
    for folder in folders:
        code = max(code, _redact_folder(call, folder, subject))
    return code if options.items is None else max(code, _redact_items(call, subject))


def _redact_job(call: verb.Invocation) -> int:
    folder, host = call.options.job / FOLDER, call.options.host
    if call.options.dry_run:
        call.facts({"job": str(folder.parent), "done": False, **count_traces(folder, host)})
        return 0
    swept = redact_job(folder, host, whoami(), "scrapy packs redact", _WAIT, ask_job)
    call.facts({"job": str(folder.parent), "done": True, **asdict(swept)})
    return 4 if swept.left else 0


def _redact_items(call: verb.Invocation, subject: redaction.RedactionTarget) -> int:
    folder, dry = call.options.items, call.options.dry_run
    total = sum(path.stat().st_size for path in folder.iterdir() if is_item_pack(path))
    with shared.progress(total, "B") as move:
        receipt = redaction.redact_items(folder, subject, move, dry=dry)
    call.facts({"folder": str(folder), "done": not dry, **asdict(receipt)})
    return 4 if receipt.open and not dry else 0


def _redact_folder(call: verb.Invocation, folder: Path, subject: redaction.RedactionTarget) -> int:
    total = sum(path.stat().st_size for path in folder.iterdir() if is_pack(path))
    with shared.progress(total, "B") as move:
        if call.options.dry_run:
            receipt = redaction.count_redaction(folder, subject, move)
        else:
            receipt = redaction.redact(folder, subject, time.time(), move, texts=search)
    call.facts({"folder": str(folder), "done": not call.options.dry_run, **asdict(receipt)})
    left = receipt.open or receipt.away or receipt.uploaded
    return 4 if left and not call.options.dry_run else 0


_EXPORT_OPTIONS = (
    shared.PATHS,
    verb.one_of(
        verb.option(
            "--warc-gz", type=Path, metavar="FILE|DIR",
            help="one file *.warc.gz, or several in a folder; every WARC tool opens them",
        ),
        verb.option(
            "--warc-zst", type=Path, metavar="FILE|DIR",
            help="one file *.warc.zst, or several in a folder; FastWARC and zstd -dc open them, "
            "warcio does not",
        ),
        verb.option("--dir", type=Path, metavar="DIR", help="a file a page, and pages.jsonl"),
        verb.option(
            "--parquet", type=Path, metavar="FILE",
            help="a table like Common Crawl's index, with title, language and text ([parquet])",
        ),
        verb.option("--wacz", type=Path, metavar="FILE", help="a file for replayweb.page: *.wacz"),
        required=True,
    ),
    verb.option("--job", type=Path, metavar="DIR", help="with --wacz: add this job's manifest"),
    *shared.CHOICE,
    shared.SAMPLE,
)  # fmt: skip


def _run_export(call: verb.Invocation) -> int:
    packs, choice = shared.packs_of(call), shared.choice_of(call.options)
    with shared.progress(sum(1 for _ in select(packs, choice)), "pages") as move:
        done = _export(call.options, packs, choice, move)
    for url, why in done.failed:
        print(f"{printable(url)}: {printable(why)}", file=sys.stderr)
    files = list(map(str, done.files))
    call.facts({"pages": done.pages, "files": files, "failed": len(done.failed)})
    return 1 if shared.tell_left_out(packs) or done.failed else 0


def _export(
    options: argparse.Namespace, packs: Packs, choice: Selection, move: Callable[[int], object]
) -> ExportResult:
    if options.parquet is not None:
        table = shared.of_extra("analysis.parquet", "parquet")
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


_GRAPH_OPTIONS = (
    verb.option("folder", type=Path, metavar="DIR", help="a folder for the files"),
    shared.PATHS,
    verb.one_of(
        verb.option("--hosts", dest="levels", action="store_const", const=("host",),
               default=("page", "host"), help="the graph of hosts alone"),
        verb.option("--pages", dest="levels", action="store_const", const=("page",),
               help="the graph of pages alone"),
    ),
    verb.option(
        "--format", action="append", choices=("tables", "arcs", "ascii"), dest="forms",
        help="tables: vertices and edges like Common Crawl's (the default); arcs: edges for "
        "networkx, igraph and WebGraph; ascii: WebGraph's ASCIIGraph; may be given again",
    ),
    verb.option("--rank", action="store_true", help="PageRank, too: see SUITE_SCORE"),
    verb.option("--plot", action="store_true", help="the degrees as SVG, too"),
    verb.option(
        "--memory", type=verb.value_argument(size(32 << 20)), default=512 << 20, metavar="SIZE",
        help="memory for sorting (512M); the rest is on disk",
    ),
    *shared.CHOICE,
)  # fmt: skip


def _run_graph(call: verb.Invocation) -> int:
    options, packs, choice = call.options, shared.packs_of(call), shared.choice_of(call.options)
    graphs = shared.of_extra("analysis.link_graph", "graph")
    if not choice.mimes:
        choice = graphs.LinkingPages(**asdict(choice))
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="making-") as scratch:
        with shared.progress(sum(1 for _ in select(packs, choice)), "pages") as move, \
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
    return shared.tell_left_out(packs)


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
    verb.Verb(
        "verify", "check packs and indexes: checksums, digests, places", _run_verify,
        (shared.PATHS,), "[PATH...]",
        about=(
            "Reads everything. Of packs that are being written, the complete records are checked,\n"
            "and not their indexes. A pack is missing if its index is there; a pack that was\n"
            "uploaded and deleted here is not missing."
        ),
        examples=("verify crawls/news/packs other-machine/packs --json",),
        exits={1: "something is not as it was written"},
    ),
    verb.Verb(
        "merge", "join the indexes of packs, so that pages are found faster", _run_merge,
        (shared.PATHS,), "[PATH...]",
        about=(
            "A crawl does so when it closes packs; this is for packs that were brought together.\n"
            "Their own indexes stay; a missing or damaged index is made anew. Prints how many\n"
            "were made, and the number of files of the joined index."
        ),
        examples=("merge crawls/news/packs",),
    ),
    verb.Verb(
        "upload", "upload the packs that a crawl has not uploaded", _run_upload,
        (
            shared.PATHS,
            verb.option(
                "--to", metavar="URL",
                help="a folder, as fsspec writes it (default: SUITE_PACKS_UPLOAD)",
            ),
            verb.one_of(
                verb.option("--keep", action="store_true", default=None, help="keep packs here"),
                verb.option(
                    "--delete", dest="keep", action="store_false",
                    help="delete each pack here after its copy was checked (default: "
                    "SUITE_PACKS_KEEP)",
                ),
            ),
        ),
        "[PATH...] --to URL",
        about=(
            "Uploads each closed pack that is not there yet, with its index. The copy is checked\n"
            "and noted in a small file beside the pack (NAME.uploaded) before the pack may be\n"
            "deleted. The index stays: `ls` and `get` say where the pages are. Prints the place\n"
            "of each pack."
        ),
        examples=(
            "upload crawls/news/packs --to s3://bucket/news",
            "upload crawls/news/packs --to /mnt/archive/news --delete",
        ),
        exits={1: "something could not be uploaded: call again"},
    ),
    verb.Verb(
        "redact", "remove a host or a URL from packs, with every byte", _run_redact,
        (
            shared.PATHS,
            verb.one_of(
                verb.option(
                    "--host", type=verb.host_argument, metavar="HOST",
                    help="all pages of this host; *.example.com: and of hosts below it",
                ),
                verb.option("--url", metavar="URL", help="all versions of this page"),
                required=True,
            ),
            verb.option(
                "--mentions", action="store_true",
                help="remove pages of other hosts, too, whose text or head names the host or the "
                "URL",
            ),
            verb.option(
                "--job", type=Path, metavar="DIR",
                help="remove the host from this job, too: store, link statistics, logs; no crawl "
                "may use the job",
            ),
            verb.option(
                "--items", type=Path, metavar="DIR",
                help="remove items that name it from these item packs",
            ),
            *verb.CAUTION,
        ),
        "[PATH...] --host HOST",
        about=(
            "Removes pages with their requests and links, revisits with the same body, links to\n"
            "the host and Referers that name it. The indexes change at once; then the packs are\n"
            "written anew. After a kill every pack is whole, and the same call continues. The\n"
            "text of other pages that name the host stays; --mentions removes these pages, too.\n"
            "The receipt names three kinds of packs that need another step. open: a pack that is\n"
            "being written; call again when it is closed. away: an uploaded pack that is not here\n"
            "and has pages of the host. uploaded: a pack that changed here; it is uploaded again.\n"
            "--job drops the host from the job, and from the logs that `scrapy frontier drop`\n"
            "leaves; block the host if the crawl is to continue. Each folder keeps its receipts\n"
            "in redactions.jsonl, with a digest of the subject. This cannot be undone."
        ),
        examples=(
            "redact crawls/news/packs --job crawls/news --host '*.example.com' --yes",
            "redact crawls/news/packs --url https://example.com/private --mentions --yes",
        ),
        exits={4: "done but for what the receipt names as open, away, uploaded or left"},
    ),
    verb.Verb(
        "export", "pages in forms that other programs open", _run_export, _EXPORT_OPTIONS,
        "[PATH...] --FORM FILE",
        about=(
            "In WARC, a page comes with its request and its metadata. A revisit stays a revisit;\n"
            "it is complete if the page that it repeats is exported, too. In the other forms it\n"
            "has the body of that page. An export that fails leaves no files."
        ),
        examples=(
            "export crawls/news/packs --warc-gz news.warc.gz --host '*.example.com'",
            "export crawls/news/packs --wacz news.wacz --host example.com --job crawls/news",
            "export crawls/news/packs --dir pages --sample 100 --mime text/html",
        ),
        exits={1: "something could not be read, and was left out"},
    ),
    verb.Verb(
        "graph", "pages and hosts as graphs: vertices, edges, ranks", _run_graph,
        _GRAPH_OPTIONS, "DIR [PATH...]",
        about=(
            "Reads the HTML pages and redirects in the packs, or the pages of --mime. Folders of\n"
            "several agents make one graph. Each page counts as it was last fetched. Vertices are\n"
            "fetched pages and the pages that they link to; ids count from 0 in the order of\n"
            "SURT. docs/links.md has the files and the programs that load them. Needs the extra\n"
            "graph."
        ),
        examples=(
            "graph ranks/ crawls/news/packs other-machine/packs --hosts --rank --plot",
            "graph graphs/ crawls/news/packs --pages --format arcs --format ascii",
        ),
        exits={1: "something is damaged, and was left out"},
    ),
)  # fmt: skip
