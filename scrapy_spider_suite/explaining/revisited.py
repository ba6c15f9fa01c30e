"""When a page is visited again, and why then, in words."""

from __future__ import annotations

from datetime import UTC, datetime

from scrapy_spider_suite.explaining.judging import span
from scrapy_spider_suite.explaining.terms import Terms
from scrapy_spider_suite.store.revisit_plans import MISSES_MAX, RevisitPlan

Row = dict[str, object]


def next_visit(terms: Terms, plan: RevisitPlan, wall: float) -> Row:
    """When the page of *plan* is visited again, and what is known of it, at *wall* time."""
    if terms.settings.revisit == "off":
        where = terms.where("SUITE_REVISIT")
        return {"next_try": "never", "why_then": f"pages are not fetched again ({where})"}
    left = plan.due - wall
    when = f"in {span(left)}" if left > 0 else f"it is due since {span(-left)}"
    return {"next_try": f"{when}: {_time(plan.due)}", "why_then": _why(terms, plan), **_facts(plan)}


def _why(terms: Terms, plan: RevisitPlan) -> str:
    if plan.claimed:
        return "a sitemap says that it has changed since"
    if plan.misses:
        times = "once" if plan.misses == 1 else f"{plan.misses} times"
        return f"it was not there, {times} in a row; after {MISSES_MAX} it is not looked for again"
    if terms.settings.revisit == "fixed":
        return f"every page is visited again ({terms.where('SUITE_REVISIT_INTERVAL')})"
    history = plan.history
    known = history.quiet or history.dated or history.changed
    by = "by what its visits found" if known else "as is assumed of a page that was visited once"
    return f"it changes about every {span(1 / plan.rate)}, {by}"


def _facts(plan: RevisitPlan) -> Row:
    facts: Row = {"last_visit": _time(plan.history.last)}
    if plan.validators.etag:
        facts["etag"] = plan.validators.etag
    if plan.validators.last_modified:
        facts["last_modified"] = plan.validators.last_modified
    return facts


def _time(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
