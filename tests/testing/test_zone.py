"""What each name is, before it is packed into a message."""

from __future__ import annotations

import re
from pathlib import Path

from scrapy_spider_suite.testing import name_server
from scrapy_spider_suite.testing.name_server import Zone, ZoneAnswer

SPECIAL = (("127.8.0.1", "127.8.0.2"), "127.8.0.3", "127.8.0.4")


def address_of(name: str) -> str:
    """One host is known."""
    if name != "h.fake.test":
        raise LookupError(name)
    return "127.9.9.9"


def test_hosts_have_their_address_and_others_none() -> None:
    """NXDOMAIN for what is not there."""
    names = Zone(address_of, *SPECIAL)
    assert names.look_up("h.fake.test") == ZoneAnswer(v4=("127.9.9.9",))
    assert names.look_up("example.com") == ZoneAnswer(name_server.NXDOMAIN)
    assert names.look_up("") == ZoneAnswer(name_server.NXDOMAIN)


def test_moving_names_move() -> None:
    """Every other query gets the other address, and it may not be kept."""
    names = Zone(address_of, *SPECIAL)
    answers = [names.look_up("moving.test") for _ in range(3)]
    assert [each.v4 for each in answers] == [("127.8.0.1",), ("127.8.0.2",), ("127.8.0.1",)]
    assert answers[0].ttl == 1


def test_rebinding_turns_private() -> None:
    """The attack: a public address while it is checked, a private one when it is used."""
    names = Zone(address_of, *SPECIAL)
    assert names.look_up("rebind.test") == ZoneAnswer(v4=("127.8.0.1",), ttl=0)
    assert names.look_up("rebind.test") == ZoneAnswer(v4=("10.0.0.1",), ttl=0)


def test_every_documented_name_exists() -> None:
    """The table of the manual is the zone."""
    names = Zone(address_of, *SPECIAL)
    page = Path(__file__).parents[2] / "docs" / "hostile.md"
    documented = re.findall(r"^\| `([a-z0-9.-]+\.test)` \|", page.read_text(), re.MULTILINE)
    assert len(documented) == 16
    for name in documented:
        assert names.look_up(name).rcode != name_server.NXDOMAIN
    assert set(name_server.SERVED) < set(documented)
