"""The staging box is what it claims to be: two real machines, one way in, strict keys, faults on request."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .box import Lab
from .nsproxy import Faults
from .support import attach, run, ssh

pytestmark = pytest.mark.lab


@pytest.fixture
def link(staging_lab: Lab) -> Iterator[Lab]:
    """The lab, whose link is mended after the test."""
    yield staging_lab
    staging_lab.set_faults(Faults())


class TestMachines:
    @pytest.mark.parametrize("host", ["kpro5", "ct129"])
    def test_systemd_runs_with_no_failed_unit(self, staging_lab: Lab, host: str) -> None:
        state = ssh(staging_lab, host, "systemctl is-system-running --wait")
        failed = ssh(staging_lab, host, "systemctl --failed --no-legend --plain").stdout
        assert (state.stdout.strip(), failed) == ("running", "")

    def test_each_is_itself(self, staging_lab: Lab) -> None:
        ask = "hostname; cat /etc/machine-id; cut -d' ' -f2 /etc/ssh/ssh_host_ed25519_key.pub; ls /etc/ssh/ssh_host_*"
        first, second = (ssh(staging_lab, host, ask).stdout.split() for host in ("kpro5", "ct129"))
        assert (first[0], second[0]) == ("kpro5", "ct129")
        assert first[1] != second[1], "machine-id"
        assert first[2] != second[2], "host key"
        assert len(first) == len(second) == 5, "one host key each: the key pair that known_hosts holds"

    def test_ct129_has_what_the_service_needs_and_no_compiler(self, staging_lab: Lab) -> None:
        has = "test -e /usr/lib/x86_64-linux-gnu/libnuma.so.1 && python3 -m venv --help >/dev/null && which rsync curl"
        assert ssh(staging_lab, "ct129", has).returncode == 0
        assert ssh(staging_lab, "ct129", "which gcc cc clang; ls /usr/include/python3*").stdout == ""

    def test_deploy_becomes_root_without_a_password(self, staging_lab: Lab) -> None:
        assert ssh(staging_lab, "ct129", "id -un; sudo -n id -un").stdout.split() == ["deploy", "root"]

    def test_units_are_confined_for_real(self, staging_lab: Lab) -> None:
        confined = "-p ProtectSystem=strict -p MemoryMax=64M -p MemorySwapMax=0"
        transient = f"sudo -n systemd-run --quiet --pipe --wait {confined}"
        assert ssh(staging_lab, "ct129", f"{transient} touch /usr/x").returncode == 1
        hog = ssh(staging_lab, "ct129", f"{transient} python3 -c 'bytearray(200 << 20)'")
        assert hog.returncode != 0, "200 MB fitted into 64 MB"


class TestWayIn:
    def test_ct129_is_reached_through_kpro5_only(self, staging_lab: Lab) -> None:
        outside = ["nsenter", f"--net={staging_lab.place.netns}"]
        knock = [*outside, "timeout", "3", "bash", "-c", "exec 3<>/dev/tcp/$0/22 && head -c 4 <&3"]
        assert run([*knock, "10.129.0.5"]).stdout == "SSH-"
        assert run([*knock, "10.130.0.129"]).returncode != 0, "no route"
        route = ["ip", "-n", staging_lab.place.namespace, "route"]
        assert run([*route, "add", "10.130.0.0/24", "via", "10.129.0.5"]).returncode == 0
        try:
            assert run([*knock, "10.130.0.129"]).returncode != 0, "kpro5 does not forward"
        finally:
            run([*route, "del", "10.130.0.0/24"])
        assert ssh(staging_lab, "ct129", "echo $SSH_CONNECTION").stdout.split()[0] == "10.130.0.1"

    def test_nothing_of_the_lab_shows_outside_its_namespace_but_a_loopback_port(self, staging_lab: Lab) -> None:
        assert not any("10.129." in line or "10.130." in line for line in run(["ip", "address"]).stdout.splitlines())
        listening = run(["ss", "-Hltn", f"sport = :{staging_lab.port()}"]).stdout.split()
        assert listening[3] == f"127.0.0.1:{staging_lab.port()}"

    @pytest.mark.parametrize("host", ["kpro5", "ct129"])
    def test_a_host_with_another_key_is_refused(self, staging_lab: Lab, host: str) -> None:
        """The host's key is changed on the host itself, as after a reinstallation, or by someone in between."""
        key = "/etc/ssh/ssh_host_ed25519_key"
        renew = f"mv {key} /root/kept && ssh-keygen -q -t ed25519 -N '' -f {key} && systemctl restart ssh"
        assert ssh(staging_lab, host, "true").returncode == 0
        assert attach(staging_lab, host, "sh", "-c", renew).returncode == 0
        try:
            refused = ssh(staging_lab, host, "true")
            assert refused.returncode == 255
            assert "HOST IDENTIFICATION HAS CHANGED" in refused.stderr
        finally:
            attach(staging_lab, host, "sh", "-c", f"mv /root/kept {key} && systemctl restart ssh")
        assert ssh(staging_lab, host, "true").returncode == 0

    def test_an_unknown_host_is_refused(self, staging_lab: Lab, tmp_path: Path) -> None:
        (tmp_path / "empty").touch()
        stranger = run(staging_lab.ssh("kpro5", "-o", f"UserKnownHostsFile={tmp_path / 'empty'}", "true"))
        assert stranger.returncode == 255
        assert "Host key verification failed" in stranger.stderr

    def test_a_client_with_another_key_is_refused(self, staging_lab: Lab, tmp_path: Path) -> None:
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")])
        config = tmp_path / "config"
        usual = staging_lab.place
        config.write_text(usual.ssh_config.read_text().replace(str(usual.client_key), str(tmp_path / "key")))
        refused = run(["ssh", "-F", str(config), "kpro5", "true"])
        assert refused.returncode == 255
        assert "Permission denied" in refused.stderr


