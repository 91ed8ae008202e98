"""Clients that ask completions all the time, plain and streamed, until a file appears; then what became of each request.

    python3 clients.py URL MODEL PROMPT EXPECT CLIENTS STOP_FILE

Prints one JSON object. An answer is whole when it has all its tokens, says why it ended, and begins as it has to. Standard
library only: it runs in the lab.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

TOKENS = 24
PATIENCE = 600.0  # seconds for one answer: an engine on a busy processor is slow, and slow is not lost


@dataclass
class Said:
    """One answer as far as it came."""

    text: str = ""
    tokens: int = 0
    finish: str | None = None
    ended: bool = False


@dataclass
class Tally:
    """What became of all requests. `lost` says why, one line each."""

    plain: int = 0
    streamed: int = 0
    longest: float = 0.0
    lost: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, streamed: bool, seconds: float, lost: str | None) -> None:
        with self.lock:
            self.longest = max(self.longest, seconds)
            if lost is not None:
                self.lost.append(f"{'streamed' if streamed else 'plain'} after {seconds:.1f} s: {lost}")
            elif streamed:
                self.streamed += 1
            else:
                self.plain += 1


def plain(body: dict[str, Any]) -> Said:
    choice = body["choices"][0]
    return Said(choice["text"], body["usage"]["completion_tokens"], choice["finish_reason"], True)


def streamed(text: str) -> Said:
    said = Said()
    for line in text.splitlines():
        if line == "data: [DONE]":
            said.ended = True
        elif line.startswith("data: "):
            event = json.loads(line[6:])
            for choice in event["choices"]:
                said.text += choice["text"]
                said.finish = choice["finish_reason"] or said.finish
            if event.get("usage"):
                said.tokens = event["usage"]["completion_tokens"]
    return said


def amiss(said: Said, expect: str) -> str | None:
    """What an answer lacks."""
    if not said.ended or said.finish != "length" or said.tokens != TOKENS:
        return f"cut: {said}"
    return None if expect in said.text else f"another answer: {said.text!r}"


def ask(connection: http.client.HTTPConnection, model: str, prompt: str, stream: bool, expect: str) -> str | None:
    """None for a whole answer, else why it is lost."""
    body: dict[str, object] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
        if answer.status != 200:
            return f"status {answer.status}: {text[:200]}"
        return amiss(streamed(text) if stream else plain(json.loads(text)), expect)
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
        connection.close()
        return repr(error)


def client(number: int, where: str, words: tuple[str, str, str], stop: str, tally: Tally) -> None:
    """Every other one opens a connection for each request, the others keep theirs."""
    model, prompt, expect = words
    connection = http.client.HTTPConnection(where, timeout=PATIENCE)
    turn = number
    while not os.path.exists(stop):
        turn += 1
        began = time.monotonic()
        lost = ask(connection, model, prompt, turn % 2 == 0, expect)
        tally.count(turn % 2 == 0, time.monotonic() - began, lost)
        if lost is not None:
            time.sleep(0.5)
        if number // 2 % 2:
            connection.close()


def main(url: str, model: str, prompt: str, expect: str, clients: str, stop: str) -> None:
    tally = Tally()
    words = (model, prompt, expect)
    threads = [
        threading.Thread(target=client, args=(number, urlsplit(url).netloc, words, stop, tally))
        for number in range(int(clients))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({name: getattr(tally, name) for name in ("plain", "streamed", "longest", "lost")}))


if __name__ == "__main__":
    main(*sys.argv[1:])
