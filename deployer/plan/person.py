"""Who is at work: the account and machine of whoever runs this program."""

from __future__ import annotations

import getpass
import os
import socket
from datetime import UTC, datetime


def me() -> str:
    """user@machine, as locks, audit log and notifications name it; an account without a name is its number."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def now() -> str:
    """UTC, to the second, in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")
