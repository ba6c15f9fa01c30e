"""Every error that the suite raises, as one tree. A message is one line that helps its reader."""

from __future__ import annotations


class SuiteError(Exception):
    """Base of every error of the suite."""


class SettingsError(SuiteError):
    """A setting has a bad value, an unknown name, or does not fit another setting."""

    @classmethod
    def of(cls, name: str, value: object, allowed: str) -> SettingsError:
        """Return the error of a setting, its value and the *allowed* ones."""
        return cls(f"{name} = {value!r}: expected {allowed}")


class FilterError(SettingsError):
    """A filter expression cannot be parsed; *line* and *column* from 1."""

    def __init__(self, why: str, text: str, line: int, column: int) -> None:
        lines = text.split("\n")
        whole = lines[line - 1] if line <= len(lines) else ""
        before, after = whole[max(0, column - 41) : column - 1], whole[column - 1 : column + 39]
        super().__init__(f"line {line}, column {column}: {why}, at {before}>>>{after}")


class JobError(SuiteError):
    """The job directory cannot be used; nothing in it was changed."""


class JobInUseError(JobError):
    """Another process has the job directory open."""


class JobFormatError(JobError):
    """The job directory has another data format."""


class JobDamagedError(JobError):
    """The contents of the job directory cannot be read."""


class JobSettingsError(JobError):
    """A resumed job was given another value for a fixed setting."""


class StoreWriteError(JobError):
    """The store cannot write now (a full or read-only disk); unwritten rows are kept."""


class ActionError(SuiteError):
    """An action on a job is malformed or cannot be done; nothing was changed."""


class CodecError(SuiteError):
    """A request or value has no stored form, or stored bytes were not written by a codec."""


class UnstorableError(CodecError):
    """A request cannot be stored for *reason*.

    *key*: ``callback``, ``errback``, ``meta['x']``, ``cb_kwargs['y']``, ``class``, an attribute.
    """

    def __init__(self, key: str, reason: object) -> None:
        super().__init__(f"{key}: {reason}")


class ClusterError(SuiteError):
    """Agents cannot work on one crawl together; *kind*: why, in a word, if the class lists any."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class RegistryError(ClusterError):
    """Redis cannot be used now; it may have run the command.

    Kinds: ``away`` (no answer in time), ``memory`` (full), ``type`` (a key has another type),
    ``damaged`` (foreign data), ``refused``.
    """


class LedgerError(ClusterError):
    """The ledger of grants cannot be used now: nothing is fetched from shared hosts.

    Kinds: as of `RegistryError`, and ``eviction`` (Redis is set to evict keys).
    """


class JoinRefusedError(ClusterError):
    """An agent cannot take part in the crawl, or not as it is; nothing was changed."""


class FencedError(ClusterError):
    """A process acts for its agent no more, and must start no fetch.

    *again*: it may join again: its lease had ended, or Redis lost its record.
    """

    def __init__(self, message: str, *, again: bool) -> None:
        super().__init__(message)
        self.again = again


class BlobError(ClusterError):
    """A blob of the shared queue cannot be had; *missing*: it is gone; *damaged*: it is wrong."""

    def __init__(self, message: str, *, missing: bool = False, damaged: bool = False) -> None:
        super().__init__(message)
        self.missing, self.damaged = missing, damaged


class AgentCallError(ClusterError):
    """A call to agents through Redis, or an answer, is malformed."""


class MessageError(ClusterError):
    """Bytes from another agent are no message, or a message of another version."""


class MessageTooLargeError(MessageError):
    """A message, or a row, is larger than agreed."""


class TransportError(ClusterError):
    """A hand-over file cannot be sent now, or received there; nothing of it is lost."""


class HandoverFileError(ClusterError):
    """A hand-over file is cut, damaged, or not the one agreed on; nothing of it was merged."""


class ResolveError(SuiteError):
    """A host name could not be turned into an address that may be used."""


class NoSuchHostError(ResolveError):
    """The name servers answered that the name does not exist or has no address."""


class ResolveTimeoutError(ResolveError):
    """No name server answered within ``DNS_TIMEOUT``, 10 s at most."""


class PackError(SuiteError):
    """A pack of pages cannot be opened, or a page is not in it."""


class PackDamagedError(PackError):
    """Bytes in a pack are not those written, or too many."""


class PackWriteError(PackError):
    """Pages could not be written; nothing of them is in the pack. *errno*: the system's, or 0."""

    def __init__(self, message: str, errno: int = 0) -> None:
        super().__init__(message)
        self.errno = errno


class PackRefusedError(PackError):
    """No records can be made of a page."""


class PackUploadError(PackError):
    """A pack could not be uploaded to another file system, or not for certain."""


class PackUploadedError(PackError):
    """A page is in a pack that was uploaded and is not here; the message says where it is."""


class PackMissingError(PackError):
    """A page is in a pack that is neither here nor uploaded; only its index is here."""


class SearchError(SuiteError):
    """There is no index of packs to search, or none can be made."""


class QueryError(SearchError):
    """A query cannot be parsed; the message says why."""


class SearchBusyError(SearchError):
    """Another process writes the index."""


class SearchDamagedError(SearchError):
    """The index is damaged; it can be made anew from the packs."""


class UnknownUrlError(SuiteError, KeyError):
    """A store of seen URLs has no such URL or id."""

    def __str__(self) -> str:
        """The message; that of a KeyError would be its repr."""
        return str(self.args[0])


class PrivateAddressError(SuiteError):
    """A special address that SUITE_ALLOW_PRIVATE_ADDRESSES does not list is not connected to."""


class OutOfFilesError(SuiteError):
    """The process or machine is out of file descriptors; the host is not to blame."""
