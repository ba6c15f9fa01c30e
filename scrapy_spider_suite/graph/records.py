"""What a graph is made of: pages and their links, as the records of packs tell them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

KINDS = ("a", "frame", "redirect", "canonical")
"""How a page leads to another. What other elements show (images) is no edge."""


class Link(NamedTuple):
    """A link to the normal *url*. *nofollow*: the page asks not to be taken as recommending it."""

    url: str
    kind: str = "a"
    nofollow: bool = False


@dataclass(frozen=True, slots=True)
class PageRecord:
    """A page that was fetched: its normal *url*, its *links*, and *when* (seconds, wall).

    Of several records of one page, from refetches, kills or several agents, the newest counts.
    """

    url: str
    links: Sequence[Link]
    when: float = 0.0
