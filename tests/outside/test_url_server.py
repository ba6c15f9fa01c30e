"""Other programs fetch: they pop URLs over HTTP, and the crawl's promises hold."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
from support.crawls import Process, loopback_settings, start
from support.names import STATUS_FILE, Setting
from support.redis_servers import RedisServer
from support.running_crawl import until
from support.websites import Answer, Site, links, moved, running

from scrapy_spider_suite.url_client import FILE, UrlClient, UrlServerError

DELAY = 0.3
INDEXER = Path(__file__).parents[2] / "example_project" / "url_indexer.py"
PAGES = {
    "/robots.txt": "User-agent: *\nDisallow: /private\n",
    "/": links("/a", "/b", "/private", "/old"), "/a": links("/", "/c"), "/b": links(),
    "/c": links(), "/old": moved("/new"), "/new": links(), "/later": links(), "/again": links(),
}  # fmt: skip


@pytest.fixture
def site() -> Iterator[Site]:
    """A small one, with a rule of robots.txt."""
    with running(Site(PAGES)) as site:
        yield site


@contextmanager
def serving(site: Site, folder: Path, **more: Any) -> Iterator[UrlClient]:
    """A crawl that starts at the front page."""
    with crawling(site, folder, **more) as (client, _):
        yield client


@contextmanager
def crawling(site: Site, folder: Path, **more: Any) -> Iterator[tuple[UrlClient, Process]]:
    """As `serving`, with the process."""
    job = folder / "job"
    settings = loopback_settings(**{
        "JOBDIR": str(job), Setting.HOST_DELAY: DELAY, Setting.IP_DELAY: 0, Setting.RETRY_TIMES: 0,
        "SUITE_URL_SERVER": "127.0.0.1", "ROBOTSTXT_OBEY": True, "SUITE_PACKS_DIR": "packs",
        "SUITE_WHEN_DONE": "wait", **more,
    })  # fmt: skip
    process = start("support.spiders.Bulk", settings, folder, seeds=f"{site.url}/")
    try:
        until(lambda: (job / "suite" / FILE).exists() or process.poll() is not None)
        with closing(UrlClient.of_job(job)) as client:
            yield client, process
    finally:
        process.terminate()
        process.wait(30)


def fetched(row: dict[str, Any]) -> dict[str, Any]:
    """Fetch as the program would."""
    asked = Request(row["url"], headers=dict(row["headers"]))
    try:
        with urlopen(asked, timeout=30) as answer:
            return {
                "id": row["id"], "status": answer.status, "headers": answer.getheaders(),
                "body": answer.read(),
            }  # fmt: skip
    except HTTPError as error:
        return {"id": row["id"], "status": error.code, "headers": list(error.headers.items())}


def test_a_program_crawls_a_site(site: Site, tmp_path: Path) -> None:
    """It gets each page once, with the delay kept, and none that robots.txt forbids."""
    paths, times = list[str](), list[float]()
    with serving(site, tmp_path) as client:
        for row in (row for _ in range(20) for row in client.pop(5, wait=3 * DELAY)):
            times.append(time.monotonic())
            assert client.pop(5, wait=1.5 * DELAY) == []  # of a host one at a time
            paths.append(row["url"].removeprefix(site.url))
            if paths[-1] == "/old":  # urllib would follow it
                client.complete([{
                    "id": row["id"], "status": 302, "headers": [["Location", "/new"]],
                }])  # fmt: skip
            else:
                assert client.complete([fetched(row)]) == [True]
            assert client.complete([{"id": row["id"], "status": 200}]) == [False]
        status = client.status()
    assert sorted(paths) == ["/", "/a", "/b", "/c", "/new", "/old"]
    assert status["pages"] >= 5
    assert (status["pending"], status["out"]) == (0, 0)
    assert min(b - a for a, b in pairwise(times)) >= DELAY - 0.01
    assert [path for path in site.paths() if path == "/private"] == []
    assert list((tmp_path / "packs").iterdir())


def test_urls_come_and_go(site: Site, tmp_path: Path) -> None:
    """Pushed with a tag, asked for by host, fetched on demand; links that the program read."""
    with serving(site, tmp_path) as client:
        [row] = client.pop(wait=10)
        assert client.complete([{
            "id": row["id"], "status": 200, "headers": [["Content-Type", "text/html"]],
            "links": ["/b", "http://[x", f"{site.url}/c"],
        }]) == [True]  # fmt: skip
        assert client.push([f"{site.url}/later"], tag="key 7", first=True) == [True]
        assert client.push([f"{site.url}/later"]) == [False]
        assert client.pop(wait=0.5, hosts=["elsewhere.example"]) == []
        [row] = client.pop(wait=10, hosts=[row["host"]])
        assert (row["url"], row["tag"]) == (f"{site.url}/later", "key 7")
        client.complete([{"id": row["id"], "error": "no such machine"}])
        [row] = client.pop(wait=20)
        assert row["url"] == f"{site.url}/b"
        client.complete([fetched(row)])
        with pytest.raises(UrlServerError, match="http"):
            client.push(["ftp://example.org/"])
        with pytest.raises(UrlServerError, match="header"):
            client.complete([{"id": "0", "status": 200, "headers": [["a\r\nb", "c"]]}])
        with pytest.raises(UrlServerError, match="tag"):
            client.push([site.url], tag="two\nlines")
        with pytest.raises(UrlServerError, match="SUITE_READ_LINKS"):
            client.extract(["none.example"])
        assert client.fetch(f"{site.url}/again", wait=0.1)["status"] is None


def test_a_page_is_asked_for(site: Site, tmp_path: Path) -> None:
    """Who asks gets what came of it; it is a program that fetches it."""
    with serving(site, tmp_path) as client, closing(UrlClient.of_job(tmp_path / "job")) as other:
        for path, answer, expected in (
            ("/again", {"status": 200, "body": b"here"}, (200, b"here", "")),
            ("/later", {"error": "no route"}, (None, None, "another program: no route")),
        ):  # fmt: skip
            with ThreadPoolExecutor(1) as pool:
                asked = pool.submit(other.fetch, f"{site.url}{path}", wait=60, body=True)
                while not asked.done():
                    for row in client.pop(wait=2):
                        mine = row["url"] == f"{site.url}{path}"
                        result = answer if mine else {"status": 404}
                        client.complete([{"id": row["id"], **result}])
            found = asked.result()
            assert (found["status"], found.get("body") or None, found["error"]) == expected


def test_a_stop_takes_what_is_out(site: Site, tmp_path: Path) -> None:
    """While it waits for rows that are out, they may be completed; nothing else is answered."""
    job = tmp_path / "job"
    with crawling(site, tmp_path) as (client, process):
        [row] = client.pop(wait=10)
        process.terminate()
        until(lambda: is_refused(client))
        assert client.complete([fetched(row)]) == [True]
        process.wait(10)
    status = json.loads((job / STATUS_FILE).read_text())
    assert status["pulse"]["counters"]["pages"] == 1


def is_refused(client: UrlClient) -> bool:
    """Whether the crawl gives nothing any more."""
    try:
        client.pop(wait=0)
    except UrlServerError as error:
        return error.status == 503
    return False


def test_what_is_not_completed_comes_again(site: Site, tmp_path: Path) -> None:
    """A program that dies loses nothing; so does a crawl that is killed."""
    more = {"DOWNLOAD_TIMEOUT": 1, Setting.RETRY_TIMES: 2, "SUITE_BACKOFF_BASE": 0.2}
    with serving(site, tmp_path, **more) as client:
        [first] = client.pop(wait=10)
        [again] = client.pop(wait=20)
        assert again["url"] == first["url"]
        assert client.status()["out"] == 1
        assert client.complete([fetched(first), fetched(again)]) == [False, True]


def test_nobody_else_may_ask(site: Site, tmp_path: Path) -> None:
    """Without the token, with a wrong one, or with a wrong call."""
    with serving(site, tmp_path) as client:
        found = json.loads((tmp_path / "job" / "suite" / FILE).read_text())
        assert (tmp_path / "job" / "suite" / FILE).stat().st_mode & 0o077 == 0
        for token in ("", "x" * 32):
            with closing(UrlClient(found["url"], token)) as stranger, pytest.raises(
                UrlServerError
            ) as refused:
                stranger.pop()
            assert refused.value.status == 401
        with pytest.raises(UrlServerError, match="count") as refused:
            client.pop(0)
        assert refused.value.status == 400
        place, bearer = urlsplit(found["url"]), {"Authorization": f"Bearer {found['token']}"}
        large, deep = b"x" * (65 << 20), b'{"x": ' + b"[" * 10_000 + b"]" * 10_000 + b"}"
        for headers, body, code in (({}, large, 401), (bearer, large, 413), (bearer, deep, 400)):
            connection = HTTPConnection(place.hostname or "", place.port or 0)
            connection.request("POST", "/push", body, headers)
            assert connection.getresponse().status == code
            connection.close()
    assert not (tmp_path / "job" / "suite" / FILE).exists()
    with pytest.raises(UrlServerError, match="SUITE_URL_SERVER"):
        UrlClient.of_job(tmp_path / "job")


@pytest.mark.skipif(not shutil.which("perl"), reason="needs perl")
def test_a_program_in_another_language(site: Site, tmp_path: Path) -> None:
    """Perl, with what it brings."""
    script = r"""
