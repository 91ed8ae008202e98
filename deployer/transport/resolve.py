"""How a host is reached, as the user's own OpenSSH says (`ssh -G`): every hop with its address, account, keys and
known hosts.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from deployer.errors import UsageError
from deployer.inventory.model import Ssh

MAX_HOPS = 8
_JUMP = re.compile(r"^(?:ssh://)?(?:(?P<user>[^@]+)@)?(?P<host>\[[^\]]+\]|[^:\[\]]+)(?::(?P<port>\d+))?/?$")


@dataclass(frozen=True)
class Hop:
    """One machine on the way. `alias` is the name it was asked for by; `known_hosts` lists the user's files first."""

    alias: str
    hostname: str
    port: int
    user: str
    identities: tuple[Path, ...]
    known_hosts: tuple[Path, ...]
    host_key_alias: str | None = None
    use_agent: bool = True
    proxy_command: str | None = None

    @property
    def known_name(self) -> str:
        """The name its key is filed under in known_hosts."""
        name = self.host_key_alias or self.hostname
        return name if self.port == 22 or self.host_key_alias else f"[{name}]:{self.port}"

    def __str__(self) -> str:
        return f"{self.alias} ({self.user}@{self.hostname}:{self.port})"


def resolve(ssh: Ssh) -> tuple[Hop, ...]:
    """The way to the host, its last element; the ones before are jump hosts in the order they are passed."""
    options = [
        *(["-p", str(ssh.port)] if ssh.port else []),
        *(["-l", ssh.user] if ssh.user else []),
        *(["-J", ssh.jump] if ssh.jump else []),
        *(["-i", str(ssh.identity_file)] if ssh.identity_file else []),
    ]
    return _way(ssh, ssh.host, options, depth=0)


def _way(ssh: Ssh, alias: str, options: list[str], depth: int) -> tuple[Hop, ...]:
    """`alias` and the hops before it. As in OpenSSH, only the first of several jump hosts follows its own ProxyJump."""
    if depth > MAX_HOPS:
        raise UsageError(
            f"more than {MAX_HOPS} ProxyJump hops to {ssh.host}", where="ssh.jump", remedy="look for a loop"
        )
    answers = _ssh_g(ssh, alias, options)
    jump = answers.get("proxyjump", ["none"])[0]
    hop = _hop(alias, answers, with_proxy_command=jump == "none")
    if jump == "none":
        return (hop,)
    first, *others = (_jump(word) for word in jump.split(","))
    before = _way(ssh, *first, depth + 1)
    for name, asked in others:
        before += (_hop(name, _ssh_g(ssh, name, [*asked, "-J", "none"]), with_proxy_command=False),)
    return (*before, hop)


def _jump(word: str) -> tuple[str, list[str]]:
    """Splits [user@]host[:port] into the host and the options that say the rest."""
    match = _JUMP.match(word.strip())
    if match is None or match["host"].startswith("-"):
        raise UsageError(f"not a jump host: {word!r}", where="ProxyJump", remedy="write [user@]host[:port]")
    options = [*(["-l", match["user"]] if match["user"] else []), *(["-p", match["port"]] if match["port"] else [])]
    return match["host"].strip("[]"), options


def _ssh_g(ssh: Ssh, alias: str, options: list[str]) -> dict[str, list[str]]:
    """What OpenSSH would use for `alias`: keyword -> values, in order."""
    command = ["ssh", "-G", *(["-F", str(ssh.config_file)] if ssh.config_file else [])]
    if ssh.known_hosts_file:
        command += ["-o", f"UserKnownHostsFile={ssh.known_hosts_file}"]
    try:
        done = subprocess.run(
            [*command, *options, "--", alias], capture_output=True, text=True, timeout=20, check=False
        )
    except FileNotFoundError as error:
        raise UsageError(
            "OpenSSH's ssh is not installed here", where="this machine", remedy="install openssh-client"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(
            f"`ssh -G {alias}` did not answer",
            where="~/.ssh/config",
            remedy="look for a hanging Match exec in the config",
        ) from error
    if done.returncode:
        where = str(ssh.config_file or "~/.ssh/config")
        raise UsageError(
            f"ssh cannot resolve {alias}: {done.stderr.strip()}", where=where, remedy="mend the SSH config"
        )
    answers: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        answers.setdefault(key, []).append(value)
    return answers


def _hop(alias: str, answers: dict[str, list[str]], *, with_proxy_command: bool) -> Hop:
    def one(key: str) -> str | None:
        value = answers.get(key, ["none"])[0]
        return None if value == "none" else value

    files = [*(one("userknownhostsfile") or "").split(), *(one("globalknownhostsfile") or "").split()]
    return Hop(
        alias=alias,
        hostname=answers["hostname"][0],
        port=int(answers["port"][0]),
        user=answers["user"][0],
        identities=tuple(Path(value).expanduser() for value in answers.get("identityfile", []) if value != "none"),
        known_hosts=tuple(Path(file).expanduser() for file in files),
        host_key_alias=one("hostkeyalias"),
        use_agent=answers.get("identityagent") != ["none"],
        proxy_command=one("proxycommand") if with_proxy_command else None,
    )
