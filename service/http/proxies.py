"""Who asks, where proxies stand in between: only those that are trusted are believed."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address

Network = IPv4Network | IPv6Network


def is_trusted(address: str, proxies: Sequence[Network]) -> bool:
    try:
        return any(ip_address(address) in network for network in proxies)
    except ValueError:
        return False


def client(peer: str, forwarded_for: Sequence[str], proxies: Sequence[Network]) -> str:
    """The address that a request comes from.

    Each proxy appends to X-Forwarded-For whom it heard from, so the list is believed from its end on, as long as who
    wrote an entry is trusted. What stands further left anybody can have made up.

    Args:
        peer: who is connected to this server.
        forwarded_for: the values of X-Forwarded-For, in the order of the headers.
        proxies: networks whose word counts.
    """
    heard = [entry.strip() for value in forwarded_for for entry in value.split(",")]
    while heard and is_trusted(peer, proxies):
        try:
            peer = str(ip_address(heard.pop()))
        except ValueError:  # no address: whoever wrote it is the last that is known
            break
    return peer
