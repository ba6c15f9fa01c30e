"""Signals of the suite, beside Scrapy's own."""

from __future__ import annotations

settings_changing = object()
"""A setting of the suite is to be changed in a running crawl: who cannot go by it refuses it now.

Receivers get what those of `settings_changed` do, and raise a `SettingsError` that says why. They
change nothing, since another one may refuse it.
"""

settings_changed = object()
"""A setting of the suite was changed in a running crawl (``scrapy frontier set``).

Receivers get ``old`` and ``new``, a `SuiteSettings` each, and ``spider``. By then `suite_settings`
and the crawl give the new ones: only who keeps a value of them needs to listen.
"""

pack_closed = object()
"""A pack of pages is complete, and will not change any more.

Receivers get ``path``, its `pathlib.Path`, and ``spider``.
"""

item_pack_closed = object()
"""A file of items is complete, and will not change any more.

Receivers get ``path``, its `pathlib.Path`, and ``spider``.
"""

item_not_exported = object()
"""A feed (jobs only) or an item pack could not take an item, after the pipelines had.

Receivers get ``item``, ``response``, ``spider`` and ``failure``, as of Scrapy's ``item_error``.
"""
