"""Name servers that do not answer are said once in the log, and once when they are back."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from support.crawls import loopback_settings, start
from support.name_servers import name_server
from support.names import Setting
from support.projects import Project, scrapy
from support.running_crawl import until

SPIDER = """
import scrapy

class Names(scrapy.Spider):
    name = "names"
    custom_settings = {"RETRY_ENABLED": False}

    async def start(self):
        yield self.ask(0)

    def ask(self, number):
        hosts = ["silent1", "silent2", "silent3", "other1", "silent4", "other2", "other3"]
        if number < len(hosts):
            url = f"http://{hosts[number]}.example/"
            return scrapy.Request(url, errback=self.failed, cb_kwargs={"number": number})

    def failed(self, failure):
        yield self.ask(failure.request.cb_kwargs["number"] + 1)
"""


def test_silence_is_said_once(tmp_path: Path) -> None:
    """Which servers, and by which setting; a single name without an answer afterwards is no news.
    """
    project = Project(tmp_path, SPIDER_MODULES=["project.names"], LOG_LEVEL="INFO")
    (tmp_path / "project" / "names.py").write_text(SPIDER)
    with name_server() as server:
        settings = {Setting.DNS_SERVERS: server, Setting.DNS_TIMEOUT: 0.5}
        done = project.scrapy("crawl", "names", **settings)
    assert done.returncode == 0, done.stderr[-3000:]
    said = [line for line in done.stderr.splitlines() if " WARNING: " in line]
    silent = [line for line in said if "No name server answers" in line]
    back = [line for line in said if "Name servers answer again" in line]
    assert (len(silent), len(back)) == (1, 1), done.stderr[-3000:]
    assert server in silent[0]
    assert Setting.DNS_SERVERS in silent[0]
    assert said.index(silent[0]) < said.index(back[0])


def test_silence_is_told_to_whoever_asks_why_a_crawl_waits(tmp_path: Path) -> None:
    """In ``status`` and ``why``, with the servers that do not answer."""
    job = tmp_path / "job"
    with socket.socket(type=socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        server = f"127.0.0.1:{taken.getsockname()[1]}"
        settings = {Setting.DNS_SERVERS: [server], Setting.DNS_TIMEOUT: 0.5, "JOBDIR": str(job)}
        seeds = "http://silent1.example/,http://silent2.example/"
        given = loopback_settings(**settings)
        process = start("support.spiders.Bulk", given, tmp_path, seeds=seeds)
        try:
            until(lambda: "No name server answers" in (tmp_path / "log").read_text())

            def says(verb: str, *arguments: str) -> str:
                return scrapy(tmp_path, "frontier", verb, "-j", str(job), *arguments).stdout

            until(lambda: "name servers" in says("status"), within=10.0)
            for verb in ("status", "why"):
                [line] = [each for each in says(verb).splitlines() if each.startswith("name s")]
                assert "none answers" in line
                assert server in line
                assert Setting.DNS_SERVERS in line
                assert json.loads(says(verb, "--json"))["silent_name_servers"] == [server]
        finally:
            process.kill()
            process.wait(30)
    assert "name servers" not in says("status")  # of a crawl that does not run


def test_nothing_is_said_of_name_servers_that_answer(tmp_path: Path) -> None:
    """Not of a single name without an answer, either."""
    job = tmp_path / "job"
    with name_server() as server:
        settings = {Setting.DNS_SERVERS: [server], Setting.DNS_TIMEOUT: 0.5, "JOBDIR": str(job)}
        seeds = "http://other.example/,http://silent.example/"
        given = loopback_settings(**settings)
        process = start("support.spiders.Bulk", given, tmp_path, seeds=seeds)
        try:
            until(lambda: "1 host waits: 1 back-off" in scrapy(
                tmp_path, "frontier", "status", "-j", str(job)
            ).stdout)  # fmt: skip
            said = scrapy(tmp_path, "frontier", "status", "-j", str(job), "--json").stdout
            assert "name_servers" not in said
        finally:
            process.kill()
            process.wait(30)
