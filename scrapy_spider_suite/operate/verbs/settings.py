"""``scrapy frontier settings``: the settings of the suite, in groups, within 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

from scrapy_spider_suite.operate.verb import Found, Invocation, JobVerb, Question, Row, option
from scrapy_spider_suite.settings.declarations import setting_name, shown_value
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.settings.table import FRONT_PAGE
from scrapy_spider_suite.store.job_directory import FOLDER, JobFile
from scrapy_spider_suite.store.job_reader import read_status

_WIDTH = 100
_VALUE = 16  # columns of a value where a setting has one line; a longer one is cut
_FRONT = "The ten to know first, beside Scrapy's JOBDIR and USER_AGENT"


def _look(call: Invocation, question: Question) -> list[Row]:
    job = JobFile.read(Path(call.jobdir) / FOLDER) if call.jobdir else None
    settings = call.settings.copy()
    if job is not None and settings.get("SUITE_PROFILE", "auto") == "auto":
        # There is no spider here that would say which it is.
        settings.set("SUITE_PROFILE", job.settings.get("profile"), priority="project")
    suite = SuiteSettings.from_settings(settings)
    rows = suite.as_table()
    if job is not None:
        for row in rows:
            row["job"] = job.settings.get(row["name"].removeprefix("SUITE_").lower())
    wanted = [word.lower() for word in call.options.words]
    rows = [row for row in rows if all(_matches(row, word) for word in wanted)]
    if call.options.changed:
        now, usual = suite.as_stored(), suite.defaults().as_stored()
        differs = {setting_name(name) for name in now if now[name] != usual[name]}
        if job is not None:
            differs |= {change.name for change in suite.diff(job.settings)}
        rows = [row for row in rows if row["name"] in differs]
    return rows


def _show(call: Invocation, found: Found) -> int:
    rows = list(found.rows())
    if call.json:
        call.table(rows, ())
        return 0
    whole = bool(call.options.words) or call.options.changed
    for line in _whole(rows) if whole else _listed(rows):
        print(line)
    status = read_status(call.folder()) if call.jobdir and not whole else None
    if status and status.get("path"):
        print(f"URLs are fetched this way: {status['path']}.")
    return 0


def _matches(row: Row, word: str) -> bool:
    name = row["name"].removeprefix("SUITE_").lower()
    return word in row["group"].lower() or word.removeprefix("suite_") in name


def _listed(rows: list[Row]) -> Iterator[str]:
    """A line for each setting: the ten first, then the others by group."""
    front = [setting_name(name) for name in FRONT_PAGE]
    by_name = {row["name"]: row for row in rows}
    groups = {_FRONT: [by_name[name] for name in front]}
    for row in rows:
        if row["name"] not in front:
            groups.setdefault(row["group"], []).append(row)
    width = max(len(row["name"]) for row in rows)
    for group, members in groups.items():
        yield f"{group}:"
        for row in members:
            line = f"  {row['name']:<{width}}  {_short(_values(row), _VALUE):<{_VALUE}}  "
            yield f"{line}{_short(row['meaning'], _WIDTH - len(line))}"
        yield ""
    yield "`scrapy frontier settings WORD` has the whole text: a group, or part of a name."


def _whole(rows: list[Row]) -> Iterator[str]:
    for row in rows:
        yield f"{row['name']} = {_values(row)}"
        unit = f" ({row['unit']})" if row["unit"] else ""
        default = row["spider"]
        if row["broad"] != default:
            default = f"{default} in the spider profile, {row['broad']} in the broad profile"
        live = "; `scrapy frontier set` changes it in a running crawl" if row["live"] else ""
        for text in (
            row["meaning"], f"Expected: {row['allowed']}{unit}.", f"Default: {default}.",
            f"A resumed job: {row['kind']}{live}. See docs/{row['page']}.",
        ):
            yield from textwrap.wrap(
                text, _WIDTH, initial_indent="    ", subsequent_indent="    ",
                break_on_hyphens=False,  # paths stay whole
            )  # fmt: skip


def _values(row: Row) -> str:
    job = row.get("job")
    return row["value"] if job is None else f"{row['value']} (job: {shown_value(job, row['unit'])})"


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


VERBS = (
    JobVerb(
        "settings", "the settings of the suite, and those that the job was last run with",
        options=(
            option("words", metavar="WORD", nargs="*", help="a group, or part of a name"),
            option(
                "--changed", action="store_true",
                help="only settings that differ from their default, or from the job's",
            ),
        ),
        arguments="[WORD ...]", look=_look, show=_show,
        not_remote="name it on its machine, such as -j crawls/news/NAME",
        about="Each WORD is a group of settings or a part of a name: all have to match.",
        examples=("settings -j crawls/news", "settings delay", "settings --changed"),
        needs_job=False,
    ),
)  # fmt: skip
