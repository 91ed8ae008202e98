"""One large file to a host: `ssh cat` beside the ways of `ddtree-deploy push`, over the same hops with the same ssh.

    python -m benchmarks.push.throughput --config build/lab/ssh_config --host ct129 --rounds 5 --out push.json

Arms: `cat` is `ssh HOST 'cat >FILE'`, the line's own pace; `push` is what push does with a large file (by this machine's ssh,
hashed on its way, fsync, rename); `channel` is push without an ssh program (paramiko); `rsync` is rsync --inplace; `verb` a whole
`ddtree-deploy push` of a drafter that the host does not have; `again` is the same once more, with nothing to send. The arms
alternate within each round, the next round takes them in the opposite order, and each ratio is of two neighbours of one round:
a machine that slows down meanwhile slows all of them. `sync` stands before each arm, outside its time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from shlex import quote

from benchmarks.push import material
from deployer.checkpoint import content
from deployer.inventory.model import Ssh
from deployer.plan.apply import Silent
from deployer.push.file import Sending, send
from deployer.transport.ssh import SshTransport

GOAL = 0.95  # of `ssh cat`
GOAL_AGAIN = 2.0  # seconds


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="one large file to a host, way beside way")
    parser.add_argument("--config", type=Path, required=True, help="an ssh_config")
    parser.add_argument("--host", default="ct129")
    parser.add_argument("--size", type=float, default=2.0, help="GiB, at least")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--arms", default="cat,push,verb,again,channel,rsync")
    parser.add_argument("--work", type=Path, default=Path("build/bench-push"), help="the file is kept there")
    parser.add_argument("--there", default="/var/tmp/bench-push", help="a folder on the host, removed at the end")
    parser.add_argument("--out", type=Path, help="a JSON file")
    return parser.parse_args()


class Line:
    """The arms, each sending the same file; each call returns seconds."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.ssh = ["ssh", "-F", str(asked.config), asked.host]
        self.host, self.there, self.file = asked.host, asked.there, asked.work / "drafter.safetensors"
        self.inventory = asked.work / "throughput.toml"
        self.transport = SshTransport(Ssh(host=asked.host, config_file=asked.config.resolve()))
        self.sha256 = content.read(self.file).sha256
        self.arms: dict[str, Callable[[], None]] = {
            "cat": self.cat,
            "push": lambda: self.send(by_ssh=True),
            "channel": lambda: self.send(by_ssh=False),
            "rsync": self.rsync,
            "verb": self.verb,
            "again": self.verb,
        }

    def timed(self, arm: str) -> float:
        keep = self.there if arm == "again" else ""
        self.on_host(f"sync; {'true' if keep else f'sudo -n rm -rf {quote(self.there)}'}; mkdir -p {quote(self.there)}")
        if arm not in {"verb", "again"}:
            self.transport.connect()  # as within a push: its connection is open
        begun = time.monotonic()
        self.arms[arm]()
        return time.monotonic() - begun

    def on_host(self, command: str) -> None:
        subprocess.run([*self.ssh, command], check=True)

    def cat(self) -> None:
        with self.file.open("rb") as source:
            subprocess.run([*self.ssh, f"cat >{quote(self.there)}/cat"], stdin=source, check=True)

    def send(self, *, by_ssh: bool) -> None:
        send(self.transport, Sending(self.file, self.sha256, f"{self.there}/sent"), Silent(), by_ssh=by_ssh)

    def rsync(self) -> None:
        shell = " ".join(map(quote, self.ssh[:-1]))
        command = ["rsync", "--inplace", "--perms", "-e", shell, str(self.file), f"{self.host}:{self.there}/rsync"]
        subprocess.run(command, check=True)

    def verb(self) -> None:
        command = [sys.executable, "-m", "deployer", "push", str(self.inventory)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def prepared(asked: argparse.Namespace) -> None:
    """The file, its profile and its inventory."""
    asked.work.mkdir(parents=True, exist_ok=True)
    made, file = material.dimensions(int(asked.size * 2**30)), asked.work / "drafter.safetensors"
    (asked.work / "random.toml").write_text(material.profile(made))
    text = material.inventory(asked.host, asked.config.resolve(), f"{asked.there}/root")
    (asked.work / "throughput.toml").write_text(text)
    if not file.is_file() or file.stat().st_size < asked.size * 2**30:
        material.write_drafter(file, made)


def measured(line: Line, arms: list[str], rounds: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {arm: [] for arm in arms}
    for number in range(rounds):
        # `again` needs what `verb` has left there.
        order = arms if number % 2 == 0 else [arm for arm in reversed(arms) if arm != "again"]
        for arm in order:
            seconds[arm].append(line.timed(arm))
            if arm == "verb" and number % 2 and "again" in arms:
                seconds["again"].append(line.timed("again"))
        print(f"round {number + 1}: {', '.join(f'{arm} {seconds[arm][-1]:.2f} s' for arm in arms)}", file=sys.stderr)
    return seconds


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def summary(seconds: dict[str, list[float]], size: int) -> dict[str, dict[str, object]]:
    """Per arm: its seconds, MiB/s, and its pace as a share of `cat` in the same round."""
    rows: dict[str, dict[str, object]] = {}
    for arm, took in seconds.items():
        rows[arm] = {"seconds": spread(took), "each": took}
        if arm != "again":
            rows[arm]["mib_per_s"] = spread([size / 2**20 / one for one in took])
            rows[arm]["of_cat"] = spread([cat / one for cat, one in zip(seconds["cat"], took, strict=True)])
    return rows


def table(rows: dict[str, dict[str, object]]) -> str:
    def cell(row: dict[str, object], key: str, form: str) -> str:
        found = row.get(key)
        if not isinstance(found, dict):
            return "-"
        return f"{found['median']:{form}} ({found['least']:{form}} to {found['most']:{form}})"

    lines = ["| arm | seconds | MiB/s | of `ssh cat` |", "|---|---|---|---|"]
    for arm, row in rows.items():
        cells = (cell(row, "seconds", ".2f"), cell(row, "mib_per_s", ".1f"), cell(row, "of_cat", ".3f"))
        lines.append(f"| `{arm}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    asked = arguments()
    prepared(asked)
    line = Line(asked)
    try:
        seconds = measured(line, asked.arms.split(","), asked.rounds)
    finally:
        line.on_host(f"sudo -n rm -rf {quote(asked.there)}")
        line.transport.close()
    size = line.file.stat().st_size
    rows = summary(seconds, size)
    print(f"{size / 2**30:.3f} GiB, {asked.rounds} rounds, median (least to most)\n\n{table(rows)}")
    print(f"\ngoals: `push` at least {GOAL} of `cat`; `again` under {GOAL_AGAIN} s")
    if asked.out:
        asked.out.write_text(json.dumps({"size": size, "rounds": asked.rounds, "arms": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
