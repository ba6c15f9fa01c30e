"""URLs that commands are given: known by the normal form of the job's crawl."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.frontier_command import Frontier
from support.jobs import Made

from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.urls.twins import Twins

OPTIONS = {"SUITE_NORMAL_FORM": ["tracking", "www"], "SUITE_PREFER_HTTPS": True}
INSISTED = "http://www.b.test/x"


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    """A job with options, a twin, and a URL that its server insists on."""
    made = Made(tmp_path / "job")
    made.keep(**OPTIONS)
    twins = Twins(made.store.kv("twins"))
    for n in range(2):
        twins.redirected(f"http://a.test/{n}", f"https://a.test/{n}", permanent=True)
    for url in ("https://a.test/x", INSISTED):
        made.end(url, Event.SUCCESS, 200)
    made.close()
    yield made
    made.job._lock.close()


def ask(frontier: Frontier, made: Made, *arguments: str) -> list[Any]:
    """The rows of what a command says of the job."""
    said = frontier(*arguments, "-j", str(made.path), "--json")
    assert said.code == 0, said.out
    return said.rows


def test_why(made: Made, frontier: Frontier) -> None:
    """By its normal form, and what the evidence for that is."""
    [row] = ask(frontier, made, "why", "http://www.a.test/x?utm_source=y")
    assert (row["state"], row["normal_form"]) == ("done", "https://a.test/x")
    [row] = ask(frontier, made, "why", "http://a.test/x")
    assert row["state"] == "done"
    assert row["twins"].startswith("http://a.test is taken for https://a.test; redirects to")
    [row] = ask(frontier, made, "why", "a.test")
    assert row["twins"][0].startswith("http://a.test is taken for https://a.test; redirects to")
    assert row["twins"][1].startswith("https://a.test is no twin; redirects from")
    [row] = ask(frontier, made, "why", INSISTED)
    assert (row["state"], row["normal_form"]) == ("done", INSISTED)
    [row] = ask(frontier, made, "why", "http://www.c.test/?utm_source=y")
    assert (row["state"], row["normal_form"]) == ("unknown", "http://c.test/")


def test_test(made: Made, frontier: Frontier) -> None:
    """What would become of a link, whatever its spelling."""
    [row] = ask(frontier, made, "test", "http://a.test/x?utm_source=y")
    assert (row["judgement"], row["url"]) == ("known", "https://a.test/x")


def test_refetch(made: Made, frontier: Frontier, tmp_path: Path) -> None:
    """A list and a URL, dry and in earnest."""
    urls = tmp_path / "urls.txt"
    urls.write_text(f"http://www.a.test/x?utm_medium=y\n{INSISTED}\nhttp://d.test/\n")
    [row] = ask(frontier, made, "refetch", str(urls), "--dry-run")
    assert (row["urls"], row["first"]) == (2, ["https://a.test/x", INSISTED])
    [row] = ask(frontier, made, "refetch", "http://a.test/x?utm_source=1", "--dry-run")
    assert row["urls"] == 1
    [row] = ask(frontier, made, "refetch", "http://a.test/x?utm_source=1")
    assert row["urls"] == 1
    [row] = ask(frontier, made, "refetch", str(urls))
    assert (row["urls"], row["pending_already"], row["unknown"]) == (1, 1, 1)


def test_add(made: Made, frontier: Frontier) -> None:
    """What is known is not added in another spelling."""
    [row] = ask(frontier, made, "add", "http://a.test/x?utm_source=1", "http://www.e.test/")
    assert (row["urls"], row["new"]) == (2, 1)
    [row] = ask(frontier, made, "why", "http://e.test/")
    assert row["state"] == "pending"


def test_a_normalizer_that_is_not_here(tmp_path: Path, frontier: Frontier) -> None:
    """Who looks is told, and does without; who would change something is refused."""
    made = Made(tmp_path / "job")
    made.keep(SUITE_NORMALIZER="no_such_project.urls.normalize")
    made.end("http://a.test/x", Event.SUCCESS, 200)
    made.close()
    said = frontier("why", "http://a.test/x", "-j", str(made.path)).out
    assert "SUITE_NORMALIZER = 'no_such_project.urls.normalize': No module" in said
    assert "judged without it" in said
    assert "done" in said
    assert frontier("add", "http://a.test/y", "-j", str(made.path)).code == 1
    made.job._lock.close()
