"""``snapshot``: a copy of the store, made beside the crawl, for whoever asked to take away.

The tables are linked into the action folder in a thread of their own. The rest of the job
directory is copied by whoever asked (`scrapy_spider_suite.store.job_directory`).
"""

from __future__ import annotations

from shutil import rmtree

from scrapy_spider_suite.errors import ActionError, StoreWriteError
from scrapy_spider_suite.operate.actions import Action, ActionFolder
from scrapy_spider_suite.operate.job_target import JobTarget
from scrapy_spider_suite.operate.verb import PORTION, Work, in_a_thread
from scrapy_spider_suite.store.seen_transfer import while_locked


def snapshot(site: JobTarget, action: Action) -> Work:
    """Copy the store as it is now; *target* is where it will be taken, for the audit log.

    If whoever asked has taken it back by the end, the copy is removed.
    """
    action.expect("target")
    target = action.get("target", str)
    folder = ActionFolder(site.folder)
    path = folder.copy_of(action.id)
    failures: list[StoreWriteError] = []

    def copy() -> None:
        rmtree(path, ignore_errors=True)  # a kill may have left half of one
        try:
            site.store.checkpoint(path)
        except StoreWriteError as error:
            failures.append(error)
        if not folder.wanted(action.id):
            rmtree(path, ignore_errors=True)

    # Everything is committed before a portion begins.
    work = in_a_thread(copy, 0.0 if site.running else PORTION)
    yield from while_locked(site.store.archive, while_locked(site.store.sieve, work))
    if failures:
        raise ActionError(str(failures[0]))
    if not path.is_dir():
        raise ActionError("it was taken back meanwhile: the copy was removed")
    return f"the store was copied, for {target}", {"target": target, "when": site.wall()}
