"""Every type of value reads what Python, a command line and an environment variable write."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_spider_suite.settings import values
from scrapy_spider_suite.settings import values as v


@pytest.mark.parametrize(
    ("type_", "raw", "value"),
    [
        (v.boolean, "true", True),
        (v.boolean, "0", False),
        (v.boolean, 1, True),
        (v.integer(0), "7", 7),
        (v.integer(0), 7.0, 7),
        (v.duration(), 4, 4.0),
        (v.duration(), "1.5", 1.5),
        (v.duration(), "10m", 600.0),
        (v.duration(), "2 H", 7200.0),
        (v.duration(), "7d", 604_800.0),
        (v.size(), 10, 10),
        (v.size(), "64M", 64 << 20),
        (v.size(), "1.5k", 1536),
        (v.size(), "2GB", 2 << 30),
        (v.choice("finish", "wait"), "WAIT", "wait"),
        (v.choice("any", "4", "6"), 4, "4"),
        (v.file, "", None),
        (v.switch_or_folder, "true", True),
        (v.switch_or_folder, 0, False),
        (v.switch_or_folder, "/no/such/folder", Path("/no/such/folder")),
        (v.switch_or_folder, Path("/usr"), Path("/usr")),
        (v.dotted_paths, "a.B, c.d.E,", ("a.B", "c.d.E")),
        (v.dotted_paths, [], ()),
        (values.name_servers, "127.0.0.1:5353", (("127.0.0.1", 5353),)),
        (values.name_servers, ["::1", "[::1]:54"], (("::1", 53), ("::1", 54))),
        (values.hosts_or_networks, "1", True),
        (values.hosts_or_networks, False, False),
        (
            values.hosts_or_networks,
            ["127.0.0.0/8", "10.0.0.1", "Intranet.", "[::1]"],
            ("127.0.0.0/8", "10.0.0.1/32", "intranet", "::1/128"),
        ),
    ],
)
def test_what_is_allowed_is_read(type_: v.ValueType, raw: object, value: object) -> None:
    """The value comes out typed, and a value that was read once reads the same again."""
    assert type_.parse(raw) == value
    assert type(type_.parse(raw)) is type(value)


@pytest.mark.parametrize(
    ("type_", "raw"),
    [
        (v.boolean, "yes please"),
        (v.boolean, 2),
        (v.integer(1, 20), 0),
        (v.integer(1, 20), 21),
        (v.integer(1), True),
        (v.integer(1), 1.5),
        (v.integer(1), "1e3"),
        (v.integer(1), None),
        (v.duration(), -1),
        (v.duration(), "abc"),
        (v.duration(), "10y"),
        (v.duration(), float("nan")),
        (v.duration(), float("inf")),
        (v.duration(), True),
        (v.duration(), [1]),
        (v.size(1), 0),
        (v.size(), "1T"),
        (v.size(), 1.5),
        (v.size(), True),
        (v.choice("a", "b"), "c"),
        (v.file, "/no/such/file"),
        (v.file, 5),
        (v.switch_or_folder, __file__),
        (v.switch_or_folder, ""),
        (v.switch_or_folder, 5),
        (v.switch_or_folder, None),
        (v.dotted_paths, "notdotted"),
        (v.dotted_paths, 5),
        (v.dotted_paths, ["a.B", 5]),
        (values.name_servers, "ns.example.org"),
        (values.name_servers, "127.0.0.1:70000"),
        (values.hosts_or_networks, "10.0.0.0/99"),
        (values.hosts_or_networks, "999.1.1.1"),
        (values.hosts_or_networks, "two words"),
        (values.hosts_or_networks, "a..b"),
    ],
)
def test_anything_else_is_a_value_error(type_: v.ValueType, raw: object) -> None:
    """No other exception comes out, and nothing is guessed."""
    with pytest.raises(ValueError):  # noqa: PT011 - the message is made by the caller
        type_.parse(raw)


def test_a_file_must_exist(tmp_path: Path) -> None:
    """A folder is not a file; a file comes out as a path, whether text or path went in."""
    file = tmp_path / "rules"
    file.touch()
    assert v.file.parse(str(file)) == file
    assert v.file.parse(file) == file
    with pytest.raises(ValueError, match=tmp_path.name):
        v.file.parse(tmp_path)


@given(st.floats(0, 1e9), st.sampled_from("smhdw"))
def test_a_duration_with_a_unit_is_that_many_of_it(number: float, letter: str) -> None:
    """The text form is the number times the unit, for every number and unit."""
    rounded = f"{number:.3f}"
    seconds = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}[letter]
    assert v.duration().parse(rounded + letter) == float(rounded) * seconds


@given(st.text() | st.integers() | st.floats() | st.booleans() | st.none() | st.lists(st.text()))
def test_garbage_raises_nothing_but_value_error(raw: object) -> None:
    """Whatever a settings file holds, a parser answers or raises what its caller catches."""
    types = [
        v.boolean, v.integer(0), v.duration(), v.size(), v.choice("a"), v.file,
        v.dotted_paths, values.name_servers, values.hosts_or_networks,
    ]  # fmt: skip
    for type_ in types:
        try:
            type_.parse(raw)
        except (ValueError, OverflowError):
            continue
