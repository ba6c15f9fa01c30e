"""Tests of the system's view of names: hosts file, single labels, search domains."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pycares
import pytest

from scrapy_spider_suite.errors import NoSuchHostError, PrivateAddressError
from scrapy_spider_suite.fetch.address_rules import AddressPolicy
from scrapy_spider_suite.fetch.resolver import Resolver

if TYPE_CHECKING:
    from support.dns_server import NameServer, Run


@pytest.fixture
def system(nameserver: NameServer, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Configures c-ares as a resolv.conf would that has the test's name server and *domains*."""

    def configure(*domains: str) -> None:
        class Configured(pycares.Channel):
            def __init__(self, **options: Any) -> None:
                options["servers"] = options.get("servers") or [nameserver.address]
                super().__init__(domains=domains, **options)

        monkeypatch.setattr(pycares, "Channel", Configured)

    return configure


def test_localhost_comes_from_the_hosts_file(run_on_loop: Run) -> None:
    """The hosts file is read, and a name in it is judged by its address like any other."""

    async def main() -> None:
        resolver = Resolver(AddressPolicy(["localhost"]))
        assert "127.0.0.1" in (await resolver.resolve("localhost")).addresses
        resolver.close()
        strict = Resolver(AddressPolicy())
        with pytest.raises(PrivateAddressError):
            await strict.resolve("localhost")
        strict.close()

    run_on_loop(main())


def test_single_labels_are_searched(
    nameserver: NameServer, system: Callable[..., None], run_on_loop: Run
) -> None:
    """A single label is looked for in the search domains."""
    system("corp.example", "other.example")
    nameserver.add("wiki.other.example", "1.1.1.1")

    async def main() -> None:
        resolver = Resolver(AddressPolicy())
        assert (await resolver.resolve("wiki")).addresses == ("1.1.1.1",)
        assert nameserver.asked[0] == ("wiki.corp.example", "A")
        resolver.close()

    run_on_loop(main())


def test_given_servers_are_not_searched(
    nameserver: NameServer, system: Callable[..., None], run_on_loop: Run
) -> None:
    """With servers of its own a crawl does not depend on the machine's search domains."""
    system("corp.example")
    nameserver.add("wiki.corp.example", "1.1.1.1")

    async def main() -> None:
        resolver = Resolver(AddressPolicy(), servers=[nameserver.address])
        with pytest.raises(NoSuchHostError):
            await resolver.resolve("wiki")
        assert {name for name, _ in nameserver.asked} == {"wiki"}
        resolver.close()

    run_on_loop(main())
