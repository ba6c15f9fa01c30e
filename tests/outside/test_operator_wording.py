"""What the commands take and say at night: comments, hosts with a port, refusals, counts."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from support.names import Setting
from support.projects import Project
from support.websites import Site, links, running

SPIDER = """
import scrapy

class PageSpider(scrapy.Spider):
    name = "page"
    start_urls = ["{url}/"]

    def parse(self, response):
        yield from response.follow_all(css="a")
"""
WRONG_PLURAL = re.compile(
    r"(?<![\d.,])1 (?:\w+ )?(?:URLs|pages|hosts|seeds|lines|rows|packs|addresses|requests)\b"
    r"|(?<![\d.,])1 URL (?:that [^;]* )?are\b|\b1 of them\b| \(\)"
)


class Crawled:
    """A project, the job of a crawl of two pages in it, and the log of that."""

    def __init__(self, folder: Path) -> None:
        self.project = Project(folder, SPIDER_MODULES=["project.spiders"], JOBDIR="job")
        spiders = folder / "project" / "spiders"
        spiders.mkdir()
        (spiders / "__init__.py").touch()
        with running(Site({"/": links("/1"), "/1": links()})) as site:
            (spiders / "page.py").write_text(SPIDER.format(url=site.local))
            done = self.project.scrapy(
                "crawl", "page", **{Setting.PACKS_DIR: "packs", Setting.HOST_DELAY: 0}
            )
        assert done.returncode == 0, done.stderr
        self.log = done.stderr
        self.host = site.local.removeprefix("http://")

    def __call__(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run ``scrapy`` with *arguments*; it has to end with *code*."""
        done = self.project.scrapy(*arguments)
        assert done.returncode == code, done.stdout + done.stderr
        return done


@pytest.fixture(scope="module")
def crawled(tmp_path_factory: pytest.TempPathFactory) -> Crawled:
    """The crawl, made once."""
    return Crawled(tmp_path_factory.mktemp("crawled"))


@pytest.mark.slow
def test_a_comment_is_why_and_may_be_left_out(crawled: Crawled) -> None:
    """With each verb that acts; the audit log keeps it."""
    crawled("frontier", "add", "http://a.test/")
    verbs = [
        ["block", "a.test"], ["unblock", "a.test"], ["pause"], ["resume"],
        ["refetch", "a.test"], ["retry", "--reason", "timeout"], ["drop", "a.test", "--yes"],
    ]  # fmt: skip
    for verb in verbs:
        crawled("frontier", *verb)
    for verb in verbs:
        crawled("frontier", *verb, "--why", f"said of {verb[0]}")
    rows = [json.loads(line) for line in crawled("frontier", "audit", "--json").stdout.splitlines()]
    kept = {row["why"] for row in rows}
    assert kept == {"", *(f"said of {verb[0]}" for verb in verbs)}
    refused = crawled("frontier", "block", "a.test", "--reason", "a comment", code=2)
    assert "unrecognized arguments: --reason" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "verb", ["why HOST", "urls HOST", "block HOST", "unblock HOST", "refetch HOST",
             "retry HOST --reason timeout", "block HOST --dry-run", "drop HOST --dry-run"],
)  # fmt: skip
def test_a_host_may_have_its_port(crawled: Crawled, verb: str) -> None:
    """As it is copied out of a URL or a log; the answer is that of the host."""
    words = ["frontier", *verb.split()]
    if verb == "unblock HOST":  # another process may run the test that blocks it
        crawled("frontier", "block", crawled.host)
    with_port = crawled(*[word.replace("HOST", crawled.host) for word in words])
    name = crawled.host.partition(":")[0]
    if verb in ("why HOST", "urls HOST"):
        assert with_port.stdout == crawled(*[word.replace("HOST", name) for word in words]).stdout
    assert crawled.host not in with_port.stdout.replace(f"http://{crawled.host}", "")


@pytest.mark.slow
def test_pages_of_a_host_with_its_port(crawled: Crawled) -> None:
    """``--host`` of ``scrapy packs`` takes it, too."""
    listed = crawled("packs", "ls", "packs", "--pages", "--host", crawled.host)
    assert len(listed.stdout.splitlines()) >= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("DOWNLOAD_DELAY", Setting.HOST_DELAY),
        ("CONCURRENT_REQUESTS_PER_DOMAIN", Setting.HOST_CONCURRENCY),
        ("CLOSESPIDER_PAGECOUNT", Setting.MAX_PAGES),
    ],
)
def test_a_setting_of_scrapys_names_ours(crawled: Crawled, name: str, use: str) -> None:
    """``set`` says which one to use instead."""
    refused = crawled("frontier", "set", name, "3", code=1)
    assert f"use {use}" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize("setting", [f"{Setting.INDEX}=True", f"{Setting.PACKS_UPLOAD}=file:///nowhere"])
