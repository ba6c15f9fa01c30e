"""A disk with too little room is noticed before anything is fetched."""

from __future__ import annotations

import signal
from pathlib import Path

from support.crawls import loopback_settings, start
from support.names import Setting
from support.running_crawl import until
from support.websites import Site, links, running


def test_no_fetch_without_room(tmp_path: Path) -> None:
    """The crawl pauses with the first look at the disk, and the server sees no request."""
    settings = loopback_settings(**{
        "JOBDIR": str(tmp_path / "job"), "ROBOTSTXT_OBEY": False, Setting.MIN_FREE: "1000000G",
        Setting.HOST_DELAY: 0, Setting.IP_DELAY: 0,
    })  # fmt: skip
    log = tmp_path / "log"
    with running(Site({"/": links("/a"), "/a": links()})) as site:
        process = start("support.spiders.Bulk", settings, tmp_path, seeds=f"{site.url}/")
        try:
            until(lambda: Setting.MIN_FREE in log.read_text() or process.poll() is not None)
            process.send_signal(signal.SIGTERM)
            process.wait(30)
        finally:
            if process.poll() is None:
                process.kill()
        assert site.paths() == []
    assert "the crawl pauses until there is room" in log.read_text()
