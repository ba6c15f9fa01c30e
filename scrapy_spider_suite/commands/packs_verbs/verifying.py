"""``scrapy packs verify``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from scrapy_spider_suite.analysis.search.index_place import verify_index
from scrapy_spider_suite.commands.packs_verbs.common import add_paths, packs_of, progress
from scrapy_spider_suite.commands.verb import Call, Verb
from scrapy_spider_suite.packs.pack_file import closed_path
from scrapy_spider_suite.packs.verify import PackFinding, verify_merged, verify_missing, verify_pack
from scrapy_spider_suite.runtime.text import counted, printable


def _run(call: Call) -> int:
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


def _tell(call: Call, findings: Iterable[PackFinding]) -> int:
    """Print what is wrong; return how many things that are."""
    count = 0
    for finding in findings:
        count += 1
        if call.json:
            print(json.dumps({**finding._asdict(), "path": str(finding.path)}))
        else:
            where = f", {finding.length} bytes at {finding.offset}" if finding.offset >= 0 else ""
            url = f" ({printable(finding.url)})" if finding.url else ""
            print(f"{finding.path}: {finding.kind}{where}: {finding.what}{url}")
    return count


VERBS = (
    Verb(
        "verify", "is it as it was written? checksums, digests, indexes", _run, add_paths,
        "[PATH...]",
        about=(
            "Reads everything. Of packs that are being written, what is complete is looked at;\n"
            "their indexes are not. A pack that is gone, and whose index is not, is named; what\n"
            "was uploaded and deleted here is not missing."
        ),
        examples=(
            "verify",
            "verify crawls/news/packs other-machine/packs",
            "verify crawls/news/packs --json",
        ),
        exits={1: "something is not as it was written"},
    ),
)  # fmt: skip
