"""The installed `ddtree-deploy`, running while something happens to it: what it prints is read as it is printed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = REPOSITORY / "build/venv/bin/ddtree-deploy"


@dataclass(frozen=True)
class Ended:
    """How a run of the tool ended. `code` is negative for a signal."""

    words: tuple[str, ...]
    code: int
    output: str
    seconds: float

    @property
    def last(self) -> str:
        """What it said about its end, as one line."""
        errors = [line for line in self.output.splitlines() if line.startswith("error: ")]
        return errors[-1].removeprefix("error: ") if errors else ""

    def well(self) -> Ended:
        """The same; fails if it did not end with exit code 0."""
        assert self.code == 0, f"{' '.join(self.words)} ended with {self.code}:\n{self.output[-6000:]}"
        return self


class Tool:
    """One run of it with the words of a command line, in `folder` and with `environment` beside the test's own."""

    def __init__(
        self, *words: str | Path, folder: Path = REPOSITORY, environment: Mapping[str, str] | None = None
    ) -> None:
        self._words = tuple(map(str, words))
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            [str(PROGRAM), *self._words],
            cwd=folder,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self._lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    @property
    def output(self) -> str:
        with self._news:
            return "\n".join(self._lines)

    def says(self, *patterns: str, within: float) -> None:
        """Waits for lines that match the patterns, one after the other. Fails if the tool ends before."""
        deadline, seen = time.monotonic() + within, 0
        for pattern in patterns:
            with self._news:
                while (found := self._line(pattern, seen)) is None:
                    said = "\n".join(self._lines[-60:])
                    assert self._reader.is_alive(), f"it ended and never said {pattern!r}:\n{said}"
                    assert time.monotonic() < deadline, f"not said within {within:.0f} s: {pattern!r}:\n{said}"
                    self._news.wait(1.0)
            seen = found + 1

    def _line(self, pattern: str, start: int) -> int | None:
        """The number of the first line from `start` on that matches."""
        return next((n for n in range(start, len(self._lines)) if re.search(pattern, self._lines[n])), None)

    def kill(self) -> None:
        """kill -9, of the tool alone."""
        self._process.send_signal(signal.SIGKILL)

    def ended(self, within: float) -> Ended:
        """Waits for the end. A tool that does not end is killed, and the test fails."""
        try:
            code = self._process.wait(within)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"did not end within {within:.0f} s:\n{self.output[-4000:]}") from None
        self._reader.join(5.0)
        return Ended(self._words, code, self.output, time.monotonic() - self._began)
