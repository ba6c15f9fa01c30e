"""What was refused as a private address is tried again when the setting has changed."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from scrapy_spider_suite.control.actions import Action
from scrapy_spider_suite.control.asking import whoami
from scrapy_spider_suite.control.folder import ActionFolder, new_id
from scrapy_spider_suite.explaining.terms import Terms
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.settings.declarations import plain, words

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.context import Crawl

logger = logging.getLogger(__name__)

_SETTING: Final = "SUITE_ALLOW_PRIVATE_ADDRESSES"
_REFUSED: Final = Event.PRIVATE_ADDRESS


def retry_refused(crawl: Crawl) -> None:
    """Have it tried again if the terms that the job keeps had another value of the setting.

    Called before they are kept anew. A kill between the two has it tried again twice.
    """
    job, kept = crawl.job, Terms.load(crawl.store.kv("terms"))
    refused = crawl.frontier.counters.events.get(_REFUSED, 0)
    if job is None or kept is None or not refused or not crawl.follows:
        return
    old, new = kept.values.get(_SETTING), crawl.settings.allow_private_addresses
    if not new or old == plain(new):
        return
    action = Action(
        new_id(), "retry", {"reason": _REFUSED.value}, job.file.id, whoami(), time.time(),
        f"{_SETTING} was {words(old)}",
    )  # fmt: skip
    try:
        ActionFolder(job.folder).leave(action)
    except OSError as error:
        logger.error(
            "%s was %s: what it refused is not tried again (%s); `scrapy frontier retry --reason "
            "%s` does that", _SETTING, words(old), error.strerror, _REFUSED.value,
        )  # fmt: skip
        return
    logger.info(
        "%s was %s: %s tried again", _SETTING, words(old),
        counted(refused, "URL that it refused is", "URLs that it refused are"),
    )  # fmt: skip
