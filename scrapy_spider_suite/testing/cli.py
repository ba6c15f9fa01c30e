"""The command line of the in-vitro web, made from the knobs of `config`.

A bad value gives one line and exit code 2.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.testing import config
from scrapy_spider_suite.testing.fake_web import FakeWeb, new_loop

ABOUT = (
    "Serve a web of many hosts on this machine only: a synthetic one, folders of files, or\n"
    "hostile answers, with a name server and a log of every request."
)

EXAMPLES = """\
examples:
  scrapy fakeweb                                  100 hosts of 100 pages on 10 addresses
  scrapy fakeweb --hosts 1000 --addresses 300 --latency 0.2 --jitter 0.1
  scrapy fakeweb --robots-crawl-delay 0.1 --crawl-delay 5 --retry-after 0.05
  scrapy fakeweb --host 5:pages=100000,latency=2  one large and slow host among the others
  scrapy fakeweb --hosts 0 --site docs=build/html --site wiki=/srv/wiki
  scrapy fakeweb --hosts 0 --hostile              every malicious answer; --list-hostile says which
  scrapy fakeweb --log arrivals.tsv --seconds 60  log each request, end after a minute
"""
USUAL_PORT = 8080

_OWN = ("config", "seconds", "status", "with_parent", "json", "list_hostile", "site", "host")


def add_options(parser: argparse.ArgumentParser) -> None:
    web = parser.add_argument_group("the web")
    for each in dataclasses.fields(config.FakeWebConfig):
        kind, about = each.metadata["kind"], each.metadata["help"]
        flag = "--" + each.name.replace("_", "-")
        if kind == "flag":
            web.add_argument(flag, action="store_const", const=True, help=about)
        elif kind != "table":
            default = each.default
            if default is not None and default != "":
                about += f" (default: {default})"
            web.add_argument(flag, metavar=config.KINDS[kind].metavar, help=about)
    web.add_argument("--site", metavar="NAME=DIR", action="append", default=[],
                     help="serve the files of DIR as the host NAME (NAME.test without a dot); "
                     "may be repeated")  # fmt: skip
    web.add_argument("--host", metavar="INDEX:TRAIT=VALUE[,…]", action="append", default=[],
                     help="set traits of one host (pages, latency, crawl_delay, address, …); "
                     "may be repeated")  # fmt: skip
    run = parser.add_argument_group("the run")
    run.add_argument("--config", metavar="JSON", help="all of the above as a JSON object")
    run.add_argument("--seconds", metavar="SECONDS", help="end after that time")
    run.add_argument("--status", metavar="SECONDS", default="5",
                     help="time between status lines, 0 = none (default: 5)")  # fmt: skip
    run.add_argument("--with-parent", action="store_true", help="end when the parent process ends")
    run.add_argument("--json", action="store_true",
                     help="print one line of JSON when ready, and no status lines")  # fmt: skip
    run.add_argument("--list-hostile", action="store_true", help="list the hostile answers and end")


def run(options: argparse.Namespace, leftover: Sequence[str] = ()) -> int:
    """Run until it is time to end; 0, or 2 for a bad option or a taken port (one line says it)."""
    try:
        if leftover:
            raise SettingsError(f"unknown option or argument: {leftover[0]}")
        if options.list_hostile:
            from scrapy_spider_suite.testing.hostile_site import listing

            print(listing())
            return 0
        session = _Run(options)
    except SettingsError as error:
        print(f"fakeweb: {error}", file=sys.stderr)
        return 2
    loop = new_loop()
    try:
        return loop.run_until_complete(session.run())
    finally:
        loop.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m scrapy_spider_suite.testing``; returns the exit code."""
    parser = _Parser(
        prog="python -m scrapy_spider_suite.testing", usage="%(prog)s [options]", description=ABOUT,
        epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    add_options(parser)
    options, leftover = parser.parse_known_args(arguments)
    return run(options, leftover)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"fakeweb: {message}\n")


