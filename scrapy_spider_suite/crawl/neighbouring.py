"""What an agent of a LAN is made of: the others are those of a list (`cluster.lan`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from scrapy_spider_suite.agents.datagrams import Address, Datagrams, parse_agents
from scrapy_spider_suite.agents.members import SKEW_MAX
from scrapy_spider_suite.cluster.lan import Neighbour
from scrapy_spider_suite.crawl.terms import fixed_of
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.store.interface import KV
from scrapy_spider_suite.store.job_reader import untouched

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.agency import Agency
    from scrapy_spider_suite.settings.suite import SuiteSettings


def neighbour_of(agency: Agency, incarnation: int) -> tuple[Neighbour, Datagrams]:
    """The member that *agency* is, and its transport. Raises `SettingsError`, `ValueError`."""
    core, settings, phasing = agency.core, agency.core.settings, agency.phasing
    kv = core.store.kv("agent")
    agents = agents_of(settings)
    if agency.name not in agents:
        raise SettingsError.of("SUITE_AGENT_NAME", agency.name, f"one of {', '.join(agents)}")
    if untouched(agency.job.store):
        kv.delete(b"names")  # those of a start that was refused
    check_names(kv, agents)
    if phasing is not None:
        phasing.check(tuple(agents))
    neighbour = Neighbour(
        list(agents), agency.shares, incarnation, fixed_of(settings, agency.assignment),
        agency.job.file.id, changed=agency.changed, post=agency.post, over=agency.over, kv=kv,
        written=agency.written, skew=SKEW_MAX if phasing is None else phasing.terms.skew,
    )  # fmt: skip
    neighbour.tell = agency.tell
    key = "" if settings.cluster_key is None else settings.cluster_key.text
    post = Datagrams(agency.name, agents, key.encode(), unlisted=neighbour.unlisted)
    return neighbour, post


def agents_of(settings: SuiteSettings) -> dict[str, Address]:
    """Those of the list. Raises `SettingsError`: it is none."""
    try:
        return parse_agents(settings.agents)
    except ValueError as error:
        raise SettingsError(f"SUITE_AGENTS: {error}") from error


def check_names(kv: KV, names: Iterable[str]) -> None:
    """Raise `SettingsError` if the agents of the list are not those that the job began with, as
    *kv* keeps them: nothing is handed over, so what is another's by now would stay for ever."""
    given = "\n".join(sorted(names)).encode()
    known = kv.get(b"names") or given
    if known != given:
        raise SettingsError(
            f"SUITE_AGENTS: expected {', '.join(known.decode().splitlines())}, the agents that "
            "the job was begun with: their addresses may change, and nothing else"
        )
    kv.put(b"names", given)
