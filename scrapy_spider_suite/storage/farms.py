"""Farms: registered domains whose hosts all say the same, however many there are."""

from __future__ import annotations

from scrapy_spider_suite.store.interface import KV
from scrapy_spider_suite.urls.traps import FRESH

_SUSPECTS = 20_000
"""Domains of which it is counted how many hosts said the same; beyond that all are forgotten."""
_FARMS = 100_000
"""Farms that are remembered, the last ones."""
_FARM = b"."
"""Begins the key of a farm; no host begins with a dot."""


class Farms:
    """The farms of a job, in *kv*; true while there is any."""

    def __init__(self, kv: KV) -> None:
        self._kv = kv
        self._suspects: dict[str, int] = {}
        self._domains = dict.fromkeys(key[1:].decode() for key, _ in kv.items(_FARM))

    def __bool__(self) -> bool:
        return bool(self._domains)

    def __contains__(self, domain: str) -> bool:
        return domain in self._domains

    def saw(self, domain: str, limit: int, *, same: bool) -> None:
        """The first page of a host of *domain* said the *same* as that of another, or did not.

        It is a farm when *limit* more said the same than others make up for, `FRESH` each.
        """
        count = self._suspects.get(domain, 0)
        count = count + 1 if same else count - FRESH
        if count <= 0:
            self._suspects.pop(domain, None)
            return
        if len(self._suspects) >= _SUSPECTS:
            self._suspects.clear()
        self._suspects[domain] = count
        if count >= limit and domain not in self._domains:
            if len(self._domains) >= _FARMS:
                self.forget(next(iter(self._domains)))
            self._domains[domain] = None
            self._kv.put(_FARM + domain.encode(), b"")

    def forget(self, domain: str) -> bool:
        """*domain* is none, as far as is known; whether it was."""
        self._suspects.pop(domain, None)
        if domain not in self._domains:
            return False
        del self._domains[domain]
        self._kv.delete(_FARM + domain.encode())
        return True
