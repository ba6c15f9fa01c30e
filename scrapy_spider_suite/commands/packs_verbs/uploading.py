"""``scrapy packs upload``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from scrapy.exceptions import UsageError

from scrapy_spider_suite.commands.packs_verbs.common import add_paths, packs_of, progress
from scrapy_spider_suite.commands.verb import Call, Verb
from scrapy_spider_suite.errors import PackUploadError
from scrapy_spider_suite.packs.pack_file import format_of, packs_to_upload
from scrapy_spider_suite.packs.upload import UploadTarget, upload_pack
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.settings.values import WrongLine, place


def _options(parser: argparse.ArgumentParser) -> None:
    add_paths(parser)
    parser.add_argument(
        "--to", metavar="URL", help="where to, as fsspec has it (default: SUITE_PACKS_UPLOAD)"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--keep", action="store_true", default=None, help="keep the packs here")
    what.add_argument(
        "--delete", dest="keep", action="store_false",
        help="delete each here once it is certain to be there (default: SUITE_PACKS_KEEP)",
    )  # fmt: skip


def _run(call: Call) -> int:
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
                print(json.dumps({"pack": str(pack), "kept": keep, **done._asdict()}))
            else:
                print(done.url)
    return 1 if failed else 0


def _place(to: str) -> str:
    """What the setting takes, or a folder from here on. Raises `UsageError`, which names none."""
    kind = place()
    try:
        return str(kind.parse(to if ":" in to else str(Path(to).absolute())))
    except WrongLine as error:
        raise UsageError(f"--to: {error}", print_help=False) from None
    except ValueError:
        raise UsageError(f"--to: expected {kind.allowed}", print_help=False) from None


def _packs(path: Path, target: UploadTarget, *, keep: bool) -> list[Path]:
    """What of *path* waits. Raises `PackError`: it is no pack, or is there already."""
    target.require_elsewhere(path if path.is_dir() else path.parent)
    if path.is_dir():
        return packs_to_upload(path, keep=keep, target=target.url)
    format_of(path)
    return [
        pack for pack in packs_to_upload(path.parent, keep=keep, target=target.url) if pack == path
    ]


VERBS = (
    Verb(
        "upload", "bring packs to another file system: what a crawl did not get done", _run,
        _options, "[PATH...] --to URL",
        about=(
            "Each closed pack that was not uploaded there yet, with its index. What arrived is\n"
            "checked, and noted in a small file beside the pack (NAME.uploaded), before it may be\n"
            "deleted.\n"
            "Its index stays: `ls` and `get` say where its pages are. Prints where each pack is."
        ),
        examples=(
            "upload crawls/news/packs --to s3://bucket/news",
            "upload crawls/news/packs --to /mnt/archive/news --delete",
        ),
        exits={1: "something could not be uploaded: call again"},
    ),
)  # fmt: skip
