"""Notifications: a command on the laptop that is told of every change as JSON on its stdin. It can fail nothing."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import asdict

from deployer.inventory.model import Notify
from deployer.plan.audit import Entry

FORMAT = "ddtree-deploy-event/1"
SHOWN = 200  # characters of what the command said


def event(host: str, entry: Entry) -> str:
    """What the command reads: the audit log's entry, and which host it is about."""
    return json.dumps({"format": FORMAT, "host": host, **asdict(entry)}) + "\n"


def notify(hook: Notify, host: str, entry: Entry, say: Callable[[str], None]) -> None:
    """Runs the command, if there is one; what goes wrong with it is said and is no error of the deployment."""
    if not hook.command:
        return
    try:
        done = subprocess.run(
            hook.command,
            input=event(host, entry),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=hook.timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        say(f"the notification did not end within {hook.timeout:g} s: {hook.command[0]}")
    except (OSError, ValueError) as error:
        say(f"the notification cannot be sent: {hook.command[0]}: {error}")
    else:
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip() or "it printed nothing")[-SHOWN:]
            say(f"the notification failed with {done.returncode}: {hook.command[0]}: {said}")
