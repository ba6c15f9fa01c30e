"""``scrapy frontier pause`` and ``resume``."""

from __future__ import annotations

import json
from pathlib import Path

from scrapy_spider_suite.commands.frontier_verbs import acting
from scrapy_spider_suite.operate.actions import whoami
from scrapy_spider_suite.operate.executors.one_job import ask_future_job
from scrapy_spider_suite.operate.verb import Invocation, Verb
from scrapy_spider_suite.store.job_directory import FOLDER, JobFile


def _pause(call: Invocation) -> int:
    return _ask(call, "pause", "the crawl that begins a job there waits")


def _resume(call: Invocation) -> int:
    return _ask(call, "resume", "the crawl that begins a job there goes on")


def _ask(call: Invocation, verb: str, then: str) -> int:
    """Have *verb* carried out: on the job, or *then*, as soon as there is one."""
    folder = Path(str(call.jobdir)) / FOLDER
    if call.redis is not None or JobFile.read(folder) is not None:
        return acting.act(call, verb, {})
    options = call.options
    ask_future_job(folder, verb, who=options.who or whoami(), why=options.why)
    said = f"{call.jobdir} holds no job yet: {then}"
    print(json.dumps({"ok": True, "said": said}) if call.json else said)
    return 0


VERBS = (
    Verb(
        "pause", "send nothing more until `resume`", _pause, acting.add_options,
        about=(
            "What is under way is fetched to its end. The crawl neither ends nor times out while\n"
            "it is paused. A pause is kept in the job: a crawl that is started again stays\n"
            "paused. Where DIR holds no job yet, the crawl that begins one there waits at once."
        ),
        examples=('pause -j crawls/news --why "maintenance of the proxy"',), exits=acting.EXITS,
    ),
    Verb(
        "resume", "continue a paused crawl", _resume, acting.add_options,
        examples=("resume -j crawls/news",), exits=acting.EXITS,
    ),
)  # fmt: skip
