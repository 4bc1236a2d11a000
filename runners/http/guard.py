"""The guard at the socket: every address is judged in the moment it is dialled.

A filter in front of the resolver would not see addresses written into the URL, and one behind it
judges an answer that may differ from the next. Here the address judged is the address dialled.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_network

from handlers.urls import DENIED_PORTS, InvalidURL, Target, check_url
from runners.http.addresses import Address, Network, is_public, parse, unwrapped

# As the event loop hands it to a socket factory: family, type, protocol, name, socket address.
AddrInfo = tuple[int, int, int, str, tuple[object, ...]]
_DISCARD_PORT = 9


class Refused(OSError):
    """An address that must not be dialled. Does not say which: that would map our network."""

    def __init__(self) -> None:
        super().__init__(errno.EACCES, "the host's address is not public")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exceptions:
    """What may be dialled although it is not public: networks, and hosts with their port."""

    networks: tuple[Network, ...] = ()
    hosts: frozenset[tuple[str, int]] = frozenset()


NO_EXCEPTIONS = Exceptions()


def exceptions_of(entries: Iterable[str]) -> Exceptions:
    """Read `10.1.0.0/16`, `hooks.internal:8443`, `[::1]:9000`; ValueError names a bad entry."""
    networks, hosts = [], set()
    for entry in entries:
        try:
            if "/" in entry:
                networks.append(ip_network(entry))
            else:
                target = check_url(f"http://{entry}/")
                if not entry.endswith(f":{target.port}"):
                    raise InvalidURL("a port must be given")
                hosts.add((target.host, target.port))
        except ValueError as error:
            raise ValueError(f"{entry!r} is neither host:port nor a network: {error}") from None
    return Exceptions(networks=tuple(networks), hosts=frozenset(hosts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Opens sockets for one target."""

    target: Target
    exceptions: Exceptions = NO_EXCEPTIONS
    denied_ports: frozenset[int] = DENIED_PORTS

    def open(self, info: AddrInfo) -> socket.socket:
        """A socket factory; Refused instead of a socket for an address that is not public."""
        family, kind, protocol, _, where = info
        self.check(str(where[0]), where[1])
        return socket.socket(family, kind, protocol)

    def check(self, address: str, port: object) -> None:
        """Raise Refused unless this may be dialled."""
        if port != self.target.port or port in self.denied_ports:
            raise Refused
        found = parse(address)
        if not self._is_excepted(found) and (not is_public(found) or is_own(found)):
            raise Refused

    def _is_excepted(self, address: Address) -> bool:
        if (self.target.host, self.target.port) in self.exceptions.hosts:
            return True
        return any(address in network for network in self.exceptions.networks)


def is_own(address: Address) -> bool:
    """Whether it is one of this host's own: only then is it also the source of a way to it.

    Sends nothing. Asked of the kernel each time, because addresses come and go.
    """
    return any(_leads_home(inner) for inner in unwrapped(address))


def _leads_home(address: Address) -> bool:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), _DISCARD_PORT))
            source = str(probe.getsockname()[0])
    except OSError:
        return False  # there is no way to it at all
    return parse(source) == address
