"""What counts as one registered domain, without asking the network."""

from __future__ import annotations

import pytest

from scrapy_spider_suite.urls.hosts import is_public_suffix, registered_domain


@pytest.mark.parametrize(
    ("host", "domain", "public"),
    [
        ("a.b.example.co.uk", "example.co.uk", False),
        ("x.github.io", "x.github.io", False),
        ("github.io", "github.io", True),
        ("co.uk", "co.uk", True),
        ("localhost", "localhost", False),
        ("127.0.0.1", "127.0.0.1", False),
        ("::1", "::1", True),
        ("[2001:db8::1]", "[2001:db8::1]", False),
        ("a.b.internal", "b.internal", False),
        ("", "", True),
        ("xn--fiqs8s", "xn--fiqs8s", True),
        ("a spider's own slot", "a spider's own slot", False),
        ("a" * 300 + ".example.com", "example.com", False),
    ],
)
def test_registered_domain(host: str, domain: str, public: bool) -> None:
    """Addresses and single labels are themselves; private suffixes are public too."""
    assert registered_domain(host) == domain
    assert is_public_suffix(host) == public
