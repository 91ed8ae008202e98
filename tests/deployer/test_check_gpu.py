"""check on GPUs: the driver against the lock, its halves against each other, cards, modes, nodes, memory and holders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fit import PRODUCTION, STAGING, finding, fit, subjects
from material import RECORDED, recorded

from deployer.facts import confinement, gpu, service
from deployer.facts.finding import Level, failures
from deployer.facts.gather import Facts
from deployer.facts.judge import judge
from deployer.facts.judge_gpu import OLDEST_DRIVER
from deployer.install.lockfile import bundled
from deployer.inventory.model import Inventory

RUNNING = service.parse(recorded("service_running.txt"))


def on(name: str, **changes: Any) -> Facts:
    return fit(gpus=gpu.parse(recorded(f"gpu_{name}.txt")), **changes)


def with_checks(**changes: Any) -> Inventory:
    return PRODUCTION.model_copy(update={"checks": PRODUCTION.checks.model_copy(update=changes)})


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDED.glob("gpu_*.txt")))
def test_every_example_is_judged_and_every_finding_that_is_not_good_says_what_to_do(name: str) -> None:
    findings = judge(fit(gpus=gpu.parse(recorded(f"{name}.txt"))), PRODUCTION)
    bad = [finding for finding in findings if finding.level is not Level.OK]
    assert bool(bad) == (name != "gpu_a6000_pair_idle")
    assert all(finding.remedy and finding.seen for finding in bad)


def test_the_lock_says_which_driver_its_cuda_needs() -> None:
    assert (bundled("cuda").version("nvidia-cuda-runtime") or "").startswith("13.")
    old = on("rtx4090_driver_570")
    found = finding(old, "driver", with_checks(min_driver=None))
    assert found.level is Level.FAIL
    assert found.seen == "570.86.15, for CUDA 13.0"
    assert "needs 580 or newer" in found.remedy
    assert OLDEST_DRIVER[13] == "580"


def test_an_inventory_may_ask_for_a_newer_driver_and_not_for_an_older_one() -> None:
    assert finding(fit(), "driver", with_checks(min_driver="590")).level is Level.FAIL
    assert finding(on("rtx4090_driver_570"), "driver", with_checks(min_driver="550")).level is Level.FAIL
    assert finding(fit(), "driver", with_checks(min_driver="580")).level is Level.OK


def test_a_driver_is_judged_by_its_module_when_nvidia_smi_does_not_answer() -> None:
    found = finding(on("driver_470_unknown_field"), "driver")
    assert (found.level, found.seen) == (Level.FAIL, "470.256.02, for CUDA 13.0")


def test_a_driver_that_was_upgraded_under_the_container_is_named_for_what_it_is() -> None:
    found = finding(on("version_mismatch"), "gpu")
    assert found.level is Level.FAIL
    assert "(kernel module 580.65.06, library 580.95.05)" in found.seen
    assert "upgraded under the container" in found.remedy
    assert "driver match" not in subjects(on("version_mismatch")), "said once"


def test_libraries_that_differ_from_the_module_are_found_while_nvidia_smi_still_answers() -> None:
    found = finding(fit(gpus=replace(fit().gpus, library="580.65.06")), "driver match")
    assert found.level is Level.FAIL
    assert found.seen == "kernel module 580.95.05, library 580.65.06"
    assert "running jobs live on" in found.remedy


@pytest.mark.parametrize(
    ("name", "seen", "remedy"),
    [
        ("none", "no nvidia-smi", "user-space part"),
        ("driver_not_installed_here", "no nvidia-smi", "user-space part"),
        ("module_not_loaded", "couldn't communicate", "modprobe nvidia"),
        ("no_devices", "No devices were found", "pass /dev/nvidia*"),
        ("cgroup_lost", "NVML: Unknown Error", "pct reboot"),
        ("fell_off_the_bus", "GPU is lost", "Xid"),
        ("a6000_one_lost", "device handle", "fell off the bus"),
        ("no_nvml", "couldn't find libnvidia-ml", "install libnvidia-ml"),
        ("driver_470_unknown_field", "not a valid field", "too old"),
    ],
)
def test_no_answer_has_a_remedy_by_its_words(name: str, seen: str, remedy: str) -> None:
    found = finding(on(name), "gpu")
    assert found.level is Level.FAIL
    assert seen in found.seen
    assert remedy in found.remedy


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("a6000_requires_reset", "GPU 1 (NVIDIA RTX A6000): [GPU requires reset]"),
        ("a100_mig_no_permission", "GPU 0 (NVIDIA A100-SXM4-80GB): [Insufficient Permissions]"),
        ("gb10_without_own_memory", "GPU 0 (NVIDIA GB10): [N/A]"),
    ],
)
def test_a_card_that_answers_with_words_is_named(name: str, seen: str) -> None:
    found = finding(on(name), "gpu state")
    assert (found.level, found.seen) == (Level.FAIL, seen)


def test_a_warning_is_said_and_the_cards_that_answer_are_judged() -> None:
    warned = on("a6000_inforom_corrupted")
    assert finding(warned, "gpu warning").level is Level.WARN
    assert "gpu" not in subjects(warned)
    assert finding(warned, "gpus").level is Level.OK
    lost = finding(on("a6000_one_lost"), "gpus")
    assert (lost.level, lost.seen) == (Level.FAIL, "1 x NVIDIA RTX A6000")


def test_the_remedy_of_a_card_without_numbers_depends_on_the_word() -> None:
    assert "--gpu-reset" in finding(on("a6000_requires_reset"), "gpu state").remedy
    assert "run the check as root" in finding(on("a100_mig_no_permission"), "gpu state").remedy
    assert "memory of its own" in finding(on("gb10_without_own_memory"), "gpu state").remedy


def test_fewer_or_smaller_or_older_cards_are_refused_and_another_model_is_said_aloud() -> None:
    other = on("h200_idle")
    assert finding(other, "gpus").level is Level.FAIL
    assert finding(other, "gpu model").level is Level.WARN
    assert finding(on("rtx4090_driver_570"), "gpu memory").seen == "GPU 0: 24.0 GiB"
    old = finding(on("tesla_v100_prohibited"), "gpu generation")
    assert (old.level, old.seen) == (Level.FAIL, "GPU 0: 7.0, GPU 1: 7.0")
    mixed = replace(fit().gpus, cards=(fit().gpus.cards[0], on("h200_idle").gpus.cards[0]))
    assert finding(fit(gpus=mixed), "gpus").seen == "1 x NVIDIA RTX A6000, 1 x NVIDIA H200"


def test_modes_that_keep_an_engine_from_the_cards() -> None:
    cut = finding(on("h100_mig"), "gpu mode")
    assert (cut.level, cut.seen) == (Level.FAIL, "MIG is enabled on GPU 0")
    assert "-mig 0" in cut.remedy
    assert finding(on("h100_mig"), "gpu mode", with_checks(gpus=1)).level is Level.WARN, "one instance may be enough"
    closed = finding(on("tesla_v100_prohibited"), "gpu mode")
    assert (closed.level, closed.seen) == (Level.FAIL, "compute is prohibited on GPU 0")
    assert "-c DEFAULT" in closed.remedy


@pytest.mark.parametrize(
    ("unit", "level", "seen", "remedy"),
    [
        ("good", Level.OK, "complete, ddtree opens them", ""),
        ("account_to_be_made", Level.OK, "complete, nobody opens them", ""),
        ("cgroup_refuses_uvm", Level.FAIL, "/dev/nvidia-uvm: Operation not permitted", "allow: c 511:* rwm"),
        ("mode_refuses", Level.FAIL, "/dev/nvidia0, /dev/nvidia1, /dev/nvidiactl: Permission denied", "666 for root"),
        ("stale_uvm_major", Level.FAIL, "/dev/nvidia-uvm: No such device or address", "modprobe nvidia-uvm"),
    ],
)
def test_the_services_account_must_open_the_nodes(unit: str, level: Level, seen: str, remedy: str) -> None:
    found = finding(fit(confinement=confinement.parse(recorded(f"unit_{unit}.txt"))), "device nodes")
    assert found.level is level
    assert seen in found.seen
    assert remedy in found.remedy


def test_a_node_that_is_missing_or_a_file_in_its_place() -> None:
    gpus = fit().gpus
    no_uvm = replace(gpus, devices=tuple(node for node in gpus.devices if "uvm" not in node.path))
    missing = finding(fit(gpus=no_uvm), "device nodes")
    assert (missing.level, missing.seen) == (Level.FAIL, "/dev/nvidia-uvm: missing")
    assert "nvidia-modprobe -u -c=0" in missing.remedy
    none = finding(on("no_devices"), "device nodes")
    assert none.seen == "/dev/nvidia0, /dev/nvidiactl, /dev/nvidia-uvm: missing"
    hollow = finding(on("uvm_not_mounted"), "device nodes")
    assert "/dev/nvidia-uvm: no device" in hollow.seen
    assert "pct reboot" in hollow.remedy
    assert finding(on("uvm_not_mounted"), "libcuda").level is Level.FAIL


def test_memory_that_another_holds_is_named_with_its_unit_before_anything_loads() -> None:
    found = finding(on("a6000_pair_held_by_unit"), "free gpu memory")
    assert found.level is Level.WARN
    assert "GPU 0: 3121 of 49140 MiB free, 44226 wanted" in found.seen
    assert "VLLM::Worker_TP0 (pid 812, mtp-vllm.service)" in found.seen
    assert "--replace mtp-vllm.service" in found.remedy
    shell = finding(on("a6000_pair_held_by_shell"), "free gpu memory")
    assert "held by python (pid 4242, 28100 MiB, session-7.scope), python3 (pid 5151)" in shell.seen
    assert "--replace UNIT" in shell.remedy, "a login is no unit to stop"
    assert "free gpu memory" not in subjects(on("a6000_pair_held_by_unit", service=RUNNING)), "we hold it ourselves"


def test_the_share_of_memory_is_the_inventorys_else_vllms() -> None:
    card = replace(fit().gpus.cards[0], memory_free=int(0.91 * 49140))
    facts = fit(gpus=replace(fit().gpus, cards=(card, card)))
    assert finding(facts, "free gpu memory").level is Level.OK, "0.90 in the inventory"
    options = {key: value for key, value in PRODUCTION.serve.options.items() if key != "gpu-memory-utilization"}
    default = PRODUCTION.model_copy(update={"serve": PRODUCTION.serve.model_copy(update={"options": options})})
    assert finding(facts, "free gpu memory", default).level is Level.WARN, "vLLM's default is 0.92"


def test_a_host_that_is_to_have_no_gpu_has_no_findings_on_them() -> None:
    assert not {"gpu", "gpus", "driver", "device nodes"} & subjects(on("none"), STAGING)
    assert failures(judge(on("none"), PRODUCTION))
