"""Facts: recorded outputs of the commands, and what is read from them."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from fakes import FakeTransport
from material import FIXTURES

from deployer.facts import disk, gpu, host, ports, service, target
from deployer.plan.layout import Layout
from deployer.transport.local import LocalTransport


def recorded(name: str) -> str:
    return (FIXTURES / name).read_text()


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


def test_disks() -> None:
    overlay, shm = disk.parse(recorded("disk_overlay.txt")), disk.parse(recorded("disk_shm.txt"))
    assert (overlay.mount, overlay.free, overlay.inodes_free) == ("/", 71444873216, 16139885)
    assert str(overlay) == "/: 66.5 of 252.0 GiB free, 16139885 inodes"
    assert shm.mount == "/dev/shm"
    btrfs = "Filesystem 1-blocks Used Available Capacity Mounted on\n/dev/a 10 5 5 50% /with blank\n" * 1
    assert disk.parse(
        btrfs + "Filesystem Inodes IUsed IFree IUse% Mounted on\n/dev/a 0 0 0 - /with blank\n"
    ) == disk.Disk("/with blank", 10, 5, None)
    assert disk.read(LocalTransport(), "/no/such/folder/yet").mount == "/"


def test_gpus() -> None:
    busy = gpu.parse(recorded("gpu_h200_busy.txt"))
    assert busy.cards == (gpu.Gpu(0, "NVIDIA H200", 143771, 138442, "9.0"),)
    assert busy.holders == (gpu.Holder(423, 4706, "python3"),)
    assert busy.driver == busy.module == "580.159.04"
    assert "/dev/nvidia-uvm" in busy.nodes
    assert gpu.parse(recorded("gpu_h200_idle.txt")).holders == ()
    pair = gpu.parse(recorded("gpu_a6000_pair_written.txt"))
    assert [card.name for card in pair.cards] == ["NVIDIA RTX A6000"] * 2
    assert pair.module == "580.95.05"


def test_a_host_without_gpus_and_one_whose_nvml_fails() -> None:
    assert gpu.parse("[module]\n[nodes]\n") == gpu.Gpus()
    failed = gpu.parse(recorded("gpu_mismatch_written.txt"))
    assert failed.cards == ()
    assert failed.failure == "Failed to initialize NVML: Driver/library version mismatch NVML library version: 580.95"
    assert failed.module == "580.65.06"


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
