"""Members as Redis keeps them: what is not of their form is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_spider_suite.cluster.membership import (
    Candidate,
    RegistryAnswer,
    decode_units,
    encode_units,
    join_refusal,
)

ROW: dict[str, Any] = {
    "name": "a", "number": 1, "incarnation": "00ff", "weight": 1.5, "address": "", "ends": 0,
    "state": "active", "heard": 1, "idle": False, "sent": 0, "received": 0, "call": 7,
}  # fmt: skip
KNOWN: dict[str, Any] = {"name": "a", "job": "j", "folder": "s", "grace": 900.0}


def answered(**given: Any) -> bytes:
    """An answer with one member, which differs from `ROW` by *given*."""
    return msgspec.json.encode({"code": "ok", "now": 1, "members": [ROW | given]})


def _answer(data: bytes) -> RegistryAnswer:
    return msgspec.json.decode(data, type=RegistryAnswer)


def test_members_are_sorted_by_name_and_the_active_ones_own() -> None:
    """As every agent sorts them."""
    rows = [ROW | {"name": name, "state": state} for name, state in
            (("c", "active"), ("a", "dead"), ("b", "active"))]  # fmt: skip
    data = msgspec.json.encode({"code": "ok", "now": 1, "epoch": 5, "members": rows})
    view = _answer(data).view()
    assert [row.name for row in view.rows] == ["a", "b", "c"]
    assert view.members == (("b", 1.5), ("c", 1.5))
    assert view.epoch == 5
    assert view.row("c").name == "c"
    assert view.row("d") is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""}, {"name": "x" * 65}, {"name": 7}, {"number": 0}, {"number": 65_536},
        {"number": 1.5}, {"weight": 0}, {"weight": 1e9}, {"state": "king"}, {"ends": -1},
        {"ends": 10**14}, {"incarnation": "0" * 17}, {"address": "x" * 257}, {"idle": 1},
    ],
)  # fmt: skip
def test_a_row_that_no_agent_has_is_refused(wrong: dict[str, Any]) -> None:
    """Whoever wrote it."""
    with pytest.raises(msgspec.ValidationError, match=next(iter(wrong))):
        _answer(answered(**wrong))


@settings(max_examples=60)
@given(st.binary(max_size=200))
def test_anything_is_refused_as_a_value_error(data: bytes) -> None:
    """Bytes of somebody else."""
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
        _answer(data)


def test_terms_have_one_form() -> None:
    """Whatever the order in which settings are given."""
    one, other = ({"A": "1", "B": "2"}, {"B": "2", "A": "1"})
    assert Candidate(**KNOWN, fixed=one).terms() == Candidate(**KNOWN, fixed=other).terms()
    for_ever = Candidate(**(KNOWN | {"grace": None})).terms()
    assert for_ever == '{"SUITE_AGENT_GRACE":"forever"}'


def test_units_are_sent_once_and_ascending() -> None:
    """Scripts write runs of them at once."""
    data = encode_units(np.array([65_535, 256, 256, 1], np.uint16))
    assert data == b"\x00\x01\x01\x00\xff\xff"
    assert decode_units(data).tolist() == [1, 256, 65_535]


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("name", ["SUITE_AGENT_NAME"]), ("other-job", ["SUITE_AGENT_NAME", "JOBDIR"]),
        ("other-crawl", ["SUITE_CRAWL_NAME", "JOBDIR"]),
    ],
)  # fmt: skip
def test_a_refusal_names_the_settings_that_help(code: str, names: list[str]) -> None:
    """So that nobody has to look for them."""
    answer = _answer(msgspec.json.encode({"code": code, "now": 1}))
    said = join_refusal(answer, Candidate(**KNOWN), 0.0)
    assert [name for name in names if name in said.replace(",", "").split()] == names


def test_a_refusal_nobody_knows_is_told_as_it_is() -> None:
    """A newer release's scripts may have more of them."""
    answer = _answer(b'{"code": "mood", "now": 0}')
    assert join_refusal(answer, Candidate(**KNOWN), 0.0) == "the crawl does not take a: mood"
