"""What verbs of ``scrapy packs`` have in common: packs, the pages that are meant, a bar."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType

from scrapy.exceptions import UsageError
from tqdm import tqdm  # type: ignore[import-untyped]

from scrapy_spider_suite.errors import PackError
from scrapy_spider_suite.operate.verb import Invocation, host_argument, row_limit
from scrapy_spider_suite.packs import Packs, open_packs
from scrapy_spider_suite.packs.cdxj import timestamp
from scrapy_spider_suite.packs.selection import Selection


def paths_of(call: Invocation) -> list[Path]:
    """The packs and folders that are meant. Raises `UsageError`: none are."""
    given = list(call.options.path)
    if not given and call.settings is not None and call.settings.get("SUITE_PACKS_DIR"):
        given = [call.settings["SUITE_PACKS_DIR"]]
    if not given:
        raise UsageError("which packs? give PATHs, or set SUITE_PACKS_DIR", print_help=False)
    return [Path(path).expanduser() for path in given]


def packs_of(call: Invocation) -> Packs:
    """Those packs, open. Raises `PackError`: a path is none, or there is none in all of them."""
    packs = open_packs(*paths_of(call))
    # One of several agents may have none yet, and what is elsewhere was packed, too.
    if not (packs.files() or packs.away() or packs.missing()):
        raise PackError(f"no packs in {', '.join(map(str, packs.paths))}")
    return packs


def add_paths(parser: argparse.ArgumentParser) -> None:
    """Declare PATH."""
    parser.add_argument(
        "path", nargs="*", metavar="PATH",
        help="a pack, or a folder of packs (default: SUITE_PACKS_DIR)",
    )  # fmt: skip


def add_choice(parser: argparse.ArgumentParser, *, sample: bool = False) -> None:
    """Declare which pages are meant."""
    parser.add_argument(
        "--host", action="append", default=[], type=host_argument, metavar="HOST",
        help="pages of that host; *.example.com: and of those below it; may be given again",
    )  # fmt: skip
    parser.add_argument(
        "--from", dest="first", type=_first, metavar="TIME",
        help="fetched since then: 2026-11-22, 2026-11-22T10:15 (UTC)",
    )  # fmt: skip
    parser.add_argument(
        "--to", dest="last", type=_last, metavar="TIME",
        help="fetched up to the end of that year, month, day, hour or minute",
    )  # fmt: skip
    parser.add_argument(
        "--status", action="append", default=[], type=_status, metavar="CODE",
        help="200, 404, 3xx; may be given again",
    )  # fmt: skip
    parser.add_argument(
        "--mime", action="append", default=[], type=str.lower, metavar="TYPE",
        help="text/html, image/*; may be given again",
    )  # fmt: skip
    if sample:
        parser.add_argument(
            "--sample", type=row_limit, default=0, metavar="N",
            help="so many of them by chance, the same ones each time (0: all)",
        )  # fmt: skip


def choice_of(options: argparse.Namespace) -> Selection:
    """What those options ask for."""
    return Selection(
        hosts=tuple(options.host),
        first=options.first or "",
        last=options.last or "",
        statuses=tuple(options.status),
        mimes=tuple(options.mime),
        sample=getattr(options, "sample", 0),
    )


@contextmanager
def progress(total: int | None, unit: str) -> Iterator[Callable[[int], object]]:
    """A bar on the terminal, if there is one, and what moves it on; *unit* ``B``: kB, MB, ..."""
    with tqdm(total=total, unit=unit, unit_scale=unit == "B", disable=None, file=sys.stderr,
              leave=False) as bar:  # fmt: skip
        yield bar.update


def tell_damage(packs: Packs) -> int:
    """Say on stderr what could not be read; return the exit code: 1 if there is any."""
    for path, damage in packs.damage:
        where = f"{damage.length} bytes at {damage.offset}"
        print(f"{path}: damaged, {where}: {damage.why}", file=sys.stderr)
    return 1 if packs.damage else 0


def tell_absent(packs: Packs) -> None:
    """Say on stderr that packs are not here, and where they are: their pages are left out."""
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
    """A *module* of the suite's that needs *extra*. Raises `PackError`: that is not installed."""
    try:
        return import_module(f"scrapy_spider_suite.{module}")
    except ImportError as error:
        what = f"{error.name} is not installed: pip install 'scrapy-spider-suite[{extra}]'"
        raise PackError(what) from error


def _status(text: str) -> str:
    code = text.lower()
    if len(code) == 3 and code[0] in "0123456789" and (code[1:].isdecimal() or code[1:] == "xx"):
        return code
    raise argparse.ArgumentTypeError(f"{text!r}: expected a status such as 200 or 3xx")


def _first(text: str) -> str:
    try:
        return timestamp(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _last(text: str) -> str:
    try:
        return timestamp(text, last=True)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
