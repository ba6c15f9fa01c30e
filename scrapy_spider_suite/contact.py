"""Whether a site's owner can find out who crawls it (gap G19; RFC 9309 §2.2.1 asks for it)."""

from __future__ import annotations

import ipaddress
import logging
import re

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.fetch.address_rules import special_kind
from scrapy_spider_suite.runtime.refusal import refuse

logger = logging.getLogger(__name__)

_CONTACT = re.compile(r"https?://[^\s/$.?#]+\.[^\s]+|[^\s@<>()]+@[^\s@<>()]+\.[a-z]{2,}", re.I)
_URL = re.compile(r"[a-z]+://\S*", re.I)
_MAILBOX = re.compile(r"[a-z0-9][\w.%+-]*@[a-z0-9-]+(?:\.[a-z0-9-]+)*\.[a-z]{2,}", re.I | re.A)
_SCRAPYS = "+https://scrapy.org"


def contact_in(user_agent: str | None) -> str:
    """The web page or e-mail address in *user_agent*, "" for none (Scrapy's own does not count)."""
    text = user_agent or ""
    found = None if _SCRAPYS in text else _CONTACT.search(text)
    return "" if found is None else found[0].rstrip(").;,")


def mailbox_in(text: str | None) -> str:
    """The e-mail address in *text*, "" for none; the password in a URL is none."""
    found = _MAILBOX.search(_URL.sub(" ", text or ""))
    return "" if found is None else found[0]


def has_contact(user_agent: str | None) -> bool:
    """Whether *user_agent* names a web page or an e-mail address (Scrapy's own does not count)."""
    return bool(contact_in(user_agent))


def require_contact(user_agent: str | None) -> None:
    """Refuse the crawl if *user_agent* gives no contact.

    Raises `SettingsError` in a script; a command ends with one line and exit code 2.
    """
    if not has_contact(user_agent):
        expected = (
            "the address of a page or a mailbox where a site's owner can reach you, "
            "e.g. 'mybot/1.0 (+https://example.org/bot)'"
        )
        refuse(SettingsError.of("USER_AGENT", user_agent, expected))


class Introduction:
    """Warns, once, when a crawl whose *user_agent* gives no contact goes out to the Internet."""

    def __init__(self, user_agent: str | None) -> None:
        self._user_agent = user_agent
        self._missing = not has_contact(user_agent)

    def goes_to(self, address: str) -> None:
        """A host at the numeric *address* is to be visited; at home nobody needs to be told."""
        if self._missing and special_kind(ipaddress.ip_address(address)) is None:
            self._missing = False
            logger.warning(
                "USER_AGENT = %r gives no address where a site's owner could reach you: name a "
                "page or a mailbox before you crawl the sites of others", self._user_agent,
            )  # fmt: skip
