"""Makes the pictures of ``scrapy dashboard`` in ``docs/watching/``.

    python docs/screenshots.py      # some five minutes

It crawls the in-vitro web, and needs the tests' dependencies, chromium and chromedriver.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from scrapy_spider_suite.testing import FakeWebConfig

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from support.browser import Browser, open_browser  # noqa: E402
from support.command_line import process_of  # noqa: E402
from support.projects import environment  # noqa: E402
from support.running_crawl import running  # noqa: E402
from support.webs import FakeWebProcess  # noqa: E402

SECONDS = 240.0  # of crawl that the charts show
WEB = FakeWebConfig(
    hosts=300, addresses=120, pages=2_000, degree=14, latency=0.15, jitter=0.15, errors=0.04,
    robots_crawl_delay=0.1, crawl_delay=6, retry_after=0.05,
)  # fmt: skip
SETTINGS = {
    "SUITE_HOST_DELAY": 2.0, "SUITE_IP_DELAY": 0.5, "SUITE_FETCH_LOG": True,
    "SUITE_LINK_STATS": ["hosts", "links", "out", "external"],
}  # fmt: skip
PICTURES = {
    "page": (1280, 1180, False), "page-dark": (1280, 1180, True), "page-phone": (375, 1180, False),
}  # fmt: skip
"""Width and height, and whether it is dark."""


def save(browser: Browser, name: str) -> None:
    """Save the top of the page, in 256 colours: a third of the bytes."""
    width, height, dark = PICTURES[name]
    browser.darken(dark)
    browser.resize(width, height)
    time.sleep(2.0)
    path = HERE / "watching" / f"{name}.png"
    browser.save_screenshot(str(path))
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    """Crawl, look, save."""
    with TemporaryDirectory() as folder, FakeWebProcess(WEB) as web:
        here = Path(folder)
        packs = {"SUITE_PACKS_DIR": str(here / "packs")}
        with running(web, here, **SETTINGS, **packs):
            command = [*process_of("dashboard"), "job", "--port", "0"]
            shows = subprocess.Popen(
                command, stdout=subprocess.PIPE, text=True, cwd=here, env=environment()
            )
            try:
                assert shows.stdout is not None
                url = shows.stdout.readline().split()[0]
                time.sleep(SECONDS)
                with open_browser() as browser:
                    browser.get(url)
                    browser.wait_for("#recent", "http")
                    for name in PICTURES:
                        save(browser, name)
            finally:
                shows.terminate()
                shows.wait()


if __name__ == "__main__":
    main()