class TestFaults:
    SIZE = 8_000_000

    def transfer(self, lab: Lab) -> tuple[int, int]:
        """Send SIZE bytes to CT129. Returns ssh's exit code and how many bytes lie there."""
        attach(lab, "ct129", "rm", "-f", "/home/deploy/sent")
        code = ssh(lab, "ct129", "cat > sent", stdin=os.urandom(self.SIZE)).returncode
        there = attach(lab, "ct129", "stat", "-c", "%s", "/home/deploy/sent").stdout.strip()
        return code, int(there or 0)

    def test_without_a_fault_all_arrives(self, link: Lab) -> None:
        assert self.transfer(link) == (0, self.SIZE)

    def test_cut_after_breaks_a_transfer_in_its_middle(self, link: Lab) -> None:
        link.set_faults(Faults(cut_after=3_000_000))
        code, arrived = self.transfer(link)
        assert code == 255
        assert 0 < arrived < 3_000_000

    def test_cut_times_lets_the_retry_pass(self, link: Lab) -> None:
        link.set_faults(Faults(cut_after=3_000_000, cut_times=1))
        assert self.transfer(link)[0] == 255
        assert self.transfer(link) == (0, self.SIZE)

    def test_rate_and_delay_slow_the_link(self, link: Lab) -> None:
        def seconds(faults: Faults, content: bytes) -> float:
            link.set_faults(faults)
            started = time.monotonic()
            assert ssh(link, "ct129", "cat > /dev/null", stdin=content).returncode == 0
            return time.monotonic() - started

        assert seconds(Faults(rate_kbps=1024), bytes(3 << 20)) > 2.9
        assert seconds(Faults(delay_ms=100), b"") > 1.5, "two handshakes, several round trips of 0.2 s each"

    def test_refuse_lets_nobody_in(self, link: Lab) -> None:
        link.set_faults(Faults(refuse=True))
        assert ssh(link, "kpro5", "true").returncode == 255