def config_of(options: argparse.Namespace) -> config.FakeWebConfig:
    """The configuration of *options*, which override ``--config``. Raises `SettingsError`."""
    base = config.FakeWebConfig.from_json(options.config or "{}")
    own = {name: getattr(options, name, None) for name in vars(base).keys() - {*_OWN}}
    given: dict[str, Any] = {name: value for name, value in own.items() if value is not None}
    if options.site:
        given["sites"] = dict(base.sites) | dict(map(config.parse_site, options.site))
    if options.host:
        given["overrides"] = dict(base.overrides) | dict(map(config.parse_override, options.host))
    return config.FakeWebConfig.from_values(vars(base) | given)


class _Run:
    def __init__(self, options: argparse.Namespace) -> None:
        self._config = config_of(options)
        self._json = options.json
        self._with_parent = options.with_parent
        self._usual_port = options.port is None and self._config.port == 0 and not options.json
        self._status = _seconds("status", options.status)
        self._seconds = None if options.seconds is None else _seconds("seconds", options.seconds)
        self._parent = os.getppid()

    async def run(self) -> int:
        over = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, over.set)
        try:
            web = await self._start()
        except SettingsError as error:
            print(f"fakeweb: {error}", file=sys.stderr)
            return 2
        self._announce(web.ready)
        watchers = []
        if self._status and not self._json:
            watchers.append(loop.create_task(self._report(web)))
        if self._with_parent:
            watchers.append(loop.create_task(self._watch_parent(over)))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(over.wait(), self._seconds)
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
        await web.stop()
        if not self._json:
            print(_status_line(web, 0.0), file=sys.stderr)
        return 0

    async def _start(self) -> FakeWeb:
        if self._usual_port:
            web = FakeWeb(dataclasses.replace(self._config, port=USUAL_PORT), in_memory=False)
            with contextlib.suppress(SettingsError):
                await web.start()
                return web
        web = FakeWeb(self._config, in_memory=False)
        await web.start()
        return web

    async def _report(self, web: FakeWeb) -> None:
        before = 0
        while True:
            await asyncio.sleep(self._status)
            rate, before = (web.log.count - before) / self._status, web.log.count
            print(_status_line(web, rate), file=sys.stderr, flush=True)

    async def _watch_parent(self, over: asyncio.Event) -> None:
        while os.getppid() == self._parent:
            await asyncio.sleep(1)
        over.set()

    def _announce(self, ready: config.Ready) -> None:
        if self._json:
            print(ready.to_json(), flush=True)
            return
        # As -s takes it: a list on a command line has commas and no brackets.
        settings = {
            name: ",".join(value) if isinstance(value, list) else value
            for name, value in ready.settings.items()
        }
        lines = [
            f"fakeweb: {config.counted(ready.hosts, 'host')} on "
            f"{config.counted(ready.addresses, 'address', 'addresses')} "
            f"({ready.first_address} to {ready.last_address}), port {ready.http_port}",
            *(f"  start at     {seed}" for seed in ready.seeds[:5]),
            f"  name server  127.0.0.1:{ready.dns_port}",
            *([f"  arrival log  {ready.log}"] if ready.log else []),
            *(f"  note         {note}" for note in ready.notes),
            "Settings for a crawl of it:",
            *(f"  -s '{name}={value}'" for name, value in settings.items()),
            "Ctrl-C ends it.",
        ]
        print("\n".join(lines), flush=True)


def _status_line(web: FakeWeb, rate: float) -> str:
    return (
        f"fakeweb: {config.counted(web.log.count, 'request')}, {rate:,.0f}/s, "
        f"{config.counted(web.open_connections, 'open connection')}, "
        f"{config.counted(web.queries.count, 'DNS query', 'DNS queries')}"
    )


def _seconds(name: str, text: str) -> float:
    value = config.parse(name, "secs", text)
    config.check(name, "secs", value)
    return float(value)
