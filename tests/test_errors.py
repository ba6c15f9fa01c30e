"""What errors say."""

from __future__ import annotations

from scrapy_spider_suite.errors import SettingsError


def test_a_settings_error_names_setting_value_and_what_is_allowed() -> None:
    """The message is the one line that the user needs."""
    error = SettingsError.of("SUITE_REQUESTS_PER_VISIT", 99, "a whole number from 1 to 20")
    assert str(error) == "SUITE_REQUESTS_PER_VISIT = 99: expected a whole number from 1 to 20"