def test_a_setting_that_needs_packs_says_so(crawled: Crawled, setting: str) -> None:
    """The message names the setting that lacks, and asks for no other value."""
    refused = crawled("crawl", "page", "-s", "JOBDIR=none", "-s", setting, code=2)
    [line] = [line for line in refused.stderr.splitlines() if f"needs {Setting.PACKS_DIR}" in line]
    assert "expected" not in line


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    ["frontier hosts --limit x", "frontier urls", "packs export packs", "cluster up 0 page",
     "frontier hosts --nope", "frontier bogus", "packs cat", "cluster bogus"],
)  # fmt: skip
def test_a_refusal_names_the_command_once(crawled: Crawled, words: str) -> None:
    """As the last line, without the usage of another command before it."""
    name, verb, *_ = words.split()
    refused = crawled(*words.split(), code=2)
    line = refused.stderr.splitlines()[-1]
    known = verb != "bogus"
    assert line.startswith(f"scrapy {name} {verb}: error: " if known else f"scrapy {name}: error: ")
    assert line.count("scrapy") == 1
    assert f"usage: scrapy {name} {verb if known else ''}" in refused.stderr


@pytest.mark.slow
def test_one_is_singular(crawled: Crawled) -> None:
    """In the log and in what commands print."""
    (crawled.project.folder / "seeds.txt").write_text("http://one.test/\n:\n")
    said = [
        crawled.log,
        crawled("frontier", "add", "seeds.txt").stdout,
        crawled("frontier", "refetch", f"http://{crawled.host}/1").stdout,
        crawled("frontier", "block", "one.test", "--drop", "--yes").stdout,
        crawled("frontier", "refetch", "one.test").stdout,
        crawled("frontier", "block", "one.test", "--drop", "--yes").stdout,
        crawled("frontier", "unblock", "one.test").stdout,
        crawled("frontier", "retry", "one.test", "--reason", "barred").stdout,
        crawled("frontier", "drop", "one.test", "--yes").stdout,
        crawled("packs", "verify", "packs").stdout,
    ]
    assert "1 URL taken, 1 new, 1 line is no seed: " in said[1]
    assert "1 URL is fetched again" in said[4]
    assert "1 URL that failed (barred) is tried again" in said[7]
    for text in said:
        assert WRONG_PLURAL.findall(text) == [], text
    assert any("1 URL" in text for text in said)
    assert "1 pack:" in said[-1]


@pytest.mark.slow
@pytest.mark.parametrize("subject", ["nobody.test", "http://nobody.test/a/"])
def test_a_host_that_was_never_met_is_not_dropped(crawled: Crawled, subject: str) -> None:
    """A typo does not look like success: `drop` and its count say what `why` says."""
    words = "scrapy frontier: the job has never met the host 'nobody.test'\n"
    assert crawled("frontier", "why", "nobody.test", code=2).stderr == words
    assert crawled("frontier", "drop", subject, "--dry-run", code=2).stderr == words
    done = crawled("frontier", "drop", subject, "--yes", code=2)
    assert (done.stdout, done.stderr) == ("", words)
    [row] = crawled("frontier", "drop", subject, "--yes", "--json", code=2).stdout.splitlines()
    assert json.loads(row)["known"] is False


@pytest.mark.slow
def test_below_a_url_may_be_nothing(crawled: Crawled) -> None:
    """Of a host that was met."""
    done = crawled("frontier", "drop", f"http://{crawled.host}/nothing/", "--yes", code=2)
    assert f"the job knows nothing below http://{crawled.host}/nothing/" in done.stderr


@pytest.mark.slow
def test_what_is_known_is_dropped(crawled: Crawled) -> None:
    """A host with a seed alone, or a block alone; and once more, as after a full disk."""
    crawled("frontier", "add", "http://seed.test/")
    crawled("frontier", "block", "blocked.test")
    for host in ("seed.test", "blocked.test", "seed.test"):
        assert crawled("frontier", "drop", host, "--yes").stdout.startswith(f"{host} was dropped")
    assert "blocked.test" in crawled("frontier", "blocks").stdout
    crawled("frontier", "unblock", "blocked.test")


@pytest.mark.slow
def test_a_receipt_is_words(crawled: Crawled) -> None:
    """It is short, names what this job has, and where it is kept; JSON comes with --json."""
    crawled("frontier", "add", "http://receipt.test/")
    lines = crawled("frontier", "drop", "receipt.test", "--yes").stdout.splitlines()
    assert lines[0].startswith("receipt.test was dropped: pending 1, ")
    assert lines[1] == "not touched:"
    assert "{" not in "".join(lines)
    left = "\n".join(lines[2:-1])
    assert "the audit log" in left
    for what in ("sieve", Setting.DUPLICATES, Setting.TRAPS):
        assert what not in left
    id = lines[-1].removeprefix("receipt: ").split()[0]
    rows = [json.loads(row) for row in crawled("frontier", "audit", "--json").stdout.splitlines()]
    [receipt] = [row for row in rows if row["id"] == id]
    assert receipt["facts"]["pending"] == 1


@pytest.mark.slow
def test_the_help_has_every_exit_code(crawled: Crawled) -> None:
    """That of all verbs has those of each."""
    assert "4 done in part" in " ".join(crawled("frontier", "--help").stdout.split())
