"""Every error that the suite raises, as one tree, named by what is at fault.

::

    SuiteError                   caught to catch them all
    ├── SettingsError            a setting, or a file that a setting names, is wrong
    │   └── FilterError          a filter expression cannot be understood
    ├── JobError                 the job directory cannot be used
    │   ├── JobInUseError        another process holds it
    │   ├── JobFormatError       it was written by a newer release, or by something else
    │   ├── JobDamagedError      what it holds cannot be read
    │   ├── JobSettingsError     it was begun with settings that a job may not change
    │   └── StoreWriteError      its store cannot write now: a full or read-only disk
    ├── ActionError              what was asked of a job by an action cannot be done
    ├── CodecError               a value cannot be written to, or read from, the job directory
    │   └── UnstorableError      part of a request has no stored form
    ├── ClusterError             agents cannot work on one crawl together
    │   ├── RegistryError        Redis cannot be used now: away, full, or holding something else
    │   ├── LedgerError          the ledger of grants, in Redis or a file, cannot be used now
    │   ├── JoinRefusedError     an agent cannot take part: its name, its settings, its clock
    │   ├── FencedError          a process does not stand for its agent any more
    │   ├── AgentCallError            what is asked of agents, or answered, is not what it should be
    │   ├── MessageError         what came from another agent is no message
    │   │   └── MessageTooLargeError  it is larger than agreed, or a row is too large to be sent
    │   ├── TransportError       a hand-over file cannot be sent, or received, now
    │   └── HandoverFileError    a file that another agent has handed over cannot be used
    ├── ResolveError             a host name has no usable address
    │   ├── NoSuchHostError      the name servers say that there is none
    │   └── ResolveTimeoutError  the name servers did not answer in time
    ├── PackError                a pack of pages cannot be opened, or a place in it holds no page
    │   ├── PackDamagedError     what it holds there is not what was written
    │   ├── PackWriteError       it cannot be written now: a full or read-only disk
    │   ├── PackRefusedError     no records can be made of it
    │   ├── PackUploadError      it could not be brought to another file system
    │   ├── PackUploadedError        it is elsewhere: it was uploaded, and is not here any more
    │   └── PackMissingError     it is gone, and its index is here
    ├── SearchError              there is no index of packs to search in, or none can be made
    │   ├── QueryError           what is asked for cannot be understood
    │   ├── SearchBusyError      another process writes the index
    │   └── SearchDamagedError   the index is not what was written; packs can give another
    ├── UnknownUrlError          a store of seen URLs does not hold that URL, or that id
    └── PrivateAddressError      the address is not one that a public page may lead to

The message of each is one line that a person can act on; it is shown without a traceback.
"""

from __future__ import annotations

from collections.abc import Collection


class SuiteError(Exception):
    """Base of every error of the suite."""


class SettingsError(SuiteError):
    """A setting has a bad value, an unknown name, or does not fit another setting."""

    @classmethod
    def of(cls, name: str, value: object, allowed: str) -> SettingsError:
        """Say which setting has which value and what is *allowed* instead."""
        return cls(f"{name} = {value!r}: expected {allowed}")


class FilterError(SettingsError):
    """A filter expression cannot be understood; the message names the line and the column.

    Attributes:
        why: what is wrong, without the place.
        text: the expression.
        line, column: where, from 1.
    """

    def __init__(self, why: str, text: str, line: int, column: int) -> None:
        before, _, after = self._around(text, line, column)
        super().__init__(f"line {line}, column {column}: {why}, at {before}>>>{after}")
        self.why = why
        self.text = text
        self.line = line
        self.column = column

    def pointer(self) -> str:
        """The line in question, and below it a caret."""
        before, indent, after = self._around(self.text, self.line, self.column)
        return f"{before}{after}\n{indent}^"

    @staticmethod
    def _around(text: str, line: int, column: int) -> tuple[str, str, str]:
        """What stands before and after the place, cut to what a person can take in."""
        lines = text.split("\n")
        whole = lines[line - 1] if line <= len(lines) else ""
        before, after = whole[max(0, column - 41) : column - 1], whole[column - 1 : column + 39]
        return before, "".join("\t" if sign == "\t" else " " for sign in before), after


class JobError(SuiteError):
    """The job directory cannot be used; nothing in it was changed."""


class JobInUseError(JobError):
    """Another process has the job directory open."""


class JobFormatError(JobError):
    """The job directory has a data format that this release does not read."""


class JobDamagedError(JobError):
    """The job directory was written by the suite, but its contents cannot be read."""


class JobSettingsError(JobError):
    """A resumed job was given another value for a setting that is fixed for its life.

    Attributes:
        names: the settings in question, with their ``SUITE_`` prefix.
    """

    def __init__(self, message: str, names: Collection[str] = ()) -> None:
        super().__init__(message)
        self.names = tuple(names)


