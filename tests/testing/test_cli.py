"""The command line: one clear line for what is wrong, and what it prints when it is up."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from scrapy.settings import Settings
from support.loaded_modules import loaded_by

from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.spiders import BroadSpider
from scrapy_spider_suite.testing.cli import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hosts", "x"], "hosts = 'x': expected a whole number"),
        (["--hosts", "-5"], "hosts = -5: expected a whole number of at least 0"),
        (["--latency", "-1"], "latency = -1.0: expected a number of seconds of at least 0"),
        (["--errors", "2"], "errors = 2.0: expected a number between 0 and 1"),
        (["--speed", "2"], "unknown option or argument: --speed"),
        (["extra"], "unknown option or argument: extra"),
        (["--site", "docs"], "site = 'docs': expected NAME=DIR"),
        (["--site", "docs=/none"], "sites = '/none': expected a folder that exists"),
        (["--host", "1:speed=2"], "host = '1:speed=2': expected INDEX:TRAIT=VALUE"),
        (["--config", "[]"], "config: expected a JSON object"),
        (["--status", "often"], "status = 'often': expected a number of seconds"),
        (["--seconds", "-1"], "seconds = -1.0: expected a number of seconds"),
        (["--log", "/none/log"], "log = '/none/log': No such file or directory"),
    ],
)
def test_bad_options_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And exit code 2."""
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"fakeweb: {message}")
    assert output.err.count("\n") == 1


def test_a_missing_value_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """What argparse itself complains of, too."""
    with pytest.raises(SystemExit, match="2"):
        main(["--hosts"])
    assert capsys.readouterr().err == "fakeweb: argument --hosts: expected one argument\n"


def test_help_names_every_knob(capsys: pytest.CaptureFixture[str]) -> None:
    """With examples."""
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    output = capsys.readouterr().out
    for word in (
        "--hosts N",
        "--redirects-across 0..1",
        "--site NAME=DIR",
        "examples:",
        "(default",
    ):
        assert word in output


def test_hostile_answers_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """For those who write tests with them."""
    assert main(["--list-hostile"]) == 0
    assert "gzip-bomb " in capsys.readouterr().out


def test_what_it_prints_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where to start, the settings to paste, status lines, a last line."""
    (tmp_path / "index.html").write_text("index")
    arguments = [
        *("--hosts", "4", "--addresses", "2", "--site", f"docs={tmp_path}", "--port", "0"),
        *("--log", str(tmp_path / "log"), "--seconds", "0.6", "--status", "0.04"),
    ]
    assert main(arguments) == 0
    output = capsys.readouterr()
    assert "4 hosts on 2 addresses (127.8.0.1 to 127.8.0.2)" in output.out
    assert "  start at     http://docs.test:" in output.out
    assert f"  arrival log  {tmp_path / 'log'}" in output.out
    options = [line.strip() for line in output.out.splitlines() if line.startswith("  -s ")]
    pasted = dict(shlex.split(each)[1].split("=", 1) for each in options)
    settings = SuiteSettings.from_settings(Settings(pasted), BroadSpider)
    assert settings.dns_servers[0][0] == "127.0.0.1"
    assert settings.allow_private_addresses == ("127.0.0.0/8",)
    assert output.err.count("0 requests, 0/s, 0 open connections, 0 DNS queries") >= 3


def test_what_it_prints_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """One line of JSON; single options win over the configuration."""
    config = json.dumps({"hosts": 7, "addresses": 3})
    assert main(["--config", config, "--hosts", "2", "--seconds", "0.01", "--json"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["hosts"] == 2
    assert output.out.count("\n") == 1
    assert output.err == ""


def test_it_starts_without_scrapy() -> None:
    """A web that a test starts must be there at once."""
    names = "scrapy_spider_suite.testing.cli", "scrapy_spider_suite.testing.hostile_site"
    loaded = loaded_by(f"import {', '.join(names)}", "-W", "error")
    assert not {"scrapy", "twisted", "numpy"} & loaded
