"""TLS settings."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from scrapy.settings import BaseSettings, Settings, default_settings

from scrapy_spider_suite.fetch.connections import (
    CONTEXT_FACTORY,
    has_own_context_factory,
    make_ssl_context,
)


def test_defaults() -> None:
    """Certificates are not verified, as in Scrapy."""
    context = make_ssl_context(Settings())
    assert context.verify_mode is ssl.CERT_NONE
    assert not context.check_hostname


def test_verification() -> None:
    """With the setting on, they are, name and all."""
    context = make_ssl_context(Settings({"DOWNLOAD_VERIFY_CERTIFICATES": True}))
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


def test_versions() -> None:
    """Scrapy 2.17's bounds, and the method of before."""
    bounds = {"DOWNLOAD_TLS_MIN_VERSION": "TLSv1.2", "DOWNLOAD_TLS_MAX_VERSION": "TLSv1.3"}
    context = make_ssl_context(Settings(bounds))
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.maximum_version is ssl.TLSVersion.TLSv1_3
    context = make_ssl_context(Settings({"DOWNLOADER_CLIENT_TLS_METHOD": "TLSv1.2"}))
    assert context.minimum_version is context.maximum_version is ssl.TLSVersion.TLSv1_2


def test_unknown_versions() -> None:
    """The message names the setting and what is known."""
    with pytest.raises(ValueError, match=r"Unknown DOWNLOAD_TLS_MIN_VERSION value: SSLv3"):
        make_ssl_context(Settings({"DOWNLOAD_TLS_MIN_VERSION": "SSLv3"}))


def test_ciphers() -> None:
    """OpenSSL's own language."""
    one = "ECDHE-RSA-AES128-GCM-SHA256"
    context = make_ssl_context(Settings({"DOWNLOADER_CLIENT_TLS_CIPHERS": one}))
    assert one in [cipher["name"] for cipher in context.get_ciphers()]
    with pytest.raises(ssl.SSLError):
        make_ssl_context(Settings({"DOWNLOADER_CLIENT_TLS_CIPHERS": "none such"}))


def test_key_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SSLKEYLOGFILE lets a sniffer read along, as in Scrapy 2.19."""
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    assert make_ssl_context(Settings()).keylog_filename == str(tmp_path / "keys")


def test_key_log_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning; the crawl needs no such file."""
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "missing" / "keys"))
    assert make_ssl_context(Settings()).keylog_filename is None
    assert "Cannot write TLS session keys to SSLKEYLOGFILE=" in caplog.text


def test_a_scrapy_without_context_factories(monkeypatch: pytest.MonkeyPatch) -> None:
    """No project has one of its own then; the setting is deprecated and will go."""
    monkeypatch.delattr(default_settings, CONTEXT_FACTORY)
    assert not has_own_context_factory(BaseSettings())
