"""Where agents listen."""

from __future__ import annotations

import pytest

from scrapy_spider_suite.settings.values import endpoint


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("10.0.0.7", "10.0.0.7", 0),
        ("agent.example:7000", "agent.example", 7000),
        ("[::1]", "::1", 0),
        ("[fe80::1]:65535", "fe80::1", 65535),
    ],
)
def test_an_endpoint(text: str, host: str, port: int) -> None:
    """It is written as it was read."""
    found = endpoint(text)
    assert found == (host, port)
    assert str(found) == text
    assert endpoint(f"{found}" if port else f"{found}:1", whole=True).host == host


@pytest.mark.parametrize(
    "text",
    [
        "", ":7000", "a:0", "a:65536", "a:", "a:7a", "::1", "::1:7000", "a b:1", "a:\u0661",
        "u@a:1", "[a", "[]",
    ],
)
def test_no_endpoint(text: str) -> None:
    """An IPv6 address has brackets: where it ends cannot be told without."""
    with pytest.raises(ValueError, match=r"\S"):
        endpoint(text)


def test_a_port_that_is_needed() -> None:
    """Nothing can be sent without."""
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        endpoint("10.0.0.7", whole=True)
