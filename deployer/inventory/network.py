"""Addresses and networks in inventory files, as text: they end in URLs and in systemd's IPAddressAllow."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Annotated

from pydantic import AfterValidator


def _address(value: str) -> str:
    return str(ip_address(value))


def _network(value: str) -> str:
    return str(ip_network(value))


Address = Annotated[str, AfterValidator(_address)]
Network = Annotated[str, AfterValidator(_network)]


def url(address: str, port: int) -> str:
    """http://ADDRESS:PORT, an IPv6 address in brackets."""
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{port}"


def every_address(like: str) -> str:
    """What a server binds to be reached at `like` and on loopback."""
    return "::" if ":" in like else "0.0.0.0"
