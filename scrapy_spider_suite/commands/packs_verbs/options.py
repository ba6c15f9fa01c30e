"""Options and output that verbs of ``scrapy packs`` share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType

from scrapy.exceptions import UsageError
from tqdm import tqdm  # type: ignore[import-untyped]

from scrapy_spider_suite.errors import PackError
from scrapy_spider_suite.operate import verb
from scrapy_spider_suite.packs import Packs, open_packs
from scrapy_spider_suite.packs.cdxj import timestamp
from scrapy_spider_suite.packs.reader import Selection


def paths_of(call: verb.Invocation) -> list[Path]:
    """The packs and folders of the command line, or SUITE_PACKS_DIR. Raises `UsageError`."""
    given = list(call.options.path)
    if not given and call.settings is not None and call.settings.get("SUITE_PACKS_DIR"):
        given = [call.settings["SUITE_PACKS_DIR"]]
    if not given:
        raise UsageError("which packs? give PATHs, or set SUITE_PACKS_DIR", print_help=False)
    return [Path(path).expanduser() for path in given]


def packs_of(call: verb.Invocation) -> Packs:
    """The open packs. Raises `PackError`: a path is no pack, or there are no packs at all."""
    packs = open_packs(*paths_of(call))
    # One of several agents may have no pack yet. Uploaded and missing packs count, too.
    if not (packs.files() or packs.away() or packs.missing()):
        raise PackError(f"no packs in {', '.join(map(str, packs.paths))}")
    return packs


PATHS = verb.option(
    "path", nargs="*", metavar="PATH",
    help="a pack, or a folder of packs (default: SUITE_PACKS_DIR)",
)  # fmt: skip


def _status(text: str) -> str:
    code = text.lower()
    if len(code) == 3 and code[0] in "0123456789" and (code[1:].isdecimal() or code[1:] == "xx"):
        return code
    raise argparse.ArgumentTypeError(f"{text!r}: expected a status such as 200 or 3xx")


CHOICE = (
    verb.option(
        "--host", action="append", default=[], type=verb.host_argument, metavar="HOST",
        help="pages of this host; *.example.com: and of hosts below it; may be given again",
    ),
    verb.option(
        "--from", dest="first", type=verb.argument_type(timestamp), metavar="TIME",
        help="fetched since this time: 2026-11-22, 2026-11-22T10:15 (UTC)",
    ),
    verb.option(
        "--to", dest="last", type=verb.argument_type(partial(timestamp, last=True)), metavar="TIME",
        help="fetched up to the end of this year, month, day, hour or minute",
    ),
    verb.option(
        "--status", action="append", default=[], type=_status, metavar="CODE",
        help="200, 404, 3xx; may be given again",
    ),
    verb.option(
        "--mime", action="append", default=[], type=str.lower, metavar="TYPE",
        help="text/html, image/*; may be given again",
    ),
)  # fmt: skip
"""The options that choose pages; see `choice_of`."""
SAMPLE = verb.option(
    "--sample", type=verb.ROWS, default=0, metavar="N",
    help="a random sample of N pages, the same each time (0: all)",
)  # fmt: skip


def choice_of(options: argparse.Namespace) -> Selection:
    """The pages that the options of `CHOICE` select."""
    return Selection(
        hosts=tuple(options.host), first=options.first or "", last=options.last or "",
        statuses=tuple(options.status), mimes=tuple(options.mime),
        sample=getattr(options, "sample", 0),
    )  # fmt: skip


@contextmanager
def progress(total: int | None, unit: str) -> Iterator[Callable[[int], object]]:
    """Show a progress bar; yield the function that advances it. *unit* ``B``: in kB, MB, …"""
    with tqdm(total=total, unit=unit, unit_scale=unit == "B", disable=None, file=sys.stderr,
              leave=False) as bar:  # fmt: skip
        yield bar.update


def tell_damage(path: Path, offset: int, length: int, why: str) -> None:
    print(f"{path}: damaged, {length} bytes at {offset}: {why}", file=sys.stderr)


def tell_left_out(packs: Packs) -> int:
    """Print absent packs and unreadable places to stderr; return 1 if a place is unreadable."""
    tell_absent(packs)
    for path, damage in packs.damage:
        tell_damage(path, damage.offset, damage.length, damage.why)
    return 1 if packs.damage else 0


def tell_absent(packs: Packs) -> None:
    """Print to stderr which packs are uploaded or missing: their pages are left out."""
    away = packs.away()
    if away:
        where = ", ".join(sorted({done.url.removesuffix(f"/{pack.name}") for pack, done in away}))
        print(f"scrapy packs: packs that were uploaded and are not here: {len(away)}, in {where}; "
              "their pages are left out", file=sys.stderr)  # fmt: skip
    missing = packs.missing()
    if missing:
        print(f"scrapy packs: packs that are missing: {len(missing)}, {missing[0].name} first; "
              "their pages are left out", file=sys.stderr)  # fmt: skip


def of_extra(module: str, extra: str) -> ModuleType:
    """Import a *module* of the suite that needs *extra*. Raises `PackError`: not installed."""
    try:
        return import_module(f"scrapy_spider_suite.{module}")
    except ImportError as error:
        what = f"{error.name} is not installed: pip install 'scrapy-spider-suite[{extra}]'"
        raise PackError(what) from error
