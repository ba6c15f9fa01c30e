"""Where a crawl begins: URLs, host names, and files of them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from scrapy_spider_suite.errors import SettingsError


def read_seeds(sources: Iterable[str]) -> Iterator[str]:
    """Yield the URLs that *sources* name: URLs, host names, or files with one of these a line.

    Blank lines and lines that begin with ``#`` are skipped; a bare host name becomes
    ``http://host/``. Bytes that are no UTF-8 are replaced, and the line then refused.

    Raises `SettingsError` for a file that cannot be read.
    """
    for source in sources:
        text = source.strip()
        if _names_file(text):
            yield from _read_file(Path(text))
        else:
            yield _with_scheme(text)


def check_sources(sources: Iterable[str]) -> None:
    """See that the files that *sources* name are there, before a crawl begins.

    Raises `SettingsError` if one is not.
    """
    for source in sources:
        _names_file(source.strip())


def _names_file(text: str) -> bool:
    if "://" in text:
        return False
    # Whatever can be read will do, a pipe too: not only regular files.
    if os.path.exists(text) and not os.path.isdir(text):
        return True
    if "/" in text or text.endswith((".txt", ".csv", ".tsv", ".lst")):
        raise SettingsError(f"seeds: {text!r} is no URL, and there is no such file")
    return False


def _read_file(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as lines:
            for line in lines:
                text = line.strip()
                if text and not text.startswith("#"):
                    yield _with_scheme(text)
    except OSError as error:
        raise SettingsError(f"seeds: {path} cannot be read: {error.strerror}") from error


def _with_scheme(text: str) -> str:
    return text if "://" in text else f"http://{text}/" if "/" not in text else f"http://{text}"


@dataclass(slots=True)
class SeedReport:
    """How many seeds were taken, and what was wrong with the others."""

    taken: int = 0
    refused: int = 0
    first_refused: str = ""

    def count(self, url: str, good: bool) -> None:
        """Note one seed."""
        if good:
            self.taken += 1
        else:
            self.refused += 1
            self.first_refused = self.first_refused or url

    def log(self, logger: logging.Logger | logging.LoggerAdapter[logging.Logger]) -> None:
        """Say how it went, in one line, and in a second one if something was wrong."""
        logger.info("%d seeds", self.taken)
        if self.refused:
            logger.warning(
                "%d seeds are no web addresses and were left out, the first: %r",
                self.refused, self.first_refused[:200],
            )  # fmt: skip
