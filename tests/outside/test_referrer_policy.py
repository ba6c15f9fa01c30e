"""Webs whose pages send a Referrer-Policy: what it does to the Referer, and what it must not do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.crawls import crawl, loopback_settings
from support.names import FIRST_PASS, Setting
from support.projects import Project, scrapy
from support.tls_sites import Authority
from support.websites import Answer, Page, Site, links, moved, running

POLICIES = (
    "no-referrer", "no-referrer-when-downgrade", "same-origin", "origin", "strict-origin",
    "origin-when-cross-origin", "strict-origin-when-cross-origin", "unsafe-url", "", "of-nobody",
    "unsafe-url,no-referrer",
)  # fmt: skip
COMMON = "strict-origin-when-cross-origin"
FAST = {
    "ROBOTSTXT_OBEY": False, Setting.HOST_DELAY: 0, Setting.IP_DELAY: 0,
    Setting.HOST_CONCURRENCY: 8,
}  # fmt: skip


def page(policy: str | None, *paths: str, title: str = "") -> Answer:
    """One with these links that sends *policy*, if it is not None."""
    headers = {} if policy is None else {"Referrer-Policy": policy}
    return Answer(links(*paths, title=title).encode(), headers=headers)


# On the wire


@contextmanager
def secure(folder: Path) -> Iterator[Site]:
    """A site behind TLS."""
    site = Site()
    site.url = f"https://localhost:{site.server_port}"
    site.socket = Authority(folder).server().wrap_socket(
        site.socket, server_side=True, do_handshake_on_connect=False
    )
    with running(site):
        yield site


def referers(sites: Mapping[str, Site]) -> dict[str, str | None]:
    """The Referer of each path of *sites*, with their names in place of their URLs."""
    sent = {
        f"{name}:{visit.path}": visit.headers.get("Referer")
        for name, site in sites.items()
        for visit in site.visits
    }
    for site in sites.values():
        site.visits.clear()
    text = json.dumps(sent)
    for name, site in sites.items():
        text = text.replace(site.url, f"{name}:")
    return json.loads(text)  # type: ignore[no-any-return]


@contextmanager
def told(folder: Path) -> Iterator[dict[str, Site]]:
    """Three sites with a page for each policy, in plain text and behind TLS, that link to all."""
    with running(Site(host="127.0.0.2")) as far, running(Site()) as near, secure(folder) as safe:
        starts = []
        for number, policy in enumerate([None, *POLICIES]):
            for home, name, away in ((near, "plain", [far, safe]), (safe, "tls", [near])):
                start = f"/{number}"
                linked = [f"{site.url}{start}/{name}" for site in (home, *away)]
                home.pages[start] = page(policy, *linked)
                starts.append(f"{home.url}{start}")
                for site in (home, *away):
                    site.pages[f"{start}/{name}"] = links()
        near.pages["/"] = page(None, *starts)
        yield {"far": far, "near": near, "safe": safe}


@pytest.mark.parametrize("seen", ["plain", "sieve"])
def test_it_decides_on_the_referer_as_with_scrapy(seen: str, tmp_path: Path) -> None:
    """Of links to the same origin, to another, and from TLS to none, also after a restart."""
    with told(tmp_path) as sites:
        project = Project(tmp_path / "project", **loopback_settings(**FAST))
        start = f"{sites['near'].url}/"
        ended = project.scrapy(
            "crawl", "ordinary", f"-astart={start}", ADDONS="{}", ROBOTSTXT_OBEY=False
        )
        by_scrapy = referers(sites)
        assert len(by_scrapy) == 1 + 7 * (1 + len(POLICIES)), ended.stderr[-3000:]
        job = {"JOBDIR": "job", Setting.SEEN: seen}
        for most in (9, 0):
            ended = project.scrapy(
                "crawl", "bulk", f"-aseeds={start}", **job, **{Setting.MAX_PAGES: most}
            )
        assert referers(sites) == by_scrapy, ended.stderr[-3000:]
    at = 1 + POLICIES.index(COMMON)
    assert by_scrapy[f"near:/{at}/plain"] == f"near:/{at}"
    assert by_scrapy[f"far:/{at}/plain"] == "near:/"
    assert by_scrapy[f"safe:/{at}/tls"] == f"safe:/{at}"
    assert by_scrapy[f"near:/{at}/tls"] is None  # from TLS to none


def test_it_holds_where_a_link_redirects_to(tmp_path: Path) -> None:
    """The page that linked there is told, as far as it wants to be told to the target."""
    with running(Site(host="127.0.0.2")) as far, running(Site()) as near:
        near.pages = {"/": page(None, *(f"/{number}" for number in range(len(POLICIES))))}
        for number, policy in enumerate(POLICIES):
            near.pages[f"/{number}"] = page(policy, f"/{number}/moved")
            near.pages[f"/{number}/moved"] = moved(f"{far.url}/{number}")
            far.pages[f"/{number}"] = links()
        project = Project(tmp_path / "project", **loopback_settings(**FAST))
        ended = project.scrapy("crawl", "bulk", f"-aseeds={near.url}/")
        sent = referers({"far": far, "near": near})
    assert {policy: sent[f"far:/{number}"] for number, policy in enumerate(POLICIES)} == {
        "no-referrer": None,
        "no-referrer-when-downgrade": "near:/1",
        "same-origin": None,
        "origin": "near:/",
        "strict-origin": "near:/",
        "origin-when-cross-origin": "near:/",
        "strict-origin-when-cross-origin": "near:/",
        "unsafe-url": "near:/7",
        "": "near:/8",
        "of-nobody": "near:/9",
        "unsafe-url,no-referrer": None,
    }, ended.stderr[-3000:]


# In the job


def talkative(pages: int) -> dict[str, Page]:
    """A site of so many pages, each of which links to ten, and sends a policy."""
    return {
        f"/{n or ''}": page(
            COMMON, *(f"/{m}" for m in range(10 * n + 1, 10 * n + 11) if m < pages), title=f"{n}"
        )
        for n in range(pages)
    }


@pytest.mark.parametrize(("seen", "field"), [("trie", "in_trie"), ("sieve", "sieve_known")])
def test_the_job_keeps_what_such_pages_link_to_as_without_a_policy(
    seen: str, field: str, tmp_path: Path
) -> None:
    """The trie compresses all of it; the sieve is asked about all of it, and keeps no rows."""
    pages, job = 300, {"JOBDIR": str(tmp_path / "job"), Setting.SEEN: seen}
    with running(Site(talkative(pages))) as site:
        settings = loopback_settings(**FAST, **job, TEST_CONSTANTS={FIRST_PASS: 100})
        ended = crawl("support.spiders.Bulk", settings, tmp_path, seeds=f"{site.url}/")
        assert ended.reason == "finished", ended.log[-3000:]
        assert len(set(site.paths())) == len(site.visits) == pages
    status = scrapy(tmp_path, "frontier", "status", "--json", "-jjob")
    assert json.loads(status.stdout)[field] == pages, status.stderr
