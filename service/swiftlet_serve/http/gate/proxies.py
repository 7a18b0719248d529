"""Addresses of clients: what limits count as one client, and whom a trusted proxy speaks for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

Network = IPv4Network | IPv6Network

CLIENT_BITS: Final = 64
"""The prefix of an IPv6 address that one client has: providers assign no smaller network than a /64."""


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Returns an address in its one form: without a zone, and as IPv4 if it is IPv4-mapped. None if it is invalid.

    A zone, as in fe80::1%eth0, can have any length and has a meaning on one machine only.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv4Address):
        return address
    return address.ipv4_mapped or IPv6Address(int(address))


@lru_cache(maxsize=4096)
def client_of(address: str) -> str:
    """Returns the client that all limits count an address to: an IPv4 address, or the /64 network of an IPv6 address.

    A client has all addresses of its /64, and could otherwise use a new one for each request. Text that is not an
    address is returned as it is.
    """
    parsed = parse_address(address)
    if isinstance(parsed, IPv6Address):
        return str(ip_network((parsed, CLIENT_BITS), strict=False))
    return address if parsed is None else str(parsed)


def is_trusted(address: str, proxies: Sequence[Network]) -> bool:
    """Returns whether an address belongs to one of the proxies' networks."""
    parsed = parse_address(address) if proxies else None
    return parsed is not None and any(parsed in network for network in proxies)


def client_address(peer: str, forwarded_for: Sequence[str], proxies: Sequence[Network]) -> str:
    """Returns the address that a request comes from.

    Each proxy appends the address of its peer to X-Forwarded-For. The list is therefore read from its end, for as
    long as a trusted proxy wrote the entry. A client can forge all entries further left.

    Args:
        peer: the address of the connection's other end.
        forwarded_for: the values of X-Forwarded-For, in the order of the headers.
        proxies: the networks of trusted proxies.
    """
    address = str(parse_address(peer) or peer)
    entries = [entry.strip() for value in forwarded_for for entry in value.split(",")]
    while entries and is_trusted(address, proxies):
        entry = parse_address(entries.pop())
        if entry is None:  # the proxy wrote something else than an address
            break
        address = str(entry)
    return address
