"""``scrapy packs get`` and ``cat``."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from typing import Any

from scrapy.exceptions import UsageError

from scrapy_spider_suite.commands.packs_verbs.common import (
    add_paths,
    packs_of,
    progress,
    tell_absent,
)
from scrapy_spider_suite.commands.verb import Call, Verb
from scrapy_spider_suite.packs import Damage, Page
from scrapy_spider_suite.packs.cdxj import timestamp
from scrapy_spider_suite.packs.http_records import split_message
from scrapy_spider_suite.packs.pack_file import OPEN, closed_path
from scrapy_spider_suite.packs.scan import scan
from scrapy_spider_suite.runtime.text import printable
from scrapy_spider_suite.urls.normalize import normalize


def _at(text: str) -> datetime:
    try:
        digits = timestamp(text, last=True)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return datetime.strptime(digits, "%Y%m%d%H%M%S").replace(tzinfo=UTC)


def _get_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL")
    add_paths(parser)
    parser.add_argument(
        "--at", type=_at, metavar="TIME",
        help="as it was then: 2026-11-22 (at its end), 2026-11-22T10:15 (UTC)",
    )  # fmt: skip
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--headers", action="store_true", help="the head of the response instead")
    what.add_argument("--record", action="store_true", help="the WARC record instead")
    what.add_argument("--links", action="store_true", help="where the page leads to instead")


def _get(call: Call) -> int:
    options, packs, page = call.options, packs_of(call), None
    for url in dict.fromkeys((options.url, normalize(options.url))):
        page = page or (packs.get(url, options.at) if url else None)
    if page is None:
        when = f" by {options.at:%Y-%m-%dT%H:%M:%SZ}" if options.at else ""
        print(f"scrapy packs: {printable(options.url)} is not in these packs{when}",
              file=sys.stderr)  # fmt: skip
        return 1
    if options.links:
        _links(page, call)
    elif options.record:
        sys.stdout.buffer.write(page.record.to_bytes())
    elif call.json:
        print(json.dumps(_facts(page)))
    elif options.headers:
        sys.stdout.buffer.write(split_message(page.record.block)[0] if page.status else b"")
    else:
        sys.stdout.buffer.write(page.body)
    return 0


def _links(page: Page, call: Call) -> None:
    for link in page.links:
        text = f"{link.url}\t{link.kind}\t{'nofollow' if link.nofollow else ''}".rstrip()
        print(json.dumps(link._asdict()) if call.json else text)


def _facts(page: Page) -> dict[str, Any]:
    """What ``--json`` prints of a page; the body is no JSON."""
    return {
        "url": page.url,
        "time": page.record.get("WARC-Date"),
        "status": page.status,
        "mime": page.mime,
        "headers": page.headers,
        "digest": page.digest,
        "revisit": page.is_revisit,
        "via": page.via,
        "hops": page.hops,
        "pack": str(page.path),
        "offset": page.place.offset,
        "length": page.place.length,
    }


def _cat(call: Call) -> int:
    if not call.options.path:
        raise UsageError("which packs? give PATHs", print_help=False)
    code = 0
    packs = packs_of(call)
    files = packs.files()
    total = sum(path.stat().st_size for path in files)
    with progress(total, "B") as move:
        for path in files:
            for part in scan(path):
                if not isinstance(part, Damage):
                    sys.stdout.buffer.write(part.data)
                elif not (part.torn and path.name.endswith(OPEN)):
                    where = f"{part.length} bytes at {part.offset}"
                    print(f"{closed_path(path)}: damaged, {where}: {part.why}", file=sys.stderr)
                    code = 1
                move(part.length)
    tell_absent(packs)
    return code


VERBS = (
    Verb(
        "get", "a page as it came: its body, decompressed, on stdout", _get, _get_options,
        "URL [PATH...]",
        about=(
            "The last version, or the one of a time. Of a revisit the body is that of the page\n"
            "that it is the same as. With --json: what is known of the page, without its body."
        ),
        examples=(
            "get https://example.com/ > index.html",
            "get https://example.com/ crawls/news/packs --at 2026-11-22",
            "get https://example.com/ crawls/news/packs --headers",
            "get https://example.com/ crawls/news/packs --links",
            "get https://example.com/ crawls/news/packs --record | warcio check /dev/stdin",
        ),
        exits={1: "the page is not in the packs"},
    ),
    Verb(
        "cat", "packs as they are when decompressed: WARC", _cat, add_paths, "PATH...",
        about=(
            "Of every format, as `lzop -dc` has it of lzo. Of a pack that is being written: what\n"
            "is complete. What is damaged is named on stderr, and left out."
        ),
        examples=(
            "cat crawls/news/packs/news-20261122101458-00001-a.warc.lzo | less",
            "cat crawls/news/packs | warcio index -",
        ),
        exits={1: "something is damaged"},
    ),
)  # fmt: skip
