"""Letters that are to be put into inboxes on a server, and those that lie there: what is due when.

``now`` is an argument, in seconds. Invariant: a letter that was put and is neither acknowledged nor
cleared comes up in `Posts.due` again and again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from scrapy_spider_suite.agents.letters import Packed

FIRST_PAUSE, MOST_PAUSE = 0.25, 10.0
"""Seconds until a letter that was not taken is offered again: at first, and at most."""

MOST_CHECK: Final = 600.0
"""Seconds between two looks whether a letter still lies where it was put, at most."""


@dataclass(slots=True, eq=False)
class Post:
    """A letter on its way."""

    to: str
    letter: Packed
    entry: bytes = b""
    """Where it lies; empty while it was put nowhere."""

    when: float = 0.0
    """When to put it somewhere, or to look whether it still lies there."""

    pause: float = FIRST_PAUSE
    check: float = 0.0


class Posts:
    """The letters for all receivers.

    Args:
        window: letters to one receiver that may be on their way.
        check: seconds until it is looked for the first time whether a letter still lies there;
            twice as long each further time.
    """

    def __init__(self, window: int, check: float) -> None:
        self._window = window
        self._check = check
        self._posts: dict[str, dict[tuple[int, int], Post]] = {}

    def __iter__(self) -> Iterator[Post]:
        for posts in self._posts.values():
            yield from posts.values()

    def __len__(self) -> int:
        return sum(map(len, self._posts.values()))

    def room(self, to: str) -> int:
        """How many letters `put` takes for *to*."""
        return self._window - len(self._posts.get(to, ()))

    def put(self, to: str, letter: Packed) -> bool:
        """Take *letter*, unless there is no room. One that is here already is here once."""
        posts = self._posts.setdefault(to, {})
        key = letter.first, letter.last
        if key not in posts:
            if len(posts) >= self._window:
                return False
            posts[key] = Post(to, letter)
        return True

    def due(self, now: float, most: int) -> list[Post]:
        """The first *most* letters that it is time for."""
        found = []
        for post in self:
            if post.when <= now:
                found.append(post)
                if len(found) == most:
                    break
        return found

    def wake(self) -> float | None:
        """When there is something due; None: never."""
        return min((post.when for post in self), default=None)

    def lies(self, post: Post, entry: bytes, now: float) -> bool:
        """It lies at *entry*: look again later. Whether it is somewhere else than it was."""
        moved = entry != post.entry
        post.check = self._check if moved else min(2 * post.check, MOST_CHECK)
        post.entry, post.when, post.pause = entry, now + post.check, FIRST_PAUSE
        return moved

    def refused(self, post: Post, now: float) -> None:
        """It was not taken: offer it again later."""
        post.when = now + post.pause
        post.pause = min(2 * post.pause, MOST_PAUSE)

    def acknowledged(self, to: str, first: int, last: int) -> bool:
        """Its receiver keeps it. False: it is not here, or not any more."""
        return self._posts.get(to, {}).pop((first, last), None) is not None

    def clear(self, to: str) -> int:
        """Forget the letters for *to*; how many they were."""
        return len(self._posts.pop(to, ()))
