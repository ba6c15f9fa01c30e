"""What errors say."""

from __future__ import annotations

from scrapy_spider_suite.errors import JobSettingsError, SettingsError


def test_a_settings_error_names_setting_value_and_what_is_allowed() -> None:
    """The message is the one line that the user needs."""
    error = SettingsError.of("SUITE_REQUESTS_PER_VISIT", 99, "a whole number from 1 to 20")
    assert str(error) == "SUITE_REQUESTS_PER_VISIT = 99: expected a whole number from 1 to 20"


def test_a_job_settings_error_lists_the_settings() -> None:
    """The names can be read without taking the message apart."""
    assert JobSettingsError("changed", ["SUITE_SEEN_STORE"]).names == ("SUITE_SEEN_STORE",)
    assert JobSettingsError("changed").names == ()