use HTTP::Tiny; use JSON::PP;
my ($url, $token) = @ARGV;
my $http = HTTP::Tiny->new(default_headers => {Authorization => "Bearer $token"});
sub call { my ($name, $given) = @_;
  my $answer = $http->post("$url/$name", {content => encode_json($given)});
  die $answer->{content} unless $answer->{success};
  return JSON::PP->new->allow_nonref->decode($answer->{content}); }
for my $row (@{call("pop", {count => 1, wait => 10})}) {
  my $page = HTTP::Tiny->new->get($row->{url});
  my @links = $page->{content} =~ /href="([^"]+)"/g;
  print call("complete", {results => [{id => $row->{id}, status => $page->{status} + 0,
    links => \@links}]})->[0] ? "taken" : "late";
}
"""
    with serving(site, tmp_path) as client:
        found = json.loads((tmp_path / "job" / "suite" / FILE).read_text())
        said = subprocess.run(
            ["perl", "-e", script, found["url"], found["token"]],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (said.stdout, said.stderr) == ("taken", "")
        until(lambda: client.status()["pending"] == 4)


def test_the_indexer_of_the_examples(site: Site, tmp_path: Path) -> None:
    """It fetches the site, ends with the crawl, and finds pages by their words."""
    site.pages["/c"] = "<p>The earth is round.</p><script>flat</script>"
    database = str(tmp_path / "words")
    with serving(site, tmp_path, SUITE_WHEN_DONE="finish"):
        program = [sys.executable, str(INDEXER)]
        said = subprocess.run(
            [*program, str(tmp_path / "job"), database], capture_output=True, text=True,
            timeout=90, check=False,
        )  # fmt: skip
        assert (said.returncode, said.stderr.splitlines()[-1]) == (0, "5 pages")
    for words, found in (("round earth", f"{site.url}/c\n"), ("flat", "\n")):
        asked = [*program, "--find", words, database]
        said = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False)
        assert said.stdout == found


@pytest.mark.slow
def test_with_a_shared_queue(site: Site, tmp_path: Path) -> None:
    """Links go to their owner, and come back as runs; the crawl ends when nothing is left."""
    with RedisServer(tmp_path / "redis", tcp=True) as redis:
        with redis.client() as client:
            client.set("suite:durable", 1)
        more = {
            "SUITE_CLUSTER": "shared-queue", "SUITE_REDIS_URL": redis.url,
            "SUITE_RUNS_DIR": str(tmp_path / "runs"), "SUITE_WHEN_DONE": "finish",
            "SUITE_CHECKPOINT_INTERVAL": 1,
        }  # fmt: skip
        paths = list[str]()
        with serving(site, tmp_path, **more) as url_client:
            while rows := url_client.pop(5, wait=60):
                paths += [row["url"].removeprefix(site.url) for row in rows]
                assert url_client.complete(map(fetched, rows)) == [True] * len(rows)
    assert sorted(paths) == ["/", "/a", "/b", "/c", "/old"]  # whose redirect was followed here


def test_it_is_refused_without_a_job(site: Site, tmp_path: Path) -> None:
    """One line, which names the settings."""
    settings = loopback_settings(SUITE_URL_SERVER="127.0.0.1")
    process = start("support.spiders.Bulk", settings, tmp_path, seeds=f"{site.url}/")
    assert process.wait(30) == 2
    assert "SUITE_URL_SERVER" in (tmp_path / "log").read_text()


def test_what_the_site_answers_is_kept(site: Site, tmp_path: Path) -> None:
    """A status, a type, a body that the crawl would refuse: as if it had fetched it."""
    site.pages["/"] = Answer(b"%PDF-", headers={"Content-Type": "application/pdf"})
    with serving(site, tmp_path, SUITE_MEDIA_TYPES="text/*") as client:
        [row] = client.pop(wait=10)
        client.complete([fetched(row)])
        until(lambda: client.status()["pending"] == 0)
