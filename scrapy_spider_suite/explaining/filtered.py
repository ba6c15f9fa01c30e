"""What the filters of a crawl say of a URL that nobody has asked for yet."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from scrapy_spider_suite.crawl.filters import FILTER_SETTINGS, FilterSet
from scrapy_spider_suite.explaining.terms import Terms
from scrapy_spider_suite.settings.declarations import full_name
from scrapy_spider_suite.urls.filters import Fact, LinkFacts, Stage

_MEANING = {
    Stage.SCHEDULE: "it is not queued",
    Stage.FETCH: "it is not fetched",
    Stage.PARSE: "its page is not parsed",
    Stage.FOLLOW: "links to it are not taken",
    Stage.STORE: "its items are not stored",
}


class Refusal(NamedTuple):
    """A filter that does not want it, *why* by its atoms, and *where* the first of them stands."""

    stage: Stage
    why: str
    where: str

    @property
    def final(self) -> bool:
        """Whether the URL is not fetched for it."""
        return self.stage not in (Stage.PARSE, Stage.STORE)


def refusals(
    filters: FilterSet, terms: Terms, stages: Collection[Stage], url: str, subject: LinkFacts,
    known: Collection[Fact],
) -> Iterator[Refusal]:  # fmt: skip
    """Each filter of *stages* that does not want the normal *url*, whatever is not *known*.

    A response is never known here: of filters that ask for it this tells only what goes for all.
    """
    for stage in stages:
        found = filters.of.get(stage)
        if found is None:
            continue
        where = terms.where(full_name(FILTER_SETTINGS[stage]))
        try:
            wanted, said = found.verdict(url, subject, known)
        except Exception as error:  # an atom of the project's own
            yield Refusal(stage, f"{_MEANING[stage]}: the filter fails at it ({error!r})", where)
            continue
        if wanted is False:
            why = " and ".join(map(str, said)) or "the filter is FALSE"
            place = f", line {said[0].atom.line}, column {said[0].atom.column}" if said else ""
            yield Refusal(stage, f"{_MEANING[stage]}: {why}", where + place)
