"""Scrapy's tests of its HTTP/1.1 download handler, for the suite's; `run` puts it among them."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from scrapy.utils.misc import load_object

from scrapy_spider_suite.fetch.resolver import Resolver
from tests import test_downloader_handler_twisted_http11 as scrapy_tests

_HANDLER = "scrapy_spider_suite.fetch.http1.Http1Handler"
_SCRAPYS = scrapy_tests.HTTP11DownloadHandlerMixin


class _Handler:
    download_handler_cls = load_object(_HANDLER)
    settings_dict: ClassVar[dict[str, Any]] = {
        "DOWNLOAD_HANDLERS": {"http": _HANDLER, "https": _HANDLER}
    }

    @pytest.fixture
    def resolve_to_loopback(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Resolve every name to 127.0.0.1; Scrapy's fixture does so for the system's resolver."""
        resolve = Resolver.resolve
        monkeypatch.setattr(Resolver, "resolve", lambda self, host: resolve(self, "127.0.0.1"))


for _name, _case in vars(scrapy_tests).items():
    if isinstance(_case, type) and issubclass(_case, _SCRAPYS) and _case is not _SCRAPYS:
        globals()[_name] = type(_name, (_Handler, _case), {})
