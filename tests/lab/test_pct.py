"""kpro5's `pct`, a stand-in for Proxmox's, and CT129's life under it."""

from __future__ import annotations

import hashlib
import os

import pytest

from .box import Lab
from .support import Ran, ssh, wait_for

pytestmark = pytest.mark.lab


def pct(lab: Lab, *words: str) -> Ran:
    return ssh(lab, "kpro5", "pct", *words)


class TestPctStandIn:
    @pytest.mark.parametrize("code", [0, 1, 7, 42, 126, 255])
    def test_exec_passes_exit_codes(self, staging_lab: Lab, code: int) -> None:
        assert pct(staging_lab, "exec", "129", "--", "sh", "-c", f"'exit {code}'").returncode == code

    def test_exec_carries_both_streams_and_stdin(self, staging_lab: Lab) -> None:
        done = ssh(staging_lab, "kpro5", "pct exec 129 -- sh -c 'hostname; cat; echo oops >&2'", stdin=b"given\n")
        assert (done.stdout.split(), done.stderr.split()) == (["ct129", "given"], ["oops"])

    def test_push_and_pull_carry_bytes_mode_and_owner(self, staging_lab: Lab) -> None:
        content = os.urandom(300_000)
        assert ssh(staging_lab, "kpro5", "cat > /tmp/in", stdin=content).returncode == 0
        options = "--perms 0640 --user deploy --group deploy"
        assert pct(staging_lab, "push", "129", "/tmp/in", "/home/deploy/in", options).returncode == 0
        assert ssh(staging_lab, "ct129", "stat -c '%a %U %G' in").stdout.split() == ["640", "deploy", "deploy"]
        assert pct(staging_lab, "pull", "129", "/home/deploy/in", "/tmp/out").returncode == 0
        digest = ssh(staging_lab, "kpro5", "sha256sum /tmp/out").stdout.split()[0]
        assert digest == hashlib.sha256(content).hexdigest()

    def test_what_is_not_there_is_said(self, staging_lab: Lab) -> None:
        absent = pct(staging_lab, "status", "999")
        assert (absent.returncode, "does not exist" in absent.stderr) == (2, True)
        assert pct(staging_lab, "exec", "129").returncode == 255
        assert "stand-in" in pct(staging_lab, "snapshot", "129").stderr

    def test_stop_and_start(self, staging_lab: Lab) -> None:
        assert "129        running                 ct129" in pct(staging_lab, "list").stdout
        for stop in ("stop", "shutdown"):
            assert pct(staging_lab, stop, "129").returncode == 0
            assert pct(staging_lab, "status", "129").stdout == "status: stopped\n"
            assert pct(staging_lab, "exec", "129", "true").returncode == 255
            assert ssh(staging_lab, "ct129", "true").returncode == 255
            assert pct(staging_lab, "start", "129").returncode == 0
            wait_for(lambda: ssh(staging_lab, "ct129", "true").returncode == 0)
        assert ssh(staging_lab, "kpro5", "systemctl is-failed pct@129").stdout == "active\n"

    @pytest.mark.parametrize("order", ["sudo -n reboot", "pct"])
    def test_ct129_comes_back_from_a_reboot_with_its_files(self, staging_lab: Lab, order: str) -> None:
        def booted_at() -> str:
            asked = ssh(staging_lab, "ct129", "systemctl show --value -p UserspaceTimestampMonotonic; test -e kept")
            return asked.stdout.strip() if asked.returncode == 0 else ""

        assert ssh(staging_lab, "ct129", "touch kept; sync").returncode == 0
        before = booted_at()
        assert before
        if order == "pct":
            assert pct(staging_lab, "reboot", "129").returncode == 0
        else:
            ssh(staging_lab, "ct129", order)
        wait_for(lambda: booted_at() not in ("", before))
