"""The contract of assignment functions, the seeds' vectors, and a project's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.assignments import digest_of, moved

from scrapy_spider_suite.cluster.assignment import (
    ASSIGNMENTS,
    Assignment,
    Member,
    OwnerTable,
    fingerprint,
    load_assignment,
)
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.frontier.entries import UNITS
from scrapy_spider_suite.urls.hosts import node_of, terminal_of, thread_of

NAMES = [*ASSIGNMENTS, "support.assignments.ByDomain"]
HASHED = "support.assignments.ByPythonsHash"
URLS = [
    (f"www.host-{n}.example", f"https://www.host-{n}.example/{path}")
    for n in range(40)
    for path in ("", "a/b.html?c=ä")
]
CHARACTERS = st.text(st.characters(min_codepoint=33, max_codepoint=126))

every_kind = pytest.mark.parametrize("name", NAMES)


def agents(*names: str) -> list[Member]:
    """Agents of weight 1."""
    return [Member(name) for name in names]


def answers(name: str) -> list[object]:
    """What the function called *name* says of all that can be asked here."""
    assignment = load_assignment(name)
    tables = [OwnerTable.of(assignment, agents(*"abcdefg"[:count])) for count in (1, 2, 3, 7)]
    units = [assignment.unit(host, url) for host, url in URLS]
    return [units, [digest_of(table) for table in tables], fingerprint(assignment)]


@pytest.fixture(scope="module")
def elsewhere() -> dict[str, list[object]]:
    """What a process with another hash seed says."""
    script = (
        "import sys, json, importlib.util as util\n"
        "spec = util.spec_from_file_location('asked', sys.argv[1])\n"
        "asked = util.module_from_spec(spec)\n"
        "spec.loader.exec_module(asked)\n"
        "print(json.dumps({name: asked.answers(name) for name in [*asked.NAMES, asked.HASHED]}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, __file__], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    said: dict[str, list[object]] = json.loads(done.stdout)
    return said


# The contract


@every_kind
def test_every_process_says_the_same(name: str, elsewhere: dict[str, list[object]]) -> None:
    """Nobody sends tables: whoever knows the members has them."""
    assert answers(name) == elsewhere[name]


@every_kind
def test_every_unit_has_an_owner(name: str) -> None:
    """Of the members, whose shares are as even as they can be of that function."""
    for count in (1, 2, 5):
        table = OwnerTable.of(load_assignment(name), agents(*"abcde"[:count]))
        assert table.owners.shape == (UNITS,)
        assert sum(table.counts().values()) == UNITS
        assert set(table.counts()) == set("abcde"[:count])
        assert min(table.counts().values()) > 0.9 * UNITS / count
        assert table.owner(17) == "abcde"[table.owners[17]]


@every_kind
def test_the_order_of_the_names_decides(name: str) -> None:
    """Not that in which agents came: K2, numbers from 0 for each of them."""
    assignment = load_assignment(name)
    table = OwnerTable.of(assignment, agents("b", "a", "c"))
    assert [member.name for member in table.members] == ["a", "b", "c"]
    again = OwnerTable.of(assignment, agents("c", "b", "a"))
    assert np.array_equal(table.owners, again.owners)
    assert digest_of(table) == digest_of(again)
    assert digest_of(table) != digest_of(OwnerTable.of(assignment, agents("a", "b", "d")))


@every_kind
def test_a_host_is_whole_or_said_to_be_divided(name: str) -> None:
    """What phases and hand-over rest upon."""
    assignment = load_assignment(name)
    units = [assignment.unit(host, url) for host, url in URLS]
    assert all(0 <= unit < UNITS for unit in units)
    assert (units[::2] == units[1::2]) == assignment.by_host


@every_kind
def test_what_moves_is_all_that_moves(name: str) -> None:
    """The old table and what moved are the new table."""
    assignment = load_assignment(name)
    old, new = (OwnerTable.of(assignment, agents(*names)) for names in ("abd", "bcde"))
    owners = [old.owner(unit) for unit in range(UNITS)]
    for (before, after), units in moved(old, new).items():
        assert before != after
        assert len(units)
        for unit in units.tolist():
            assert owners[unit] == before
            owners[unit] = after
    assert owners == [new.owner(unit) for unit in range(UNITS)]
    assert moved(old, old) == {}


def test_a_table_stays() -> None:
    """Others hold it, too."""
    table = OwnerTable.of(load_assignment("ring"), agents("a", "b"))
    with pytest.raises(ValueError, match="read-only"):
        table.owners[0] = 1


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([], "0 agents: expected 1 to 65,536"),
        (agents("a", "a"), "agents of the same name"),
        ([Member("a", 0.0)], r"weight 0\.0 of a: expected 0\.1 to 10\.0"),
        ([Member("a", float("nan"))], "weight nan of a"),
        ([Member("a"), Member("b", 11)], "weight 11 of b"),
    ],
)
def test_impossible_members(members: list[Member], message: str) -> None:
    """They come from whoever joins, and are said before a table is made."""
    with pytest.raises(ValueError, match=message):
        OwnerTable.of(load_assignment("ring"), members)


# The seeds'


def owner(assignment: Assignment, host: str, url: str, count: int) -> int:
    """The number of the agent that has a URL."""
    table = OwnerTable.of(assignment, agents(*(f"{number:04}" for number in range(count))))
    return int(table.owner(assignment.unit(host, url)))


@pytest.mark.parametrize(
    ("url", "node"),
    [
        ("http://www.sun.com/", 2),
        ("http://www.sgi.com/", 3),
        ("http://www.sun.com/news/", 4),
        ("http://www.sun.com/news/archive/", 4),
    ],
)
def test_kspiders_nodes(url: str, node: int) -> None:
    """K1: five of them, and a host over several of them."""
    assert owner(load_assignment("url-sum"), url.split("/")[2], url, 5) == node


@pytest.mark.parametrize(("host", "total"), [("www.sun.com", 671), ("www.sgi.com", 666)])
def test_tarantulas_terminals(host: str, total: int) -> None:
    """T8: all URLs of a host with one of them."""
    assignment = load_assignment("host-parity")
    for count in (1, 4, 6, 80):
        assert owner(assignment, host, f"http://{host}/a", count) == total % count


@settings(max_examples=30, deadline=None)
@given(
    host=CHARACTERS, machines=st.sampled_from([1, 2, 3, 5, 8, 12]),
    processes=st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 16, 64]), min_size=12, max_size=12),
)  # fmt: skip
def test_tarantulas_threads(host: str, machines: int, processes: list[int]) -> None:
    """T7, T8: one sum chooses the machine, the other the process, however many each has."""
    names = [
        f"m{machine:02}_{process:02}"
        for machine in range(machines) for process in range(processes[machine])
    ]  # fmt: skip
    assignment = load_assignment("host-parity")
    table = OwnerTable.of(assignment, agents(*names))
    machine = terminal_of(host, machines)
    process = thread_of(host, processes[machine])
    assert table.owner(assignment.unit(host, "")) == f"m{machine:02}_{process:02}"


@settings(max_examples=30, deadline=None)
@given(url=CHARACTERS, long=st.integers(1, 200), count=st.integers(1, 30))
def test_sums_are_the_papers(url: str, long: int, count: int) -> None:
    """For every number of agents; of sums that are no unit for those that are promised."""
    by_url, by_host = load_assignment("url-sum"), load_assignment("host-parity")
    url *= long
    if sum(url.encode()) < UNITS or 55_440 % count == 0:
        assert owner(by_url, "", url, count) == node_of(url, count)
    assert 0 <= by_url.unit("", url) < UNITS
    host = url[:253]
    if 240 % count == 0:
        assert owner(by_host, host, "", count) == terminal_of(host, count)


def test_a_sum_that_is_no_unit() -> None:
    """13 is the first number of agents for which such a URL may lie elsewhere."""
    assignment, url = load_assignment("url-sum"), "~" * 2_083
    for count in (*range(1, 13), 14, 15, 16, 18, 20, 21, 22, 24):
        assert owner(assignment, "", url, count) == node_of(url, count)
    assert owner(assignment, "", url, 13) != node_of(url, 13)


@pytest.mark.parametrize("name", ["url-sum", "host-parity"])
def test_sums_know_no_weights(name: str) -> None:
    """To take one and do nothing with it would be worse than to refuse it."""
    assert OwnerTable.of(load_assignment(name), [Member("a", 2), Member("b", 2)])
    with pytest.raises(SettingsError, match=f"{name}.*different weights .b has 1, a 1.5"):
        OwnerTable.of(load_assignment(name), [Member("a", 1.5), Member("b")])


@pytest.mark.parametrize(("name", "least"), [("url-sum", 0.8), ("host-parity", 0.8)])
def test_modulo_moves_nearly_everything(name: str, least: float) -> None:
    """n of n + 1 parts, for which it is not the default."""
    old, new = (OwnerTable.of(load_assignment(name), agents(*"abcde"[:count])) for count in (4, 5))
    assert sum(map(len, moved(old, new).values())) == pytest.approx(least * UNITS, rel=0.01)


# A project's own


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rnig", "'rnig': neither one of ring, url-sum, host-parity nor a class .*'rnig'"),
        ("support.assignments.Missing", "Missing': neither .* has no attribute 'Missing'"),
        ("support.assignments.function", "expected the import path of a class"),
        ("support.assignments.Needy", r"Needy\(\) failed: TypeError.*agents"),
        ("support.assignments.Unsaid", "expected a class with by_host"),
        ("support.assignments.Untrue", "expected by_host = False for URLs of a host"),
        ("support.assignments.TooFar", r"expected unit\('www.sample-0.example', .* to 65,535, not"),
        ("support.assignments.Random", "expected a function that says the same of the same"),
        ("support.assignments.RandomTable", "expected a function that says the same of the same"),
        ("support.assignments.Words", r"array of 65,536 integers, not <U8 of shape \(65536,\)"),
        ("support.assignments.Short", r"array of 65,536 integers, not uint16 of shape \(65535,\)"),
        ("support.assignments.Stranger", r"table\(\) of 1 member to hold 0 to 0"),
    ],
)
def test_what_is_no_assignment_function(name: str, message: str) -> None:
    """One line that names the setting, before anything is fetched."""
    with pytest.raises(SettingsError, match=f"^SUITE_ASSIGNMENT = '{name}': ") as raised:
        load_assignment(name)
    assert raised.match(message)
    assert "\n" not in str(raised.value)


def test_what_fails_later() -> None:
    """The sample is not the web."""
    assignment = load_assignment("support.assignments.Late")
    assert assignment.unit("a.example", "https://a.example/") == 1
    with pytest.raises(SettingsError, match=r"unit\('a.test', 'https://a.test/'\) failed: KeyEr"):
        assignment.unit("a.test", "https://a.test/")


def test_processes_that_disagree(elsewhere: dict[str, list[object]]) -> None:
    """One process cannot tell that others say something else; their fingerprints do."""
    assert fingerprint(load_assignment(HASHED)) != elsewhere[HASHED][-1]
    assert len({fingerprint(load_assignment(name)) for name in NAMES}) == len(NAMES)
