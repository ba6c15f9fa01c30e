"""What each profile changes in Scrapy's settings, and why; the add-on applies it.

Everything is set at add-on priority or beside what the project lists, so whatever a project, a
spider or a command line sets wins: that is the off switch of each entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy.settings import SETTINGS_PRIORITIES, default_settings
from scrapy.utils.misc import load_object
from scrapy.utils.python import global_object_name

from scrapy_spider_suite.fetch.tls import CONTEXT_FACTORY, has_own_context_factory

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

    from scrapy_spider_suite.settings.declarations import Profile

_OURS = "scrapy_spider_suite"
_MIDDLEWARE = "scrapy.downloadermiddlewares"
_VERIFY = "DOWNLOAD_VERIFY_CERTIFICATES"


class Component(NamedTuple):
    """A component that joins those of *setting*, in the place of *replaces* or at *order*."""

    setting: str
    path: str
    replaces: str | None = None
    order: int = 0


class Lean(NamedTuple):
    """A setting of Scrapy's that the broad profile changes, with the reason."""

    value: Any
    reason: str


CLASSES = {
    "SCHEDULER": f"{_OURS}.scheduler.FrontierScheduler",
    "DOWNLOADER": f"{_OURS}.downloader.PoliteDownloader",
}
"""Scrapy's settings that name one class, and the suite's class for each."""

HANDLER = f"{_OURS}.handlers.http1.Http1Handler"
"""The download handler for http and https."""

_BOTH = (
    Component(
        "DOWNLOADER_MIDDLEWARES",
        f"{_OURS}.downloadermiddlewares.robots.RobotsMiddleware",
        replaces=f"{_MIDDLEWARE}.robotstxt.RobotsTxtMiddleware",
    ),
    # Before robots.txt, whose rules depend on it.
    Component(
        "DOWNLOADER_MIDDLEWARES",
        f"{_OURS}.downloadermiddlewares.useragent.HostUserAgent",
        order=90,
    ),
    # The last to see what a page gave: it ties the page to its new requests.
    Component(
        "SPIDER_MIDDLEWARES", f"{_OURS}.spidermiddlewares.lineage.LineageMiddleware", order=1
    ),
    # Before links are followed: a page that is not wanted goes no further.
    Component(
        "SPIDER_MIDDLEWARES", f"{_OURS}.spidermiddlewares.filters.PageFilters", order=940
    ),
    # Scrapy's own is a pickle, which runs what it finds.
    Component(
        "EXTENSIONS",
        f"{_OURS}.extensions.spiderstate.SpiderState",
        replaces="scrapy.extensions.spiderstate.SpiderState",
    ),
    # The cookie middleware of either profile stays in use; this one keeps its jars over a restart.
    Component("EXTENSIONS", f"{_OURS}.extensions.cookies.CookieKeeper"),
    # After Scrapy's FeedExporter (0), which writes the items first.
    Component("EXTENSIONS", f"{_OURS}.extensions.feeds.FeedFlush", order=1),
    Component("EXTENSIONS", f"{_OURS}.extensions.evidence.Evidence"),
    Component("EXTENSIONS", f"{_OURS}.extensions.chronicler.Chronicler"),
    Component("EXTENSIONS", f"{_OURS}.extensions.quietlog.QuietLog"),
)
BY_SETTING = {
    # Before the project's own, which may make something else of a page.
    "packs_dir": Component("ITEM_PIPELINES", f"{_OURS}.pipelines.pagepacks.PagePackPipeline"),
    "index": Component("ITEM_PIPELINES", f"{_OURS}.pipelines.index.IndexPipeline", order=1_000),
    "link_stats": Component("ITEM_PIPELINES", f"{_OURS}.pipelines.linkstats.LinkStatsPipeline"),
    # It closes after the packs, for which its pages wait.
    "items_dir": Component(
        "ITEM_PIPELINES", f"{_OURS}.pipelines.itempacks.ItemPackPipeline", order=1_000
    ),
    # Nearer to the spider than what filters its output.
    "page_items": Component(
        "SPIDER_MIDDLEWARES", f"{_OURS}.spidermiddlewares.pageitems.PageItems", order=960
    ),
}
"""The components that a setting of the suite switches on, by the name of its field."""
COMPONENTS: dict[Profile, tuple[Component, ...]] = {
    "spider": (
        *_BOTH,
        # Where the broad profile has what follows links.
        Component(
            "SPIDER_MIDDLEWARES", f"{_OURS}.spidermiddlewares.reading.LinkReading", order=950
        ),
    ),
    "broad": (
        *_BOTH,
        # Scrapy's jar grows with the hosts seen; this one is bounded.
        Component(
            "DOWNLOADER_MIDDLEWARES",
            f"{_OURS}.downloadermiddlewares.cookies.HostCookiesMiddleware",
            replaces=f"{_MIDDLEWARE}.cookies.CookiesMiddleware",
        ),
        # Nearer to the downloader than Scrapy's (600), so that it sees a redirect first; it leaves
        # those of requests that the spider made to Scrapy's.
        Component(
            "DOWNLOADER_MIDDLEWARES",
            f"{_OURS}.downloadermiddlewares.redirect.LinkRedirectMiddleware",
            order=610,
        ),
        # Before Scrapy's LogStats (0), whose first line it leaves out, too.
        Component("EXTENSIONS", f"{_OURS}.extensions.progress.Progress", order=-1),
        # Nearest to the spider: only what the others let through is followed.
        Component(
            "SPIDER_MIDDLEWARES", f"{_OURS}.spidermiddlewares.follow.FollowMiddleware", order=950
        ),
    ),
}
"""The middlewares and extensions of each profile."""

