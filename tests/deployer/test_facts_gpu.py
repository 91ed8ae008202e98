"""GPUs: what is read from the answers of several drivers and cards, errors among them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from fakes import FakeTransport
from material import recorded

from deployer.facts import gpu
from deployer.facts.gpu import Broken, Gpu, Gpus, Holder
from deployer.transport.local import LocalTransport


def read(name: str) -> Gpus:
    return gpu.parse(recorded(f"gpu_{name}.txt"))


def test_the_production_pair() -> None:
    pair = read("a6000_pair_idle")
    assert pair.cards == tuple(Gpu(index, "NVIDIA RTX A6000", 49140, 48669, "8.6") for index in (0, 1))
    assert pair.driver == pair.module == pair.library == "580.95.05"
    assert (pair.libcuda, pair.tool, pair.failure, pair.broken, pair.holders) == (True, True, None, (), ())


def test_a_units_devices_are_every_card_and_both_common_nodes() -> None:
    assert read("a6000_pair_idle").nodes == (
        *("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"),
    )
    uvm = next(node for node in read("a6000_pair_idle").devices if node.path == "/dev/nvidia-uvm")
    assert (uvm.major, uvm.minor, uvm.mode, uvm.owner) == (511, 0, "666", "root:root")


def test_a_file_in_place_of_a_node_is_no_device() -> None:
    hollow = read("uvm_not_mounted")
    assert "/dev/nvidia-uvm" not in hollow.nodes
    assert [node.path for node in hollow.devices if not node.usable] == ["/dev/nvidia-uvm"]
    assert (hollow.library, hollow.libcuda) == ("580.95.05", False)


def test_an_open_kernel_module_and_its_processes() -> None:
    busy = read("h200_busy")
    assert busy.cards == (Gpu(0, "NVIDIA H200", 143771, 138442, "9.0"),)
    assert busy.holders == (Holder(423, 4706, "python3"),)
    assert busy.driver == busy.module == "580.159.04"
    assert read("h200_idle").holders == ()


def test_holders_that_only_the_open_nodes_tell_of_and_their_units() -> None:
    units = read("a6000_pair_held_by_unit").holders
    assert units == (
        Holder(812, None, "VLLM::Worker_TP0", "mtp-vllm.service"),
        Holder(813, None, "VLLM::Worker_TP1", "mtp-vllm.service"),
    )
    shells = read("a6000_pair_held_by_shell").holders
    assert shells == (Holder(4242, 28100, "python", "session-7.scope"), Holder(5151, None, "python3"))
    assert str(shells[0]) == "python (pid 4242, 28100 MiB, session-7.scope)"
    assert str(shells[1]) == "python3 (pid 5151)"


def test_a_process_of_another_namespace_has_neither_memory_nor_name() -> None:
    assert read("l40s_processes_hidden").holders == (Holder(1290, None, "[Not Found]"),)


def test_a_card_with_words_in_place_of_numbers_is_set_apart_and_the_others_count() -> None:
    reset = read("a6000_requires_reset")
    assert [card.index for card in reset.cards] == [0]
    assert reset.broken == (Broken("1", "NVIDIA RTX A6000", "[GPU requires reset]"),)
    assert str(reset.broken[0]) == "GPU 1 (NVIDIA RTX A6000): [GPU requires reset]"
    assert read("gb10_without_own_memory").broken == (Broken("0", "NVIDIA GB10", "[N/A]"),)
    assert read("a100_mig_no_permission").broken[0].said == "[Insufficient Permissions]"


@pytest.mark.parametrize("cell", ["ERR!", "[N/A]", "[Not Supported]", "[Unknown Error]", "[GPU is lost]", ""])
@pytest.mark.parametrize("column", [2, 3, 4, 5])
def test_no_word_in_any_column_is_taken_for_a_number(cell: str, column: int) -> None:
    row = ["0", "NVIDIA RTX A6000", "49140", "48669", "580.95.05", "8.6"]
    row[column] = cell
    found = gpu.parse(f"[gpus]\n{', '.join(row)}\n")
    assert len(found.cards) + len(found.broken) == 1
    assert bool(found.broken) == (column in {2, 3})
    assert found.failure is None


def test_a_warning_beside_an_answer_is_no_failure() -> None:
    warned = read("a6000_inforom_corrupted")
    assert (len(warned.cards), warned.failure) == (2, None)
    assert warned.warning == "WARNING: infoROM is corrupted at gpu 0000:81:00.0"


def test_one_lost_card_leaves_the_other() -> None:
    lost = read("a6000_one_lost")
    assert [card.index for card in lost.cards] == [0]
    assert lost.failure == "Unable to determine the device handle for GPU0000:81:00.0: Unknown Error"


def test_modes() -> None:
    assert [(card.mig, card.mode) for card in read("h100_mig").cards] == [(True, "Default")]
    assert [(card.mig, card.mode) for card in read("tesla_v100_prohibited").cards] == [
        *((False, "Prohibited"), (False, "Default"))
    ]
    assert read("h100_mig").holders == (Holder(3021, None, "python3"),)


@pytest.mark.parametrize(
    ("name", "failure", "module", "library"),
    [
        ("version_mismatch", "Driver/library version mismatch NVML library version: 580.95", "580.65.06", "580.95.05"),
        ("cgroup_lost", "Failed to initialize NVML: Unknown Error", "580.95.05", "580.95.05"),
        ("module_not_loaded", "couldn't communicate with the NVIDIA driver", None, "580.95.05"),
        ("no_devices", "No devices were found", "580.95.05", "580.95.05"),
        ("fell_off_the_bus", "GPU0000:0A:00.0: GPU is lost", "580.95.05", "580.95.05"),
        ("no_nvml", "couldn't find libnvidia-ml.so", "580.95.05", None),
        ("driver_470_unknown_field", 'Field "compute_cap" is not a valid field to query.', "470.256.02", "470.256.02"),
    ],
)
def test_nvidia_smis_failures_are_kept_as_it_said_them(
    name: str, failure: str, module: str | None, library: str | None
) -> None:
    found = read(name)
    assert found.failure is not None
    assert failure in found.failure
    assert (found.cards, found.broken, found.driver, found.holders) == ((), (), None, ())
    assert (found.module, found.library, found.tool) == (module, library, True)


def test_a_host_without_gpus_and_a_container_without_the_drivers_user_space() -> None:
    assert read("none") == Gpus()
    half = read("driver_not_installed_here")
    assert (half.module, half.tool, half.library) == ("580.95.05", False, None)
    assert "/dev/nvidia-uvm" in half.nodes


def test_the_command_answers_on_this_machine_and_takes_root_where_it_may() -> None:
    assert gpu.read(LocalTransport()).failure is None or "NVIDIA" in str(gpu.read(LocalTransport()).failure)
    asked = FakeTransport({gpu.COMMAND: recorded("gpu_none.txt")}, uid=1000)
    gpu.read(asked, sudo=True)
    gpu.read(asked)
    assert [command.startswith("sudo ") for command in asked.commands] == [True, False]


def test_the_command_finds_who_has_a_node_open(tmp_path: Path) -> None:
    """A file stands in for the node; everything else is the command itself."""
    node = tmp_path / "nvidia0"
    node.touch()
    with node.open():
        command = gpu.COMMAND.replace("-lname '/dev/nvidia[0-9]*'", f"-lname '{tmp_path}/nvidia[0-9]*'")
        found = gpu.parse(subprocess.check_output(["/bin/sh", "-c", command], text=True))
    assert [holder.pid for holder in found.holders] == [os.getpid()]
    assert found.holders[0].process


@pytest.mark.parametrize(
    ("group", "unit"),
    [
        ("0::/system.slice/mtp-vllm.service", "mtp-vllm.service"),
        ("0::/user.slice/user-0.slice/session-7.scope", "session-7.scope"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/ollama.service/worker", "ollama.service"),
        ("0::/", None),
    ],
)
def test_the_unit_in_a_control_group(tmp_path: Path, group: str, unit: str | None) -> None:
    """/proc is a folder of the test's: a process whose control group is given, with a node open."""
    process = tmp_path / "4242"
    (process / "fd").mkdir(parents=True)
    (process / "fd/3").symlink_to("/dev/nvidia0")
    (process / "cgroup").write_text(f"{group}\n")
    (process / "comm").write_text("python3\n")
    fields = len(tmp_path.parts) + 1
    command = gpu.COMMAND.replace("/proc/", f"{tmp_path}/").replace("cut -d/ -f3", f"cut -d/ -f{fields}")
    found = gpu.parse(subprocess.check_output(["/bin/sh", "-c", command], text=True))
    assert found.holders == (Holder(4242, None, "python3", unit),)
