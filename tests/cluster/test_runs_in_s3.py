"""Blobs of a shared queue in an object store: moto's server speaks S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer
from support.chaos import Chaos, Plan, ground, name_of
from support.polite_crawls import Size

from scrapy_spider_suite.cluster.run_blobs import BlobFolder, Place
from scrapy_spider_suite.errors import BlobError

BUCKET = "runs-of-tests"
PLAN = Plan(
    size=Size(hosts=8, addresses=4, pages=6, host_delay=0.3, ip_delay=0.02), agents=2, seconds=0.0,
    grace="forever", transport="shared-queue",
)  # fmt: skip


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a bucket; its libraries find server and key in the environment."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "NO_PROXY": "127.0.0.1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    try:
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield f"s3://{BUCKET}/runs"
    finally:
        server.stop()


def test_blobs(store: str) -> None:
    """Written, read in pieces, removed; one that is missing is no damage."""
    folder = BlobFolder(store, "web")
    places = folder.write([b"first", b"second"])
    assert [folder.read(place) for place in places] == [b"first", b"second"]
    folder.remove(places[0].blob)
    folder.remove(places[0].blob)
    with pytest.raises(BlobError) as missing:
        folder.read(places[1])
    assert missing.value.missing
    assert folder.mark("a crawl", new=True) == "a crawl"
    with pytest.raises(BlobError):
        BlobFolder("s3://no-such-bucket-is-here/x", "web").write([b"x"])
    assert Place.from_bytes(places[1].to_bytes()) == places[1]


@pytest.mark.slow
def test_two_fetchers_crawl(store: str, tmp_path: Path) -> None:
    """One polite crawl, whose blobs are objects."""
    with ground(PLAN, tmp_path) as here:
        given = here.fleet.settings
        here.fleet.settings = lambda name: {**given(name), "SUITE_RUNS_DIR": store}
        chaos = Chaos(PLAN, here)
        chaos.begin()
        here.fleet.start(name_of(2))
        assert list(chaos.go_on().broken()) == []
