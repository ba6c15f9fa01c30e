"""A crawl that must not start: an exception in a script, one line and an exit code on a terminal.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support import forks
from support.forks import LEAN
from support.names import Component, Reason, Setting
from support.projects import environment, scrapy

SCRIPT = f"""
import asyncio, json, sys
from scrapy import Spider, crawler, signals
from scrapy.utils.misc import load_object
from scrapy.utils.reactor import install_reactor

api, wrong, right = sys.argv[1], *map(json.loads, sys.argv[2:])
SuiteError = load_object({Component.SUITE_ERROR!r})
if api.endswith("Runner"):
    install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")
runner = getattr(crawler, api)(wrong["project"])
tell = lambda *words: print(*words, flush=True)

def make(case):
    base = load_object(case["base"])
    made = crawler.Crawler(
        type("Made", (base,), {{"name": "made", "custom_settings": case["spider"]}}),
        runner.settings, **({{"init_reactor": True}} if api == "CrawlerProcess" else {{}}),
    )
    made.signals.connect(lambda reason: tell("ended:", reason), signals.spider_closed, weak=False)
    return made

def refused(error):
    tell("refused:", isinstance(error, SuiteError), type(error).__name__, error)

async def sequence():
    # A script goes on after a refusal: the same job, with what was wrong put right.
    for case in (wrong, right):
        try:
            done = runner.crawl(make(case), **case["arguments"])
            await (done if api.startswith("Async") else done.asFuture(asyncio.get_running_loop()))
        except Exception as error:
            refused(error)

if api.endswith("Runner"):
    from twisted.internet import reactor
    from twisted.internet.defer import Deferred
    def begin():
        done = Deferred.fromFuture(asyncio.ensure_future(sequence()))
        done.addBoth(lambda result: (tell("result:", result), reactor.stop()))
    reactor.callWhenRunning(begin)
    reactor.run()
else:
    done = runner.crawl(make(wrong), **wrong["arguments"])
    if api.startswith("Async"):
        done.add_done_callback(lambda done: refused(done.exception()))
    else:
        done.addErrback(lambda failure: refused(failure.value))
    runner.start()
