"""FakeWebConfig: checks, the JSON round trip, the two options with a shape of their own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.testing.config import FakeWebConfig, parse_override, parse_site


def test_every_knob_says_what_it_is() -> None:
    """Each field has a kind, a line of help, and a default that passes its own check."""
    for each in dataclasses.fields(FakeWebConfig):
        assert each.metadata["help"]
        assert getattr(FakeWebConfig(), each.name) == each.metadata["default"]


def test_json_keeps_everything(tmp_path: Path) -> None:
    """A configuration survives the trip to a child process."""
    config = FakeWebConfig(
        hosts=5,
        latency=0.5,
        one_address=True,
        log=tmp_path / "log",
        sites={"docs.test": str(tmp_path)},
        overrides={3: {"pages": 9, "latency": 0.5}},
    )
    assert FakeWebConfig.from_json(config.to_json()) == config
    assert FakeWebConfig().to_json() == "{}"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hosts": -1}, "hosts = -1"),
        ({"port": 65536}, "port = 65536"),
        ({"dns_port": 65536}, "dns_port = 65536"),
        ({"errors": 0.6, "redirects": 0.6}, "errors [+] redirects"),
        ({"domain": "Fake.Test"}, "domain = 'Fake.Test'"),
        ({"sites": {"docs.test": "/no/such/folder"}}, "a folder that exists"),
        ({"sites": {"docs .test": "/"}}, "a host name"),
        ({"hosts": 2, "overrides": {2: {"pages": 1}}}, r"overrides\[2\]"),
        ({"overrides": {1: {"speed": 1}}}, "one of pages, address"),
        ({"overrides": {1: {"pages": 0}}}, "at least 1"),
    ],
)
def test_what_does_not_fit_is_refused(values: dict[str, Any], message: str) -> None:
    """One line that names the field."""
    with pytest.raises(SettingsError, match=message):
        FakeWebConfig(**values)


@pytest.mark.parametrize("text", ["{", "[]", '{"speed": 1}', '{"hosts": "x"}', '{"port": null}'])
def test_bad_json_is_refused(text: str) -> None:
    """Whatever is wrong with it, it is a SettingsError."""
    with pytest.raises(SettingsError):
        FakeWebConfig.from_json(text)


def test_an_override_is_read() -> None:
    """``INDEX:TRAIT=VALUE,…`` becomes the traits of one host."""
    assert parse_override("5:pages=100,latency=0.5") == (5, {"pages": 100, "latency": 0.5})


@pytest.mark.parametrize("text", ["5", "5:pages", "5:speed=1", "x:pages=1", "5:pages=x", ""])
def test_a_bad_override_is_refused(text: str) -> None:
    """A word that is no trait, a missing part, a value that is no number."""
    with pytest.raises(SettingsError):
        parse_override(text)


def test_a_site_is_read() -> None:
    """A name without a dot gets the top-level domain for tests."""
    assert parse_site("docs=build/html") == ("docs.test", "build/html")
    assert parse_site("Docs.Example=x=y") == ("docs.example", "x=y")


@pytest.mark.parametrize("text", ["docs", "=dir", "docs="])
def test_a_bad_site_is_refused(text: str) -> None:
    """Both the name and the folder must be there."""
    with pytest.raises(SettingsError, match="NAME=DIR"):
        parse_site(text)
