"""Places on other file systems: what is one, and that no password is kept or shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from scrapy import Spider
from scrapy.settings import Settings

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.settings.suite import SuiteSettings


def read(value: object) -> str:
    """The setting."""
    return SuiteSettings.from_settings(Settings({"SUITE_PACKS_UPLOAD": value})).packs_upload


@pytest.mark.parametrize(
    "value", ["", "s3://bucket", "s3://bucket/a/b", "/mnt/nas", "file:///mnt/nas", "memory://a",
              "sftp://me@host:2222/packs", "sftp://host:2222/packs@home"],
)  # fmt: skip
def test_a_place(value: str) -> None:
    """As fsspec has it."""
    assert read(value) == value


@pytest.mark.parametrize(
    "value", ["bucket/a", "s3:/a", "s3://", "://a", 5, "/a\n", "simplecache::s3"]
)
def test_no_place(value: object) -> None:
    """Said with what is allowed."""
    with pytest.raises(SettingsError, match="expected a URL without a password"):
        read(value)


@pytest.mark.parametrize("value", ["file://relative", "file://a/b", "local://packs"])
def test_a_folder_from_here_on(value: str) -> None:
    """Would be another one wherever a crawl is started."""
    with pytest.raises(SettingsError, match=r"SUITE_PACKS_UPLOAD.*an absolute path"):
        read(value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("PACKS_UPLOAD", "memory://a"), ("INDEX", True), ("READ_LINKS", "on-demand")],
)
def test_without_packs(name: str, value: object) -> None:
    """A crawl without packs is refused; of the project alone, a spider may still set them."""
    settings = Settings({f"SUITE_{name}": value, "SUITE_PROFILE": "broad"})
    assert SuiteSettings.from_settings(settings).packs_dir is None
    with pytest.raises(SettingsError, match=rf"SUITE_{name} = .* needs SUITE_PACKS_DIR"):
        SuiteSettings.from_settings(settings, Spider)
    settings.set("SUITE_PACKS_DIR", "packs")
    assert SuiteSettings.from_settings(settings, Spider).packs_dir == Path("packs")


@pytest.mark.parametrize("password", ["secret", "12secret/x", "x/secret"])
def test_a_password(password: str) -> None:
    """Is not even shown."""
    with pytest.raises(SettingsError, match="FSSPEC_SFTP_PASSWORD") as caught:
        read(f"sftp://me:{password}@host/packs")
    assert "secret" not in str(caught.value)
