"""Name servers that do not answer are said once in the log, and once when they are back."""

from __future__ import annotations

from pathlib import Path

from projects import Project
from support.name_servers import name_server
from support.names import Setting

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