class StoreWriteError(JobError):
    """The store cannot write now (a full or read-only disk); what was to be written is kept."""


class ActionError(SuiteError):
    """An action on a job is malformed, or asks for what cannot be done; nothing was changed."""


class CodecError(SuiteError):
    """A request or value has no stored form, or stored bytes are not what a codec wrote."""


class UnstorableError(CodecError):
    """A request cannot be stored.

    Attributes:
        key: what stands in the way: ``callback``, ``errback``, ``meta['x']``, ``cb_kwargs['y']``,
            ``class``, or another attribute of the request.
        reason: why, in a few words.
    """

    def __init__(self, key: str, reason: object) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key
        self.reason = str(reason)


class ClusterError(SuiteError):
    """Agents cannot work on one crawl together."""


class RegistryError(ClusterError):
    """Redis cannot be used now. What was asked for may have been done all the same.

    Attributes:
        kind: ``away`` (no connection, or no answer in time), ``memory`` (it is full), ``type`` (a
            key of ours holds something of another type), ``damaged`` (or something that was not
            written by the suite), or ``refused`` (anything else that it says no to).
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class LedgerError(ClusterError):
    """The ledger of grants cannot be used now: nothing is fetched on what is shared.

    Attributes:
        kind: as of `RegistryError`; ``eviction`` is of a Redis that throws keys away.
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class JoinRefusedError(ClusterError):
    """An agent cannot take part in the crawl, or not as it is; nothing was changed.

    Attributes:
        kind: why, in a word, for the stats.
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class FencedError(ClusterError):
    """A process does not stand for its agent any more, and must start no fetch as if it did.

    Attributes:
        again: it may join again: its lease had ended, or Redis lost what it knew. Otherwise another
            process has its place, or it was sent away.
    """

    def __init__(self, message: str, *, again: bool) -> None:
        super().__init__(message)
        self.again = again


class AgentCallError(ClusterError):
    """What is asked of agents through Redis, or what they answer, is not what it should be."""


class MessageError(ClusterError):
    """What came from another agent is no message, or one of another version."""


class MessageTooLargeError(MessageError):
    """A message is larger than agreed, packed or unpacked; or a row is too large for any."""


class TransportError(ClusterError):
    """A hand-over file cannot be sent now, or received there; nothing of it is lost."""


class HandoverFileError(ClusterError):
    """A file in which another agent hands hosts over is cut, damaged, or not what was agreed on.

    Nothing of it was merged.
    """


class ResolveError(SuiteError):
    """A host name could not be turned into an address that may be used."""


class NoSuchHostError(ResolveError):
    """The name servers answered that the name does not exist or has no address."""


class ResolveTimeoutError(ResolveError):
    """No name server answered within ``DNS_TIMEOUT``, 10 s at most."""


class PackError(SuiteError):
    """A pack of pages cannot be opened, or what was asked for is not in it."""


class PackDamagedError(PackError):
    """What lies at a place in a pack is not what was written there, or is larger than allowed."""


class PackWriteError(PackError):
    """Pages could not be written (a full or read-only disk); nothing of them is in the pack.

    Attributes:
        errno: the system's number of the error, 0 if it was another one.
    """

    def __init__(self, message: str, errno: int = 0) -> None:
        super().__init__(message)
        self.errno = errno


class PackRefusedError(PackError):
    """No records can be made of a page."""


class PackUploadError(PackError):
    """A pack could not be brought to another file system, or not with certainty."""


class PackUploadedError(PackError):
    """A page is in a pack that was uploaded, and is not here any more; the message says where."""


class PackMissingError(PackError):
    """A page is in a pack that is not here, though an index that lists it is; nor was it uploaded.
    """


class SearchError(SuiteError):
    """There is no index of packs to search in, or none can be made."""


class QueryError(SearchError):
    """What is asked for cannot be understood; the message says what is wrong with it."""


class SearchBusyError(SearchError):
    """Another process writes the index; it will not take long, unless it makes a whole one."""


class SearchDamagedError(SearchError):
    """The index is not what was written; another one can be made of the packs."""


class UnknownUrlError(SuiteError, KeyError):
    """A store of seen URLs does not hold the URL, or has none with the id, that was asked for."""

    def __str__(self) -> str:
        """The message; that of a KeyError would be its repr."""
        return str(self.args[0])


class PrivateAddressError(SuiteError):
    """A private, loopback, link-local or otherwise special address was about to be connected to.

    Raised before a connection is made; ``SUITE_ALLOW_PRIVATE_ADDRESSES`` lists the exceptions.
    """


class OutOfFilesError(SuiteError):
    """No connection could be opened because this process or machine is out of file descriptors.

    The crawl should pause, or be given a higher limit (``ulimit -n``); the host is not to blame.
    """
