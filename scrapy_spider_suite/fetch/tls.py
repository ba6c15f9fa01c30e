"""Scrapy's TLS settings as an `ssl.SSLContext`; the peer's certificate."""

from __future__ import annotations

import logging
import os
import ssl
import sys
from typing import TYPE_CHECKING, Any, Final

from scrapy.settings import default_settings

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)

CONTEXT_FACTORY: Final = "DOWNLOADER_CLIENTCONTEXTFACTORY"
_VERSIONS: Final = {
    "TLSv1.0": ssl.TLSVersion.TLSv1,
    "TLSv1.1": ssl.TLSVersion.TLSv1_1,
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}
_ANY_METHOD: Final = "TLS"
_LEGACY_SERVER_CONNECT: Final = 0x4
"""SSL_OP_LEGACY_SERVER_CONNECT (in ``ssl`` from Python 3.12 on): servers without secure
renegotiation (RFC 5746) are accepted, as by Scrapy."""


def has_own_context_factory(settings: BaseSettings) -> bool:
    """Whether the project sets a TLS context factory, for Scrapy's handler only."""
    # The setting is deprecated: a later Scrapy may have no default.
    return bool(settings[CONTEXT_FACTORY] != getattr(default_settings, CONTEXT_FACTORY, None))


def make_ssl_context(settings: BaseSettings) -> ssl.SSLContext:
    """Return a client context by Scrapy's settings for TLS.

    ``DOWNLOAD_VERIFY_CERTIFICATES`` (off by default), ``DOWNLOADER_CLIENT_TLS_CIPHERS``,
    ``DOWNLOAD_TLS_MIN_VERSION``, ``DOWNLOAD_TLS_MAX_VERSION`` (Scrapy 2.17),
    ``DOWNLOADER_CLIENT_TLS_METHOD``.

    Raises:
        ValueError: a version or method has an unknown name.
        ssl.SSLError: no cipher fits.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if settings.getbool("DOWNLOAD_VERIFY_CERTIFICATES"):
        context.load_default_certs()
    else:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.options |= _LEGACY_SERVER_CONNECT
    least = _version(settings, "DOWNLOAD_TLS_MIN_VERSION")
    most = _version(settings, "DOWNLOAD_TLS_MAX_VERSION")
    if settings["DOWNLOADER_CLIENT_TLS_METHOD"] not in (None, _ANY_METHOD) and not (least or most):
        least = most = _version(settings, "DOWNLOADER_CLIENT_TLS_METHOD")
    if least is not None:
        context.minimum_version = least
    if most is not None:
        context.maximum_version = most
    if ciphers := settings["DOWNLOADER_CLIENT_TLS_CIPHERS"]:
        context.set_ciphers(ciphers)
    if (keys := os.environ.get("SSLKEYLOGFILE")) and not sys.flags.ignore_environment:
        try:
            context.keylog_filename = keys
        except OSError as error:
            logger.warning("Cannot write TLS session keys to SSLKEYLOGFILE=%s: %s", keys, error)
    return context


def _version(settings: BaseSettings, name: str) -> ssl.TLSVersion | None:
    value = settings[name]
    if value is None:
        return None
    try:
        return _VERSIONS[value]
    except KeyError:
        known = ", ".join(_VERSIONS)
        raise ValueError(f"Unknown {name} value: {value} (known: {known})") from None


def peer_certificate(ssl_object: ssl.SSLObject) -> Any:
    """Return the server's certificate as a Twisted ``Certificate``; None if unreadable."""
    der = ssl_object.getpeercert(binary_form=True)
    if der is None:
        return None
    from OpenSSL import crypto
    from twisted.internet.ssl import Certificate

    try:
        return Certificate.load(der, crypto.FILETYPE_ASN1)
    except (crypto.Error, ValueError):
        return None


def log_connection(ssl_object: ssl.SSLObject) -> None:
    """Log protocol and cipher, for ``DOWNLOADER_CLIENT_TLS_VERBOSE_LOGGING``."""
    cipher = ssl_object.cipher()
    logger.debug(
        "SSL connection to %s using protocol %s, cipher %s",
        ssl_object.server_hostname,
        ssl_object.version(),
        cipher[0] if cipher else None,
    )
