"""Lines of the log that are alike are written a few times, then counted."""

from __future__ import annotations

from pathlib import Path

from support.crawls import crawl, loopback_settings
from support.names import Setting
from support.websites import Site, links, running


def test_a_folded_line_shows_its_last_record(tmp_path: Path) -> None:
    """And not the format that the records were made from."""
    missing = [f"/missing/{number}" for number in range(20)]
    with running(Site({"/": links(*missing)})) as site:
        settings = loopback_settings(**{
            Setting.QUIET_LOG: True, Setting.HOST_DELAY: 0.01, Setting.IP_DELAY: 0,
        })  # fmt: skip
        ended = crawl("support.spiders.Ordinary", settings, tmp_path, start=f"{site.url}/")
        last = [path for path in site.paths() if path in missing][-1]
    [line] = [line for line in ended.log.splitlines() if "more like this" in line]
    assert "10 more like this" in line
    assert f"{site.url}{last}>" in line
    assert "%(" not in line
