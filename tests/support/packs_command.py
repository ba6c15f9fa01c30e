"""``scrapy packs`` for tests, and packs of two agents."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scrapy_spider_suite.commands.packs import Command
from scrapy_spider_suite.packs import Capture, PackWriter, RefersTo
from scrapy_spider_suite.packs.warc import sha1_digest
from support import command_line as commandline
from support.packs import NOW, body, fetch, gzipped, hand_in, plan


@dataclass
class Said:
    """What the command wrote, and its exit code."""

    code: int
    out: bytes
    err: str

    @property
    def rows(self) -> list[Any]:
        """The values of ``--json``."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def lines(self) -> list[str]:
        """What is for people."""
        return self.out.decode().splitlines()


Packs = Callable[..., Said]


def parsed(arguments: Sequence[object], settings: dict[str, Any]) -> tuple[Command, Any, list[str]]:
    """The command, its options, and what is left for the verb, as Scrapy's command line does it."""
    return commandline.parsed(Command(), arguments, settings)


def write(folder: Path, form: str, *fetches: Capture) -> None:
    """Write a pack of *fetches*."""
    writer = PackWriter(plan(folder, form))
    for one in fetches:
        hand_in(writer, one)
    writer.close()


def other(number: int, **changes: Any) -> Capture:
    """A page of another host that is missing there."""
    lost = b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\n"
    return fetch(number, b"gone", url=f"https://sub.other.test/{number}?a=b",
                 head=lost, **changes)  # fmt: skip


def two_agents(folder: Path, form: str) -> list[Path]:
    """The packs of two agents: three pages, one of them again; one of another host."""
    again = RefersTo("http://www.example.com/1", NOW + 1, sha1_digest(body(1)))
    write(folder / "one", form, fetch(1), gzipped(2), fetch(1, time=NOW + 100, original=again))
    write(folder / "two", form, fetch(3), other(4))
    return [folder / "one", folder / "two"]
