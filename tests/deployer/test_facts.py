"""Facts: recorded outputs of the commands, and what is read from them."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

from fakes import FakeTransport
from material import inventory_for, recorded

from deployer.facts import disk, host, ports, room, service, target
from deployer.plan.layout import Layout
from deployer.transport.local import LocalTransport


def test_the_host() -> None:
    read = host.parse(recorded("host_ct129.txt"))
    assert (read.os, read.arch, read.virtualization) == ("Debian GNU/Linux 12 (bookworm)", "x86_64", "lxc")
    assert (read.python, read.glibc, read.systemd) == ((3, 11, 2), (2, 36), 252)
    assert read.venv
    assert read.systemd_runs
    assert read.is_root
    assert read.rsync
    assert read.numa
    bare = host.parse("os=unknown\npython=\nuid=1000\nsudo=\nrsync=\nnuma=\n")
    assert bare.python == ()
    assert {bare.is_root, bare.rsync, bare.numa, bare.venv} == {False}


def test_the_hosts_command_answers_on_this_machine() -> None:
    read = host.read(LocalTransport())
    assert read.python >= (3, 11)
    assert read.cpus >= 1
    assert read.memory_kib > 0
    assert host.read(LocalTransport(), "/no/such/python").python == ()


def test_the_machines_compiler_clock_and_cards() -> None:
    read = host.parse(recorded("host_ct129_with_compiler.txt"))
    assert (read.compiler, read.headers, read.miscompiled) == ("/usr/bin/gcc", True, "")
    assert (read.name, read.macs) == ("ct129", ("bc:24:11:7a:02:9c",)), "loopback's address tells nobody apart"
    assert (read.clock, read.synchronised) == (1764495660.104512331, True)
    unknown = host.parse(recorded("host_ct129.txt"))
    assert (unknown.compiler, unknown.clock, unknown.synchronised) == ("", None, None)


def test_the_hosts_command_tells_the_time_and_compiles(tmp_path: Path) -> None:
    read = host.read(LocalTransport())
    assert read.clock is not None
    assert abs(read.clock - time.time()) < 60
    assert read.name
    broken = tmp_path / "gcc"
    broken.write_text("#!/bin/sh\necho 'x.c:1:10: fatal error: stdlib.h: No such file or directory' >&2; exit 1\n")
    broken.chmod(0o755)
    said = LocalTransport().run(f"PATH={tmp_path}:$PATH; {host.command('python3')}").stdout
    assert host.parse(said).miscompiled == "x.c:1:10: fatal error: stdlib.h: No such file or directory"


def test_disks() -> None:
    overlay, shm = disk.parse(recorded("disk_overlay.txt") + recorded("disk_shm.txt"))
    assert (overlay.mount, overlay.free, overlay.inodes_free) == ("/", 71444873216, 16139885)
    assert str(overlay) == "/: 66.5 of 252.0 GiB free, 16139885 inodes"
    assert (shm.mount, shm.options) == ("/dev/shm", {"rw", "nosuid", "nodev"})
    btrfs = "Filesystem 1-blocks Used Available Capacity Mounted on\n/dev/a 10 5 5 50% /with blank\n"
    inodes = "Filesystem Inodes IUsed IFree IUse% Mounted on\n/dev/a 0 0 0 - /with blank\noptions=\n"
    assert disk.parse(btrfs + inodes) == (disk.Disk("/with blank", 10, 5, None),)
    here, shm = disk.read_all(LocalTransport(), "/no/such/folder/yet", "/dev/shm")
    assert (here.mount, shm.mount) == ("/", "/dev/shm")
    assert "rw" in here.options


def test_the_room_of_a_deployment_is_one_command(tmp_path: Path, drafter: Path) -> None:
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "weights").write_bytes(b"x" * 1000)
    inventory = inventory_for(tmp_path, drafter, push=str(folder))
    pushed = Path(inventory.root, "models/store/abc")
    pushed.mkdir(parents=True)
    (pushed / "model.safetensors").write_bytes(b"x" * 500_000)
    found = room.read(LocalTransport(), inventory, drafter=7, sudo=False)
    assert found.models == 1007
    assert 500_000 <= found.pushed < 600_000
    assert found.shm.mount == "/dev/shm"
    absent = room.parse(room_text(pushed=""))
    assert absent.pushed == 0


def room_text(pushed: str) -> str:
    return 4 * recorded("disk_overlay.txt") + recorded("disk_shm.txt") + f"pushed={pushed}\n"


def test_the_holder_of_a_port_and_its_unit() -> None:
    held = ports.parse(recorded("port_held_by_unit.txt"))
    assert held == ports.Holder("127.0.0.1:8000", 522, "python3", "mtp-vllm.service")
    assert str(held) == "python3 (pid 522) of mtp-vllm.service on 127.0.0.1:8000"
    unseen = ports.parse(recorded("port_seen_without_root.txt"))
    assert str(unseen) == "a process that cannot be seen from here on 127.0.0.1:8000"
    assert ports.parse(recorded("port_free.txt")) is None


def test_a_port_held_on_this_machine_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = ports.read(LocalTransport(), server.getsockname()[1])
        assert found is not None
        assert found.address.endswith(str(server.getsockname()[1]))


def test_the_service() -> None:
    running, absent = service.parse(recorded("service_running.txt")), service.parse(recorded("service_absent.txt"))
    assert (running.active, running.sub, running.main_pid, running.restarts) == ("active", "running", 35, 0)
    assert running.invocation == "1fbbac63359648e7a2b2390edcf0c855"
    assert running.running
    assert running.installed
    assert {absent.running, absent.installed} == {False}
    assert (absent.current, absent.releases) == (None, ())
    deployed = service.parse(
        "ActiveState=active\ncurrent=/opt/ddtree/releases/r2\nrelease=/opt/ddtree/releases/r1/\nrelease=/opt/ddtree/releases/r2/\n"
    )
    assert (deployed.current, deployed.releases) == ("r2", ("r1", "r2"))


def test_the_services_command_names_the_layouts_paths() -> None:
    layout = Layout(root="/opt/ddtree", service="ddtree-vllm", user="ddtree")
    assert service.command(layout) == (
        "systemctl show ddtree-vllm.service -p LoadState,ActiveState,SubState,MainPID,NRestarts,InvocationID,"
        "ActiveEnterTimestamp 2>/dev/null || true; "
        'echo "current=$(readlink /opt/ddtree/current)"; '
        'for r in /opt/ddtree/releases/*/; do test -d "$r" && echo "release=$r"; done; true'
    )


def test_the_target_with_and_without_a_text_config(tmp_path: Path) -> None:
    text = {"num_hidden_layers": 64, "hidden_size": 5120, "vocab_size": 248320}
    assert target.parse(json.dumps({"model_type": "qwen3_5", "text_config": text})) == target.Target(
        "qwen3_5", 64, 5120, 248320
    )
    assert target.parse(json.dumps({"model_type": "qwen3", **text})) == target.Target("qwen3", 64, 5120, 248320)
    assert target.parse("") is None
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    assert target.read_here(tmp_path) == target.Target("qwen3", None, None, None)
    asked = FakeTransport({"cat /models/t/config.json 2>/dev/null; true": "{}"}, uid=1000)
    assert target.read(asked, "/models/t") == target.Target(None, None, None, None)
    assert asked.commands == ["sudo cat /models/t/config.json 2>/dev/null; true"]
