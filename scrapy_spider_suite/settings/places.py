"""The type of a setting that names a place on another file system."""

from __future__ import annotations

import re

from scrapy_spider_suite.settings.values import ValueType, WrongLine

_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^/]")
_RELATIVE = re.compile(r"(file|local)://(?!/)")
_PASSWORD = re.compile(r"://[^/@]*:(?!\d+/)[^@]*@")  # with a / in it, too


def place() -> ValueType:
    """Return the type of a folder on some file system, as fsspec has it; empty for none.

    A password in it would be written into jobs, logs and marks: it is refused.
    """

    def parse(raw: object) -> str:
        text = str(raw)
        if _PASSWORD.search(text):  # nor may the error show it
            raise WrongLine("a password in a URL is kept in jobs and logs: leave it out, and give "
                            "it as fsspec takes it, such as in FSSPEC_SFTP_PASSWORD")  # fmt: skip
        if _RELATIVE.match(text):  # to whatever folder a crawl is started in
            raise WrongLine(f"{text!r} names no folder: file:// is followed by an absolute path, "
                            "such as file:///mnt/archive")  # fmt: skip
        if not isinstance(raw, str) or not text.isprintable():
            raise ValueError(raw)
        if text and not text.startswith("/") and not _URL.match(text.replace(":///", "://")):
            raise ValueError(raw)
        return text

    return ValueType(
        parse, "a URL without a password, such as 's3://bucket/folder', or an absolute path"
    )
