"""Which IP addresses are public: an explicit table, and addresses inside addresses unwrapped.

`ipaddress.is_global` is not asked: it calls NAT64 and 6to4 forms of 127.0.0.1 global, multicast
too. Decides about an address alone; whose it is and who may dial it is the guard's business.
"""

from __future__ import annotations

from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
)

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_DENIED_V4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # carriers' NAT, and some clouds' metadata
        "127.0.0.0/8",
        "168.63.129.16/32",  # a cloud's platform service behind a public number
        "169.254.0.0/16",  # link-local: most clouds' metadata
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/3",  # multicast, reserved, broadcast
    )
)
# All public IPv6 addresses lie in here; ::1, fc00::/7, fe80::/10, fec0::/10 and ff00::/8 do not.
_GLOBAL_V6 = IPv6Network("2000::/3")
_DENIED_V6 = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocols' own, Teredo among them
        "2001:db8::/32",
        "2002::/16",  # 6to4: whoever routes it reaches the IPv4 address within
        "3fff::/20",  # documentation
    )
)
# IPv4 addresses in their last 32 bits: mapped, compatible, translated, and the two NAT64 prefixes.
_WRAPPED_IN_LAST = tuple(
    IPv6Network(network)
    for network in ("::ffff:0:0/96", "::/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48")
)
_LAST_32 = 0xFFFFFFFF


def parse(text: str) -> Address:
    """An address as a socket has it; ValueError when it is none."""
    return ip_address(text.partition("%")[0])


def unwrapped(address: Address) -> list[Address]:
    """The address and those that a gateway on the way might make of it."""
    if isinstance(address, IPv4Address):
        return [address]
    found: list[Address] = [address]
    if any(address in network for network in _WRAPPED_IN_LAST):
        found.append(IPv4Address(int(address) & _LAST_32))
    if address.sixtofour is not None:
        found.append(address.sixtofour)
    if address.teredo is not None:
        found.extend(address.teredo)
    return found


def is_public(address: Address) -> bool:
    """Whether anybody on the internet could be dialled with it, and nobody nearer."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _DENIED_V4)
    if any(address in network for network in _WRAPPED_IN_LAST):
        return all(is_public(inner) for inner in unwrapped(address)[1:])
    return address in _GLOBAL_V6 and not any(address in network for network in _DENIED_V6)
