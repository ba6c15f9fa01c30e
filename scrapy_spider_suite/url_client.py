"""Pop URLs from a crawl with SUITE_URL_SERVER, and report what came of them. It needs no Scrapy.

    from scrapy_spider_suite.url_client import UrlClient

    client = UrlClient.of_job("crawls/books")
    while rows := client.pop(10, wait=60):
        client.complete([fetch(row) for row in rows])

docs/url-server.md has the members of rows and results. All methods raise `UrlServerError`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from http.client import HTTPConnection, HTTPException, RemoteDisconnected
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

FILE: Final = "url-server.json"  # with address and token, in the ``suite`` folder of a job
_MARGIN: Final = 30.0  # seconds for an answer, beside those for which a call waits
Row = dict[str, Any]


class UrlServerError(Exception):
    """The server is away, or has refused the call; *status*: of its answer, 0 without one."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class UrlClient:
    """Calls of one thread to the server at *url*."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        self._connection = HTTPConnection(parts.hostname or "", parts.port or 80)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    @classmethod
    def of_job(cls, jobdir: str | Path) -> UrlClient:
        """A client of the crawl that runs in *jobdir*."""
        path = Path(jobdir) / "suite" / FILE
        try:
            found = json.loads(path.read_text())
            return cls(found["url"], found["token"])
        except (OSError, ValueError, KeyError) as error:
            text = f"no crawl with SUITE_URL_SERVER runs in {jobdir}: {error}"
            raise UrlServerError(text) from error

    def close(self) -> None:
        self._connection.close()

    def pop(self, count: int = 1, *, wait: float = 1.0, hosts: Sequence[str] = ()) -> list[Row]:
        """Up to *count* URLs to fetch, at most one of a host; waits *wait* seconds for the first.

        *hosts*: of these alone. [] if none is due.
        """
        given = {"count": count, "wait": wait, "hosts": list(hosts)}
        rows: list[Row] = self._call("pop", given, wait)
        return rows

    def complete(self, results: Iterable[Mapping[str, Any]]) -> list[bool]:
        """Report *results*; whether each fetch was still out. Bodies are bytes."""
        packed = [
            {**each, "body": base64.b64encode(each["body"]).decode()} if "body" in each else each
            for each in results
        ]
        found: list[bool] = self._call("complete", {"results": packed})
        return found

    def push(
        self, urls: Iterable[str], *, tag: str = "", depth: int = 0, referrer: str = "",
        first: bool = False,
    ) -> list[bool]:  # fmt: skip
        """Queue *urls*; whether each is new. *tag* comes back with each of them."""
        more = {"tag": tag, "depth": depth, "referrer": referrer, "first": first}
        found: list[bool] = self._call("push", {"urls": [{"url": url} | more for url in urls]})
        return found

    def fetch(self, url: str, *, wait: float = 60.0, body: bool = False) -> Row:
        """Have *url* fetched before all others of its host, and wait for what comes of it."""
        found: Row = self._call("fetch", {"url": url, "wait": wait, "body": body}, wait)
        if body and found.get("body"):
            found["body"] = base64.b64decode(found["body"])
        return found

    def extract(self, hosts: Iterable[str]) -> dict[str, int]:
        """Read the links of stored pages of *hosts* next; how many are unread of each."""
        found: dict[str, int] = self._call("extract", {"hosts": list(hosts)})
        return found

    def status(self) -> dict[str, int]:
        """How much there is to do."""
        found: dict[str, int] = self._call("status", None)
        return found

    def _call(self, name: str, given: Any, wait: float = 0.0) -> Any:
        connection = self._connection
        connection.timeout = wait + _MARGIN
        if connection.sock is not None:
            connection.sock.settimeout(connection.timeout)
        body = None if given is None else json.dumps(given)
        method, idle = "GET" if given is None else "POST", connection.sock is not None
        try:
            try:
                connection.request(method, f"/{name}", body, self._headers)
                answer = connection.getresponse()
            except (RemoteDisconnected, ConnectionError):
                if not idle:  # else the server has closed it meanwhile
                    raise
                connection.close()
                connection.request(method, f"/{name}", body, self._headers)
                answer = connection.getresponse()
            found = json.loads(answer.read())
        except (OSError, HTTPException, ValueError) as error:
            connection.close()
            raise UrlServerError(f"the server is away: {error}") from error
        if answer.status != 200:
            raise UrlServerError(found.get("error", ""), answer.status)
        return found
