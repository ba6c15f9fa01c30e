"""``scrapy frontier pause`` and ``resume``."""

from __future__ import annotations

from scrapy_spider_suite.commands.frontier_verbs import acting
from scrapy_spider_suite.commands.verb import Call, Verb


def _pause(call: Call) -> int:
    return acting.act(call, "pause", {})


def _resume(call: Call) -> int:
    return acting.act(call, "resume", {})


VERBS = (
    Verb(
        "pause", "send nothing more until `resume`", _pause, acting.add_options,
        about=(
            "What is under way is fetched to its end. The crawl neither ends nor times out while\n"
            "it is paused. A pause is kept in the job: a crawl that is started again stays paused."
        ),
        examples=('pause -j crawls/news --reason "maintenance of the proxy"',), exits=acting.EXITS,
    ),
    Verb(
        "resume", "go on after `pause`", _resume, acting.add_options,
        examples=("resume -j crawls/news",), exits=acting.EXITS,
    ),
)  # fmt: skip
