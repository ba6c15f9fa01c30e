"""The changes of each profile to Scrapy's settings, with reasons; the add-on applies them.

All have add-on priority, so a project's, spider's or command line's setting wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings, default_settings
from scrapy.utils.misc import load_object
from scrapy.utils.python import global_object_name

from scrapy_spider_suite.fetch.connections import CONTEXT_FACTORY, has_own_context_factory
from scrapy_spider_suite.settings.declarations import Profile

_OURS = "scrapy_spider_suite"
_SCRAPYS = "scrapy.downloadermiddlewares"
_DOWNLOADER, _SPIDER = "DOWNLOADER_MIDDLEWARES", "SPIDER_MIDDLEWARES"
_EXTENSION, _PIPELINE = "EXTENSIONS", "ITEM_PIPELINES"
_VERIFY = "DOWNLOAD_VERIFY_CERTIFICATES"


class Component(NamedTuple):
    """A component for the dict *setting*, in the place of *replaces* or at *order*."""

    setting: str
    path: str
    replaces: str | None = None
    order: int = 0


class LeanSetting(NamedTuple):
    """A setting of Scrapy's in the broad profile, with the reason."""

    value: Any
    reason: str


CLASSES = {
    "SCHEDULER": f"{_OURS}.scheduler.FrontierScheduler",
    "DOWNLOADER": f"{_OURS}.downloader.PoliteDownloader",
}
"""Scrapy's settings that name one class, and the suite's class for each."""

HANDLER = f"{_OURS}.fetch.http1.Http1Handler"  # the download handler for http and https

_BOTH = (
    Component(
        _DOWNLOADER, f"{_OURS}.downloadermiddlewares.robotstxt.RobotsMiddleware",
        replaces=f"{_SCRAPYS}.robotstxt.RobotsTxtMiddleware",
    ),
    # Before robots.txt, whose rules depend on it.
    Component(
        _DOWNLOADER, f"{_OURS}.downloadermiddlewares.useragent.HostUserAgentMiddleware", order=90
    ),
    # The last to see the output of a page: drops items of refused pages, and ties the page to
    # its new requests.
    Component(_SPIDER, f"{_OURS}.spidermiddlewares.pages.PageOutputMiddleware", order=1),
    # Nearest to the spider: only pages that the others let through are filtered and followed.
    Component(_SPIDER, f"{_OURS}.spidermiddlewares.pages.PageMiddleware", order=940),
    # Scrapy's own is a pickle, which runs any code in it.
    Component(
        _EXTENSION, f"{_OURS}.extensions.persistence.SpiderState",
        replaces="scrapy.extensions.spiderstate.SpiderState",
    ),
    # Saves the jars of the cookie middleware of either profile.
    Component(_EXTENSION, f"{_OURS}.extensions.persistence.SavedCookies"),
    # After Scrapy's FeedExporter (0), which writes the items first.
    Component(_EXTENSION, f"{_OURS}.extensions.persistence.DurableFeeds", order=1),
    Component(_EXTENSION, f"{_OURS}.extensions.fetch_recorder.FetchRecorder"),
    Component(_EXTENSION, f"{_OURS}.extensions.job_history.JobHistoryWriter"),
    Component(_EXTENSION, f"{_OURS}.extensions.quietlog.QuietLog"),
    Component(_EXTENSION, f"{_OURS}.extensions.watch.AlertsAndMetrics"),
)  # fmt: skip
BY_SETTING = {
    # Before the project's own, which may make something else of a page.
    "packs_dir": Component(_PIPELINE, f"{_OURS}.pipelines.PagePackPipeline"),
    "index": Component(_PIPELINE, f"{_OURS}.pipelines.IndexPipeline", order=1_000),
    "url_server": Component(_EXTENSION, f"{_OURS}.extensions.url_server.UrlServer"),
    "link_stats": Component(_PIPELINE, f"{_OURS}.pipelines.LinkStatsPipeline"),
    # Closes after the packs, for which its pages wait.
    "items_dir": Component(_PIPELINE, f"{_OURS}.pipelines.ItemPackPipeline", order=1_000),
    # Nearer to the spider than the middlewares that filter its output.
    "page_items": Component(
        _SPIDER, f"{_OURS}.spidermiddlewares.pages.PageItemMiddleware", order=960
    ),
}
"""The components that a setting of the suite switches on, by the name of its field."""
COMPONENTS: dict[Profile, tuple[Component, ...]] = {
    "spider": _BOTH,
    "broad": (
        *_BOTH,
        # Scrapy's jar grows with the hosts seen; this one is bounded.
        Component(
            _DOWNLOADER, f"{_OURS}.downloadermiddlewares.cookies.HostCookiesMiddleware",
            replaces=f"{_SCRAPYS}.cookies.CookiesMiddleware",
        ),
        # Before Scrapy's LogStats (0), whose first line it leaves out, too.
        Component(_EXTENSION, f"{_OURS}.extensions.progress.ProgressLine", order=-1),
    ),
}  # fmt: skip
"""The middlewares and extensions of each profile."""

