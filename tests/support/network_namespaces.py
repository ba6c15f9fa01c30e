"""Several hosts on one machine: network namespaces on a bridge, each with its own address."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

_NETWORK = "10.201.0"


class Network:
    """A namespace for each of *names*, and one for the bridge; they go with the block.

    The in-vitro web serves addresses of 127.0.0.0/8: in the other namespaces all of these lead to
    the namespace *web*. Skips the test where namespaces cannot be made; on CI that is a failure if
    the machine could make them.
    """

    def __init__(self, names: Sequence[str], web: str) -> None:
        self._names, self._web = list(names), web
        self._prefix = f"suite-{os.getpid()}"
        self._bridge = f"{self._prefix}-bridge"

    def __enter__(self) -> Network:
        _need_namespaces(self._bridge)
        try:
            _ip("-n", self._bridge, "link", "add", "bridge", "type", "bridge")
            _ip("-n", self._bridge, "link", "set", "bridge", "up")
            for number, name in enumerate(self._names):
                self._add(number, name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for space in (*map(self._space, self._names), self._bridge):
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", space)

    def address(self, name: str) -> str:
        """Where it is for the others."""
        return f"{_NETWORK}.{self._names.index(name) + 1}"

    def inside(self, name: str) -> list[str]:
        """What runs a command there."""
        return ["ip", "netns", "exec", self._space(name)]

    def file(self, name: str) -> Path:
        """By which a process enters it."""
        return Path("/run/netns", self._space(name))

    def cut(self, name: str) -> None:
        """Unplug its cable, at the other end."""
        _ip("-n", self._bridge, "link", "set", self._port(name), "down")

    def plug(self, name: str) -> None:
        """Plug it in again."""
        _ip("-n", self._bridge, "link", "set", self._port(name), "up")

    def _space(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _port(self, name: str) -> str:
        return f"port{self._names.index(name)}"

    def _add(self, number: int, name: str) -> None:
        space, port = self._space(name), self._port(name)
        _ip("netns", "add", space)
        cable = ["type", "veth", "peer", "name", port, "netns", self._bridge]
        _ip("-n", space, "link", "add", "eth0", *cable)
        _ip("-n", self._bridge, "link", "set", port, "master", "bridge", "up")
        _ip("-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
        _ip("-n", space, "link", "set", "eth0", "up")
        _ip("-n", space, "link", "set", "lo", "up")
        if name != self._web:
            _ip("-n", space, "addr", "del", "127.0.0.1/8", "dev", "lo")
            _ip("-n", space, "route", "add", "127.0.0.0/8", "via", self.address(self._web))
        local = "echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet"
        _run(*self.inside(name), "sh", "-c", local)


def _need_namespaces(name: str) -> None:
    """Make the namespace *name*, or skip the test."""
    if shutil.which("ip") is None:
        say = pytest.fail if os.environ.get("CI") and os.geteuid() == 0 else pytest.skip
        say("no command ip is here: apt-get install iproute2")
    try:
        _ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        # A container without CAP_SYS_ADMIN is no fault, not on CI either.
        pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
