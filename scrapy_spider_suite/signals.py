"""Signals of the suite, beside Scrapy's own."""

from __future__ import annotations

settings_changing = object()
"""A setting of the suite is to be changed in a running crawl: receivers may refuse it.

Receivers get the arguments of `settings_changed`, raise a `SettingsError` to refuse, and change
nothing.
"""

settings_changed = object()
"""A setting of the suite was changed in a running crawl (``scrapy frontier set``).

Receivers get ``old`` and ``new``, a `SuiteSettings` each, and ``spider``. `suite_settings` returns
the new ones by then: only receivers that keep a value need to listen.
"""

pack_closed = object()
"""A pack of pages is complete and final.

Receivers get ``path``, its `pathlib.Path`, and ``spider``.
"""

item_pack_closed = object()
"""A file of items is complete and final.

Receivers get ``path``, its `pathlib.Path`, and ``spider``.
"""

item_not_exported = object()
"""A feed (jobs only) or an item pack could not take an item, after the pipelines had.

Receivers get ``item``, ``response``, ``spider`` and ``failure``, as of Scrapy's ``item_error``.
"""
