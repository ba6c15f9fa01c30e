"""``scrapy packs verify``, ``merge`` and ``upload``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import asdict
from scrapy.exceptions import UsageError

from scrapy_spider_suite.analysis.search.index_place import verify_index
from scrapy_spider_suite.commands.packs_verbs.options import add_paths, packs_of, paths_of, progress
from scrapy_spider_suite.errors import PackError, PackUploadError
from scrapy_spider_suite.operate.verb import Invocation, Verb
from scrapy_spider_suite.packs.folder_index import merge_indexes, repair_indexes
from scrapy_spider_suite.packs.pack_file import closed_path, format_of, packs_to_upload
from scrapy_spider_suite.packs.upload import UploadTarget, upload_pack
from scrapy_spider_suite.packs.verify import PackFinding, verify_merged, verify_missing, verify_pack
from scrapy_spider_suite.runtime.text import counted, printable
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.settings.values import ValueDetailError, remote_folder


def _run_verify(call: Invocation) -> int:
    packs = packs_of(call)
    files = packs.files()
    sizes = {path: path.stat().st_size for path in files if path.exists()}
    found = 0
    with progress(sum(sizes.values()), "B") as move:
        for path in files:
            found += _tell(call, _verified(path))
            move(sizes.get(path, 0))
    for folder in (path for path in packs.paths if path.is_dir()):
        for look in (verify_missing, verify_merged, verify_index):
            found += _tell(call, look(folder))
    if not found and not call.json:
        print(f"{counted(len(files), 'pack')}: everything is as it was written")
    return 1 if found else 0


def _verified(path: Path) -> list[PackFinding]:
    try:
        return list(verify_pack(path))
    except FileNotFoundError:  # it was closed meanwhile
        return list(verify_pack(closed_path(path)))


def _tell(call: Invocation, findings: Iterable[PackFinding]) -> int:
    """Print *findings*; return their number."""
    count = 0
    for count, finding in enumerate(findings, 1):  # noqa: B007
        if call.json:
            print(json.dumps({**finding._asdict(), "path": str(finding.path)}))
        else:
            where = f", {finding.length} bytes at {finding.offset}" if finding.offset >= 0 else ""
            url = f" ({printable(finding.url)})" if finding.url else ""
            print(f"{finding.path}: {finding.kind}{where}: {finding.what}{url}")
    return count


def _run_merge(call: Invocation) -> int:
    for folder in paths_of(call):
        if not folder.is_dir():
            raise PackError(f"a folder has an index of its packs, {folder} is none")
    for folder in packs_of(call).paths:
        made = repair_indexes(folder)
        call.facts({"folder": str(folder), "made": made, "files": merge_indexes(folder)})
    return 0


def _add_upload_options(parser: argparse.ArgumentParser) -> None:
    add_paths(parser)
    parser.add_argument(
        "--to", metavar="URL", help="a folder, as fsspec writes it (default: SUITE_PACKS_UPLOAD)"
    )
    after = parser.add_mutually_exclusive_group()
    after.add_argument("--keep", action="store_true", default=None, help="keep the packs here")
    after.add_argument(
        "--delete", dest="keep", action="store_false",
        help="delete each pack here after its copy was checked (default: SUITE_PACKS_KEEP)",
    )  # fmt: skip


def _run_upload(call: Invocation) -> int:
    options, settings = call.options, SuiteSettings.from_settings(call.settings)
    if not (url := _place(options.to) if options.to else settings.packs_upload):
        raise UsageError("where to? give --to, or set SUITE_PACKS_UPLOAD", print_help=False)
    keep = settings.packs_keep if options.keep is None else options.keep
    target = UploadTarget(url)
    packs = [pack for path in packs_of(call).paths for pack in _packs(path, target, keep=keep)]
    failed = 0
    with progress(sum(pack.stat().st_size for pack in packs), "B") as move:
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
                print(json.dumps({"pack": str(pack), "kept": keep, **asdict(done)}))
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


VERBS = (
    Verb(
        "verify", "check packs and indexes: checksums, digests, places", _run_verify, add_paths,
        "[PATH...]",
        about=(
            "Reads everything. Of packs that are being written, the complete records are checked,\n"
            "and not their indexes. A pack is missing if its index is there; a pack that was\n"
            "uploaded and deleted here is not missing."
        ),
        examples=(
            "verify",
            "verify crawls/news/packs other-machine/packs",
            "verify crawls/news/packs --json",
        ),
        exits={1: "something is not as it was written"},
    ),
    Verb(
        "merge", "join the indexes of packs, so that pages are found faster", _run_merge,
        add_paths, "[PATH...]",
        about=(
            "A crawl does so when it closes packs; this is for packs that were brought together.\n"
            "Their own indexes stay; a missing or damaged index is made anew. Prints how many\n"
            "were made, and the number of files of the joined index."
        ),
        examples=("merge crawls/news/packs",),
    ),
    Verb(
        "upload", "upload the packs that a crawl has not uploaded", _run_upload,
        _add_upload_options, "[PATH...] --to URL",
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
)  # fmt: skip