tell("the script goes on")
"""
APIS = ["AsyncCrawlerProcess", "AsyncCrawlerRunner", "CrawlerProcess", "CrawlerRunner"]
OTHER = {"REQUEST_FINGERPRINTER_CLASS": "other.Fingerprinter"}
ADDON = {"ADDONS": {Component.ADDON: 500}}


def case(
    base: str = "scrapy.Spider", spider: dict[str, Any] | None = None, *, addon: bool = True,
    seeds: str | None = None, **project: Any,
) -> dict[str, Any]:  # fmt: skip
    """A crawl of no page by a spider of the class *base* with settings of its own, *spider*."""
    settings = {"EXTENSIONS_BASE": LEAN, "TELNETCONSOLE_ENABLED": False, **project}
    return {
        "base": base, "spider": spider or {}, "project": settings | (ADDON if addon else {}),
        "arguments": {} if seeds is None else {"seeds": seeds},
    }  # fmt: skip


DELAY = f"{Setting.HOST_DELAY} = -1: expected"
CASES = {
    "setting of the project": (case(**{Setting.HOST_DELAY: -1}), "SettingsError", DELAY),
    "setting of the spider": (case(spider={Setting.HOST_DELAY: -1}), "SettingsError", DELAY),
    "seeds": (
        case(Component.BROAD_SPIDER, seeds="missing.txt"), "SettingsError",
        "'missing.txt' is no URL, and there is no such file",
    ),
    "seeds of the spider": (
        case(Component.BROAD_SPIDER, {Setting.SEEDS: "missing.txt"}), "SettingsError",
        "'missing.txt' is no URL, and there is no such file",
    ),
    "job": (case(JOBDIR="file/job"), "JobError", "JOBDIR = 'file/job' cannot be used"),
    "packs": (
        case(spider={"JOBDIR": "job", Setting.PACKS_DIR: "file/packs"}), "SettingsError",
        "file/packs",
    ),
    "no add-on": (
        case(Component.BROAD_SPIDER, addon=False), "SettingsError",
        f"add {Component.ADDON} to ADDONS",
    ),
    "dupefilter": (
        case(addon=False, DUPEFILTER_CLASS=Component.TRIE_DUPEFILTER, **OTHER), "SettingsError",
        "TrieDupeFilter knows requests by their URLs",
    ),
}  # fmt: skip
RIGHT = case(spider={Setting.HOST_DELAY: 1, "JOBDIR": "job", **ADDON}, addon=False)


def write_files(folder: Path) -> None:
    """Write to *folder* what the cases name."""
    (folder / "file").write_text("no folder")
    (folder / "other.py").write_text(
        "from scrapy.utils.request import RequestFingerprinter\n"
        "class Fingerprinter(RequestFingerprinter): pass\n"
    )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("api", APIS)
def test_a_script_gets_an_exception(api: str, name: str, tmp_path: Path) -> None:
    """Out of ``crawl()``, of the suite's tree; the script goes on, and so do its other crawls."""
    wrong, kind, words = CASES[name]
    write_files(tmp_path)
    done = forks.run(
        SCRIPT, api, json.dumps(wrong), json.dumps(RIGHT), folder=tmp_path,
        environment=environment(),
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[-1:] == ["the script goes on"], (done.returncode, done.stderr[-3000:])
    refusals = [line for line in lines if line.startswith("refused:")]
    assert len(refusals) == 1, done.stdout
    assert refusals[0].startswith(f"refused: True {kind} ")
    assert words in refusals[0]
    if api.endswith("Runner"):
        # A job that a refused crawl has begun is complete, not without pages.
        assert lines[-3] in (f"ended: {Reason.NO_PAGES}", "ended: finished"), done.stderr[-3000:]
        assert lines[-2] == "result: None"
    assert "never retrieved" not in done.stderr
    assert "Unhandled" not in done.stderr
    # Scrapy closes what was never open, and complains; nothing of ours does.
    assert "/scrapy_spider_suite/extensions/" not in done.stderr


@pytest.mark.parametrize(("command", "old"), [("crawl", False), ("runspider", True)])
@pytest.mark.parametrize("name", CASES)
def test_a_command_says_one_line(name: str, command: str, old: bool, tmp_path: Path) -> None:
    """And ends with exit code 2, with both of Scrapy's crawler processes; nothing beside it warns,
    or names a scheduler that nobody asked for."""
    wrong, _, words = CASES[name]
    write_files(tmp_path)
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = project\n")
    settings = {"SPIDER_MODULES": ["spiders"], "FORCE_CRAWLER_PROCESS": old, **wrong["project"]}
    lines = [f"{name} = {value!r}\n" for name, value in settings.items()]
    (tmp_path / "project.py").write_text("".join(lines))
    module, _, base = wrong["base"].rpartition(".")
    (tmp_path / "spiders.py").write_text(
        f"import {module}\nclass Made({module}.{base}):\n    name = 'made'\n"
        f"    custom_settings = {wrong['spider']!r}\n"
    )
    arguments = [f"-a{name}={value}" for name, value in wrong["arguments"].items()]
    spider = {"crawl": "made", "runspider": "spiders.py"}[command]
    done = scrapy(tmp_path, command, spider, *arguments)
    assert done.returncode == 2, done.stderr[-3000:]
    assert done.stdout == ""
    assert re.findall(r" (WARNING|CRITICAL): ", done.stderr) in ([], ["CRITICAL"]), done.stderr
    assert old or "'SCHEDULER': <class" not in done.stderr
    assert sum(words in line for line in done.stderr.splitlines()) == 1, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    assert " ERROR: " not in done.stderr
