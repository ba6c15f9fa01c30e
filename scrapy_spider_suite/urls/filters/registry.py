"""The atoms that there are, each with what it needs to know and what it means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scrapy_spider_suite.urls.filters.subject import KNOWN, Fact, Stage, Test


@dataclass(frozen=True, slots=True)
class Given:
    """What filters have besides their text: *country_of* gives that of a numeric address."""

    country_of: Callable[[str], str] | None = None


Make = Callable[[str, Given], Test]
"""From an argument to the test; raises `ValueError` that says what was expected."""


@dataclass(frozen=True, slots=True)
class AtomKind:
    """One kind of atom: ``Name(argument)`` as *usage*, an *example*, the *meaning* in words.

    *needs* are the facts that it looks at beside the URL.
    """

    usage: str
    example: str
    meaning: str
    needs: frozenset[Fact]
    make: Make

    @property
    def name(self) -> str:
        """What it is called."""
        return self.usage.partition("(")[0]

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Those at which it can be asked."""
        return tuple(stage for stage, known in KNOWN.items() if self.needs <= known)


ATOMS: dict[str, AtomKind] = {}
"""Every kind of atom by its name."""


def register(kind: AtomKind) -> None:
    """Make *kind* known to all filters that are read from now on; of one name the last counts.

    A project calls it for atoms of its own, in a module that its settings import.
    """
    ATOMS[kind.name] = kind


def atom(usage: str, example: str, meaning: str, *needs: Fact) -> Callable[[Make], Make]:
    """Register the decorated maker; see `AtomKind`."""

    def add(make: Make) -> Make:
        register(AtomKind(usage, example, meaning, frozenset(needs), make))
        return make

    return add
