"""Whether a User-Agent says where a site's owner can reach its operator."""

from __future__ import annotations

import pytest

from scrapy_spider_suite.crawl.preparation import ContactWarning, find_contact, find_mailbox
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.spiders import require_contact


@pytest.mark.parametrize(
    "agent",
    [
        "mybot/1.0 (+https://example.org/bot)",
        "mybot (http://bots.example.org)",
        "Mozilla/5.0 (compatible; mybot; me@example.org)",
    ],
)
def test_a_page_or_a_mailbox_is_a_contact(agent: str) -> None:
    """In any of the ways in which people write it."""
    assert find_contact(agent)
    require_contact(agent)


@pytest.mark.parametrize(
    "agent",
    [
        None, "", "mybot/1.0", "Mozilla/5.0 (X11; Linux x86_64)", "mybot (https://)", "me@home",
        "Scrapy/2.19.0 (+https://scrapy.org)",
    ],
)  # fmt: skip
def test_anything_else_is_refused(agent: str | None) -> None:
    """Scrapy's own default too; the message shows an example."""
    assert not find_contact(agent)
    with pytest.raises(SettingsError) as refused:
        require_contact(agent)
    assert f"USER_AGENT = {agent!r}: expected the address" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "mailbox"),
    [
        ("Jane Doe <jane.doe@mail.crawler.example>", "jane.doe@mail.crawler.example"),
        ("bot/1.0 (+mailto:bot@crawler.example)", "bot@crawler.example"),
        ("bot/1.0 (+https://me:secret@crawler.example/; me@x.example)", "me@x.example"),
        ("bot/1.0 (+https://me:secret@crawler.example/)", ""), ("me@home", ""), (None, ""),
    ],
)  # fmt: skip
def test_the_address_of_a_mailbox(text: str | None, mailbox: str) -> None:
    """As From wants it, without what stands around it; never a password out of a URL."""
    assert find_mailbox(text) == mailbox


@pytest.mark.parametrize(
    ("agent", "addresses", "warnings"),
    [
        ("mybot/1.0", ["127.0.0.1", "10.0.0.7", "::1", "fd00::1"], 0),
        ("mybot/1.0", ["127.0.0.1", "93.184.215.14", "2606:2800:21f::1", "1.1.1.1"], 1),
        ("mybot/1.0 (+https://example.org/bot)", ["93.184.215.14"], 0),
    ],
)
def test_a_warning_once_the_crawl_goes_out(
    agent: str, addresses: list[str], warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Not for one's own machine and network, not with a contact, and never twice."""
    introduction = ContactWarning(agent)
    for address in addresses:
        introduction.check_address(address)
    assert [agent in record.getMessage() for record in caplog.records] == [True] * warnings
