"""Ports for servers that tests start by number, and start again.

A port that the system picks (port 0) lies in the range from which it also serves every outgoing connection, so another
program can have it by the time that a server wants it. Ports below that range are taken only by those who name them.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

_LOWEST = 12_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_choice = random.SystemRandom()  # two test processes must not draw the same ones


def free_port(*, also_below: int = 0) -> int:
    """Return a port on which nothing listens; nor on the one `also_below` it."""
    end = int(_RANGE.read_text().split()[0])
    while True:
        port = _choice.randrange(_LOWEST, end)
        if all(_is_free(one) for one in {port, port - also_below}):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
