"""Client addresses behind reverse proxies. Only trusted proxies are believed."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address

Network = IPv4Network | IPv6Network


def is_trusted(address: str, proxies: Sequence[Network]) -> bool:
    """Returns whether an address belongs to one of the proxies' networks."""
    try:
        return any(ip_address(address) in network for network in proxies)
    except ValueError:
        return False


def client_address(peer: str, forwarded_for: Sequence[str], proxies: Sequence[Network]) -> str:
    """Returns the address that a request comes from.

    Each proxy appends the address of its own peer to X-Forwarded-For. The list is therefore read from its end, for as
    long as a trusted proxy wrote the entry. A client can forge all entries further left.

    Args:
        peer: the address of the connection's other end.
        forwarded_for: the values of X-Forwarded-For, in the order of the headers.
        proxies: the networks of trusted proxies.
    """
    entries = [entry.strip() for value in forwarded_for for entry in value.split(",")]
    while entries and is_trusted(peer, proxies):
        try:
            peer = str(ip_address(entries.pop()))
        except ValueError:  # the proxy wrote something else than an address
            break
    return peer
