"""URLs a tenant may name as the body of an `http` handler: one strict form, checked and normalised.

Narrower than the standard on purpose: what two parsers could read differently is refused, so that
the host which is checked is the host which is called. Resolves nothing: whether an address may be
dialled is decided where the socket is made (`runners.http.guard`), at every connection.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address

URL_MAX = 2048
_DEFAULT_PORTS = {"http": 80, "https": 443}
_FIRST_FREE_PORT = 1024
# Databases, caches, brokers, control planes and desktops: nobody serves webhooks there, and many of
# them act upon whatever bytes they are sent.
DENIED_PORTS = frozenset(
    {
        *(1433, 1434, 1521, 2181, 2375, 2376, 2377, 2379, 2380, 3306, 3389, 4369, 5432, 5601),
        *(5672, 5900, 5984, 5985, 5986, 6000, 6379, 6380, 6443, 6666, 6667, 7000, 7001, 7199),
        *(8300, 8301, 8302, 8500, 8529, 8600, 9042, 9092, 9160, 9200, 9300, 10250, 10255, 10256),
        *(11211, 15672, 16379, 26379, 25672, 27017, 27018, 27019, 28015, 29015, 50000, 50070),
    }
)
_URL = re.compile(
    r"(?P<scheme>[A-Za-z]{4,5})://"
    r"(?P<host>\[[^\]]*\]|[^/?:@\[\]]*)"
    r"(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<target>(?:/|\?).*)?",
    re.DOTALL,
)
_TARGET = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?]|%[0-9A-Fa-f]{2})*")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class InvalidURL(ValueError):
    """A URL that cannot be called; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A URL taken apart. `host` is ASCII and lower case, an IPv6 address without its brackets."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def is_literal(self) -> bool:
        return ":" in self.host or self.host.rpartition(".")[2].isdigit()

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}"


def check_url(text: str) -> Target:
    """Take a URL apart, or raise InvalidURL."""
    if len(text) > URL_MAX:
        raise InvalidURL(f"the URL is over {URL_MAX} characters")
    if any(character <= " " or character in "\\\x7f" for character in text):
        raise InvalidURL("the URL contains a blank, a control character or a backslash")
    if "#" in text:
        raise InvalidURL("the URL has a fragment, which no server would see")
    found = _URL.fullmatch(text)
    if found is None:
        problem = "user names are not allowed" if "@" in text else "it must be scheme://host/path"
        raise InvalidURL(f"this is no URL that can be called: {problem}")
    scheme = found["scheme"].lower()
    if scheme not in _DEFAULT_PORTS:
        raise InvalidURL("the URL must begin with http:// or https://")
    port = _DEFAULT_PORTS[scheme] if found["port"] is None else int(found["port"])
    path = found["target"] or "/"
    if not _TARGET.fullmatch(path):
        raise InvalidURL("the URL's path holds characters that must be percent-encoded")
    return Target(
        scheme=scheme,
        host=_host(found["host"]),
        port=_port(port),
        path=path if path.startswith("/") else f"/{path}",
    )


def _port(port: int) -> int:
    if port > 65535 or (port < _FIRST_FREE_PORT and port not in _DEFAULT_PORTS.values()):
        raise InvalidURL(f"port {port} is not allowed: 80, 443 and 1024 to 65535 are")
    if port in DENIED_PORTS:
        raise InvalidURL(f"port {port} is not allowed: it is known for another service")
    return port


def _host(host: str) -> str:
    if host.startswith("["):
        try:
            address = IPv6Address(host[1:-1])
        except AddressValueError:
            raise InvalidURL("the URL's host is no IPv6 address") from None
        if address.scope_id:
            raise InvalidURL("the URL's host names a network interface")
        return str(address)
    name = _ascii(host)
    labels = name.split(".")
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise InvalidURL("the URL's host is no valid name")
    if _NUMBER.fullmatch(labels[-1]):
        return _dotted_quad(name)
    return name


def _ascii(host: str) -> str:
    """The name as DNS knows it.

    Letters that IDNA would replace by others (full-width, circled, sharp s) are refused: whoever
    means such a name can write its ASCII form, and nobody is sent to another one unawares.
    """
    lower = host.lower()
    if lower.isascii():
        return lower
    try:
        name = lower.encode("idna").decode("ascii")
        is_same = name.encode("ascii").decode("idna") == lower
    except UnicodeError:
        is_same = False
    if not is_same:
        raise InvalidURL("the URL's host is not in its normal form; write its xn-- form")
    return name


def _dotted_quad(name: str) -> str:
    """Resolvers read `0x7f000001`, `2130706433`, `127.1` and `0177.0.0.1` as addresses too."""
    try:
        return str(IPv4Address(name))
    except AddressValueError:
        raise InvalidURL("the URL's host is a number, but no address of four numbers") from None
