"""The engine's set of requests in progress, which says when one has left."""

from __future__ import annotations

from collections.abc import Callable

from scrapy import Request


class InProgress(set[Request]):
    """The requests that the engine has in progress; says when one has left."""

    def __init__(self, left: Callable[[Request], None]) -> None:
        super().__init__()
        self._left = left

    def remove(self, request: Request) -> None:
        """See `set.remove`."""
        super().remove(request)
        self._left(request)
