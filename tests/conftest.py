"""For every room: Ctrl-C means what it means in a terminal, also where the suite runs in the background.

A shell starts background jobs with SIGINT ignored, every child inherits that, and an interrupt sent to one then does nothing.
"""

from __future__ import annotations

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