LEAN: dict[str, LeanSetting] = {
    "CONCURRENT_REQUESTS": LeanSetting(
        200, "each host gets one request at a time, so many hosts are fetched at once"
    ),
    "CONCURRENT_ITEMS": LeanSetting(
        1, "Scrapy starts this many workers for each page, with items or without"
    ),
    "DOWNLOAD_MAXSIZE": LeanSetting(4 << 20, "4 MiB; a longer page is rarely a page with links"),
    "DOWNLOAD_TIMEOUT": LeanSetting(60, "a slow host takes a place of CONCURRENT_REQUESTS"),
    "LOG_LEVEL": LeanSetting("INFO", "the debug log has two lines for each page"),
    "METAREFRESH_ENABLED": LeanSetting(False, "a meta refresh is one of the page's links already"),
    "REMOTE_CONTROL_ENABLED": LeanSetting(False, "its port can run code"),
    "TELNETCONSOLE_ENABLED": LeanSetting(False, "its port can run code"),
}
"""Scrapy's settings in the broad profile; set one in the project to switch that entry off."""


def apply(
    settings: BaseSettings, profile: Profile, switched_on: Iterable[str] = ()
) -> Iterator[tuple[str, str]]:
    """Set up *settings* for *profile*, and the *switched_on* components (of `BY_SETTING`).

    Yields each setting where a project's own component wins, and the path of the suite's.
    """
    for name, path in CLASSES.items():
        if has_own_class(settings, name):
            yield name, path
        else:
            settings.set(name, path, priority="addon")
    yield from _set_handlers(settings)
    for component in (*COMPONENTS[profile], *(BY_SETTING[name] for name in switched_on)):
        if not _add(settings, component):
            yield component.setting, component.path
    if profile == "broad":
        for name, lean in LEAN.items():
            settings.set(name, lean.value, priority="addon")


def has_own_class(settings: BaseSettings, name: str) -> bool:
    """Whether the project has its own class for *name*, a key of `CLASSES`."""
    theirs = (settings.getpriority(name) or 0) > SETTINGS_PRIORITIES["addon"]
    return theirs and canonical(settings[name]) != CLASSES[name]


def _set_handlers(settings: BaseSettings) -> Iterator[tuple[str, str]]:
    if has_own_context_factory(settings):
        yield CONTEXT_FACTORY, HANDLER
        return
    handlers = settings.getdict("DOWNLOAD_HANDLERS")
    for scheme in ("http", "https"):
        if canonical(handlers.setdefault(scheme, HANDLER)) != HANDLER:
            yield f"DOWNLOAD_HANDLERS[{scheme!r}]", HANDLER
    _put_back(settings, "DOWNLOAD_HANDLERS", handlers)


def handler_warning(settings: BaseSettings) -> str:
    """A warning of download handlers other than the suite's; "" for none."""
    handlers = settings.getwithbase("DOWNLOAD_HANDLERS")
    paths = {each: canonical(handlers[each]) for each in ("http", "https") if handlers.get(each)}
    others = {scheme: path for scheme, path in paths.items() if path != HANDLER}
    if not others:
        return ""
    what, whose = " and ".join(others), ", ".join(dict.fromkeys(others.values()))
    said = (
        f" (for {what} in place: {whose}; addresses found there, not by SUITE_DNS_SERVERS, are "
        "checked only after the response"
    )
    if has_own_context_factory(settings) and hasattr(default_settings, _VERIFY):
        said += f"; to verify certificates, {_VERIFY} = True does without {CONTEXT_FACTORY}"
    return f"{said})"


def _add(settings: BaseSettings, component: Component) -> bool:
    # False: the project has replaced or switched off the component's place.
    name, order = component.setting, component.order
    chosen = settings.getdict(name)
    listed = {canonical(key) for key in chosen}
    if component.path in listed:
        return True
    if component.replaces is not None:
        base = settings.getdict(name + "_BASE")
        if component.replaces in listed or base.get(component.replaces) is None:
            return False
        order = base[component.replaces]
        chosen[component.replaces] = None
    chosen[component.path] = order
    _put_back(settings, name, chosen)
    return True


def _put_back(settings: BaseSettings, name: str, value: dict[Any, Any]) -> None:
    # At the priority of the project's own.
    settings.set(name, value, priority=settings.getpriority(name) or 0)


def canonical(component: Any) -> str:
    """Return the import path of *component*, a class or a path; an unknown path unchanged."""
    try:
        return global_object_name(load_object(component))
    except (ImportError, NameError, TypeError, ValueError):
        return str(component)