LEAN: dict[str, Lean] = {
    "CONCURRENT_REQUESTS": Lean(200, "every host gets one request at a time: many hosts at once"),
    "CONCURRENT_ITEMS": Lean(1, "Scrapy starts so many workers for each page, items or not"),
    "DOWNLOAD_MAXSIZE": Lean(4 << 20, "a page longer than 4 MiB is no page to read links from"),
    "DOWNLOAD_TIMEOUT": Lean(60, "a host that takes longer holds one of the places in vain"),
    "LOG_LEVEL": Lean("INFO", "two lines of debug log for each page are most of the log"),
    "METAREFRESH_ENABLED": Lean(False, "a meta refresh is one of the page's links already"),
    "REMOTE_CONTROL_ENABLED": Lean(False, "a port that runs code is open for days otherwise"),
    "TELNETCONSOLE_ENABLED": Lean(False, "a port that runs code is open for days otherwise"),
}
"""Scrapy's settings in the broad profile; set one in the project to switch that entry off."""


def apply(
    settings: BaseSettings, profile: Profile, switched_on: Iterable[str] = ()
) -> Iterator[tuple[str, str]]:
    """Set up *settings* for *profile*, with what is *switched_on* (names in `BY_SETTING`).

    Yields:
        The name of a setting and the suite's part that does not run because of what the project
        put there.
    """
    for name, path in CLASSES.items():
        if keeps(settings, name):
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


def keeps(settings: BaseSettings, name: str) -> bool:
    """Whether the project has a class of its own for *name*, one of `CLASSES`."""
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


def said_of_handlers(settings: BaseSettings) -> str:
    """What holds while download handlers other than the suite's are in place; "" if none is."""
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
    """List *component* where it belongs; False if the project took that into its own hands."""
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
    """Store what the project listed and the suite added, at the priority that it had."""
    settings.set(name, value, priority=settings.getpriority(name) or 0)


def canonical(component: Any) -> str:
    """Return the import path of the class that *component*, a class or any path to it, stands for.

    Scrapy's own helpers for component settings raise for a path that names nothing, even for one
    that an old project switches off by None; here it stands for itself.
    """
    try:
        return global_object_name(load_object(component))
    except (ImportError, NameError, TypeError, ValueError):
        return str(component)
