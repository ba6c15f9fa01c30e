"""Headless Chromium for tests, with its console, its requests and axe-core."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By

_OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--force-prefers-reduced-motion", "--hide-scrollbars",
)  # fmt: skip


def missing() -> str:
    """Why no browser can be used here; "": it can."""
    names = [name for name in ("chromium", "chromedriver") if which(name) is None]
    return f"needs {' and '.join(names)}" if names else ""


class Browser(Chrome):
    """A window of Chromium."""

    def resize(self, width: int, height: int = 900) -> None:
        """Give the page this width, as on a phone."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def darken(self, dark: bool = True) -> None:
        """Prefer dark colours."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def text(self, selector: str) -> str:
        """What the page shows there; "": nothing, or it is hidden."""
        found = self.execute_script(
            "const found = document.querySelector(arguments[0]);"
            "return found?.checkVisibility() ? found.innerText : ''", selector,
        )  # fmt: skip
        return str(found)

    def wait_for(self, selector: str, pattern: str, seconds: float = 30.0) -> None:
        """Wait until what the page shows there has the *pattern*, a regular expression."""
        deadline = time.monotonic() + seconds
        while not re.search(pattern, shown := self.text(selector), re.DOTALL):
            assert time.monotonic() < deadline, f"{selector} has no {pattern!r}: {shown!r}"
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        """Click at it, in the middle of the window: a header may cover what lies at its edge."""
        try:
            found = self.find_element(By.CSS_SELECTOR, selector)
            self.execute_script("arguments[0].scrollIntoView({block: 'center'})", found)
            found.click()
        except StaleElementReferenceException:  # the page has replaced it
            self.click(selector)

    def write(self, selector: str, text: str) -> None:
        """Write *text* into an empty field."""
        field = self.find_element(By.CSS_SELECTOR, selector)
        field.clear()
        field.send_keys(text)

    def console(self) -> list[str]:
        """Errors and warnings since the last call."""
        return [row["message"] for row in self.get_log("browser")]  # type: ignore[no-untyped-call]

    def foreign_requests(self, host: str) -> list[str]:
        """URLs that were asked for elsewhere than at *host*, since the last call."""
        sent = []
        for row in self.get_log("performance"):  # type: ignore[no-untyped-call]
            message = json.loads(row["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                sent.append(message["params"]["request"]["url"])
        return [url for url in sent if urlsplit(url).netloc != host
                and url.startswith(("http", "ws"))]  # fmt: skip

    def serious_findings(self) -> list[str]:
        """What axe-core has against the page, if it is serious."""
        spec = find_spec("axe_core_python")
        assert spec is not None
        assert spec.origin is not None
        self.execute_script((Path(spec.origin).parent / "axe.min.js").read_text())
        found: dict[str, Any] = self.execute_async_script(
            "axe.run().then(arguments[0], error => arguments[0]({violations: [], error}))"
        )
        assert "error" not in found, found
        return [
            f"{each['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
            for each in found["violations"] if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]  # fmt: skip

    def save_page(self, path: Path) -> None:
        """Save the whole page as an image."""
        size = self.execute_script("return document.documentElement.scrollHeight")
        width = self.execute_script("return innerWidth")
        self.resize(width, max(int(size), 600))
        assert self.save_screenshot(str(path))


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Open Chromium with a profile of its own."""
    with TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        options = ChromeOptions()
        for each in (*_OPTIONS, f"--user-data-dir={profile}"):
            options.add_argument(each)
        options.binary_location = which("chromium") or ""
        options.set_capability("goog:loggingPrefs", {"browser": "WARNING", "performance": "ALL"})
        browser = Browser(options, ChromeService(which("chromedriver")))
        try:
            yield browser
        finally:
            browser.quit()
