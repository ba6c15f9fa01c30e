"""Runs parts of Scrapy's own test suite on the suite's components.

``python tests/scrapy_tests/run.py [--only RUN] [pytest options]`` takes the tests out of the sdist
of the installed Scrapy, once, into a folder of the virtual environment, and runs them with the
suite in Scrapy's default settings. A failure that ``differences.txt`` does not name is an error;
so is a test that it names and that passes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent


class Run(NamedTuple):
    """Modules of Scrapy's tests, and the default settings that they run with."""

    modules: str
    settings: dict[str, Any]
    keyword: str = ""


ADDON = {
    "ADDONS": {"scrapy_spider_suite.Addon": 500},
    "SUITE_ALLOW_PRIVATE_ADDRESSES": True,
    # Failures are what many of the tests are about.
    "SUITE_BACKOFF_BASE": 0,
}
CRAWLS = """
    closespider core_scraper crawl crawler_runners downloadermiddleware engine engine_close_spider
    engine_download engine_loop engine_stop_download_bytes engine_stop_download_headers
    pipeline_crawl pipelines request_attribute_binding request_cb_kwargs request_left signals
    spider_crawl spider_start spidermiddleware spidermiddleware_output_chain
    spidermiddleware_process_start
"""
RUNS = {
    "spider": Run(
        CRAWLS
        + """core_downloader crawler downloader_handlers downloaderslotssettings
        extension_throttle logstats pipeline_files pipeline_media scheduler scheduler_base
        signalmanager spiderstate stats""",
        ADDON | {"SUITE_PROFILE": "spider"},
    ),
    "broad": Run(
        CRAWLS,
        # Lines that are folded are missed by tests that count them.
        ADDON
        | {
            "SUITE_PROFILE": "broad",
            "SUITE_HOST_DELAY": 0,
            "SUITE_IP_DELAY": 0,
            "SUITE_QUIET_LOG": False,
        },
        # SUITE_HOST_DELAY takes the place of DOWNLOAD_DELAY there.
        "not (fixed_delay or randomized_delay)",
    ),
    # Each test is a process, so a few; without Twisted, or with another reactor, the suite refuses.
    "processes": Run(
        "crawler_subprocess", ADDON, "(multi or shutdown or simple) and not reactorless"
    ),
    "handlers": Run("downloader_handler_contract", {"SUITE_ALLOW_PRIVATE_ADDRESSES": True}),
    "sieve": Run(
        "dupefilters", {"DUPEFILTER_CLASS": "scrapy_spider_suite.dupefilter.SieveDupeFilter"}
    ),
    "trie": Run(
        "dupefilters", {"DUPEFILTER_CLASS": "scrapy_spider_suite.dupefilter.TrieDupeFilter"}
    ),
}
"""Settings beside a run's name: what the add-on puts in place, or a component alone."""


def unpack_tests() -> Path:
    """Return the folder of the installed Scrapy's tests; download them if they are not there."""
    release = version("scrapy")
    folder = Path(sys.prefix) / "scrapy-tests" / release
    if folder.exists():
        return folder
    folder.parent.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=folder.parent) as name:
        temporary = Path(name)
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
             "--no-binary", "scrapy", "--dest", name, f"scrapy=={release}"],
            check=True,
        )  # fmt: skip
        (sdist,) = temporary.glob("*.tar.gz")
        with tarfile.open(sdist) as archive:
            archive.extractall(temporary / "unpacked", filter="data")
        (unpacked,) = (temporary / "unpacked").iterdir()
        # The tests are to import the Scrapy that is installed.
        (unpacked / "scrapy").rename(temporary / "scrapy")
        unpacked.rename(folder)
    return folder


def run_tests(folder: Path, name: str, options: list[str]) -> int:
    """Run the tests of the run called *name*; return pytest's exit code."""
    run = RUNS[name]
    print(f"== {name}", flush=True)
    (folder / "tests" / "test_downloader_handler_contract.py").write_text(
        (HERE / "handler_contract.py").read_text()
    )
    return subprocess.call(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
         # A test that fails closes nothing; Python would say so in whichever test runs later.
         "-W", "ignore::ResourceWarning", "-p", "no:unraisableexception",
         "-p", "known_differences", f"--differences-of={name}", "--tb=short",
         "-m", "not requires_internet and not requires_mitmproxy",
         *(["-k", run.keyword] if run.keyword else []),
         *options, *(f"tests/test_{module}.py" for module in run.modules.split())],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{folder}",
             "SCRAPY_DEFAULT_SETTINGS": json.dumps(run.settings)},
    )  # fmt: skip


def main() -> int:
    """Run what the command line asks for; return 0 if there is no new difference."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=RUNS, action="append", help="one of the runs")
    arguments, options = parser.parse_known_args()
    folder = unpack_tests()
    return max(run_tests(folder, name, options) for name in arguments.only or RUNS)


if __name__ == "__main__":
    sys.exit(main())
