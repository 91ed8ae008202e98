"""What a deployment writes: unit, drop-in, vLLM's config, environment. Judged as text and by systemd itself."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from material import recorded

from deployer.errors import UsageError
from deployer.facts import confinement
from deployer.inventory.given import normalised
from deployer.inventory.load import load
from deployer.inventory.model import Inventory
from deployer.inventory.secret import Secret
from deployer.serve import decoding
from deployer.serve.options import as_yaml, engine_options, from_yaml
from deployer.serve.render import Engine, Files, Place, environment_file, render

NODES = ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm")
TARGET, DRAFTER, VENV = "/models/target", "/opt/ddtree/models/drafter-abc", "/opt/ddtree/releases/r1/venv"


def inventory(name: str, **changes: dict[str, Any]) -> Inventory:
    """A bundled inventory with keys of its sections changed."""
    data = load(name).model_dump()
    for section, values in changes.items():
        data[section] = {**data[section], **values}
    return Inventory.model_validate(data)


def files(subject: Inventory, target: str = TARGET) -> Files:
    engine = Engine(VENV, target, DRAFTER, decoding.served(subject))
    return render(subject, Place.of_service(subject), engine, NODES, {})


def options(subject: Inventory) -> dict[str, Any]:
    return from_yaml(files(subject).config)


TREE = {"enabled": True, "budget": 31, "table": ()}


def test_a_tree_on_a_gpu_names_worker_backend_and_budget() -> None:
    found = options(inventory("ct129", tree=TREE | {"options": {"topk": 8}}))
    assert found["worker-cls"] == "ddtree_ext.engine.worker.DDTreeWorker"
    assert found["attention-backend"] == "CUSTOM"
    assert found["additional-config"] == {"ddtree": {"topk": 8}}
    speculative = found["speculative-config"]
    assert speculative.pop("attention_backend") == "FLASH_ATTN", "the drafter keeps the stock backend"
    assert speculative == {"method": "dflash", "model": DRAFTER, "num_speculative_tokens": 31}


def test_a_tree_on_a_cpu_names_the_cpu_worker_and_leaves_the_drafter_its_backend() -> None:
    found = options(inventory("staging", tree=TREE))
    assert found["worker-cls"] == "ddtree_ext.engine.cpu_worker.DDTreeCPUWorker"
    assert found["attention-backend"] == "CUSTOM"
    assert "attention_backend" not in found["speculative-config"]


def test_a_tree_switched_off_is_the_stock_chain_at_the_drafters_width() -> None:
    found = options(inventory("staging", tree={"enabled": False}))
    assert found["speculative-config"]["num_speculative_tokens"] == 7
    assert not {"worker-cls", "additional-config", "attention-backend"} & set(found)


def test_a_budget_below_the_drafters_width_is_refused() -> None:
    with pytest.raises(UsageError, match="below the drafter's width 15"):
        files(inventory("ct129", tree=TREE | {"budget": 8}))


def test_the_inventorys_options_reach_vllm_by_their_names() -> None:
    found = options(inventory("ct129"))
    assert found["tensor-parallel-size"] == 2
    assert found["reasoning-parser"] == "qwen3"
    assert found["host"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ({"enable-prefix-caching": False}, {"no-enable-prefix-caching": True}),
        ({"enable_prefix_caching": True}, {"enable-prefix-caching": True}),
        ({"no-enable-log-requests": False}, {"enable-log-requests": True}),
        ({"--max-model-len": 7}, {"max-model-len": 7}),
    ],
)
def test_a_false_flag_is_written_so_that_vllm_does_not_drop_it(given: dict[str, Any], written: dict[str, Any]) -> None:
    assert normalised(given) == written


@pytest.mark.parametrize(
    "given",
    [
        {"model": "/elsewhere"},
        {"worker-cls": "x"},
        {"speculative-config": {"num_speculative_tokens": 3}},
        {"additional_config": {"ddtree": {}}},
        {"speculative-config": "dflash"},
    ],
)
def test_options_that_the_deployer_decides_are_refused(given: dict[str, Any]) -> None:
    subject = inventory("ct129", serve={"options": given})
    with pytest.raises(UsageError):
        engine_options(subject, decoding.autoregressive(), target=TARGET, drafter=DRAFTER, port=1)


def test_other_keys_of_nested_options_are_passed_through() -> None:
    subject = inventory(
        "ct129", tree=TREE, serve={"options": {"speculative-config": {"draft_tensor_parallel_size": 1}}}
    )
    assert options(subject)["speculative-config"]["draft_tensor_parallel_size"] == 1


def test_the_config_reads_back_as_it_was_written() -> None:
    some = {"model": "/a b", "served-model-name": ["x: y"], "speculative-config": {"k": [1, 2.5, None]}}
    assert from_yaml(as_yaml(some)) == some


@pytest.fixture(params=["staging", "ct129"])
def subject(request: pytest.FixtureRequest) -> Inventory:
    return inventory(request.param, tree=TREE)


def written(subject: Inventory, folder: Path) -> Path:
    """The unit and its drop-in as one file, for systemd-analyze."""
    made = files(subject)
    unit = folder / "ddtree-vllm.service"
    unit.write_text(made.unit)
    (folder / "ddtree-vllm.service.d").mkdir()
    (folder / "ddtree-vllm.service.d" / "10-build.conf").write_text(made.dropin)
    return unit


def rated(made: Files, folder: Path) -> tuple[float, list[str]]:
    """What systemd says of the confinement: its number, and the settings that it finds open."""
    assert shutil.which("systemd-analyze"), "systemd belongs to what this project needs"
    # Offline, drop-ins are not read: a later setting in the same file overrides in the same way.
    unit = folder / "ddtree-vllm.service"
    body, install = made.unit.split("[Install]")
    unit.write_text(f"{body}\n{made.dropin}\n[Install]{install}")
    report = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(unit)],
        text=True,
        capture_output=True,
        check=True,
    )
    level = re.search(r"exposure level for \S+: (\d+\.\d)", report.stdout)
    assert level is not None
    assert "Unknown" not in report.stderr
    return float(level[1]), [line.split()[1] for line in report.stdout.splitlines() if line.startswith("✗")]


def test_systemd_rates_the_confinement_at_2_5_or_better(subject: Inventory, tmp_path: Path) -> None:
    assert rated(files(subject), tmp_path)[0] <= 2.5


def test_each_setting_that_systemd_finds_open_has_its_reason_in_a_comment(subject: Inventory, tmp_path: Path) -> None:
    made = files(subject)
    comments = " ".join(line for line in (made.unit + made.dropin).splitlines() if line.startswith("#"))
    _, found = rated(made, tmp_path)
    assert found
    for setting in found:  # such as ProcSubset=, SystemCallFilter=~@resources, RestrictAddressFamilies=~AF_(INET|INET6)
        name, _, part = setting.partition("=")
        word = part.removeprefix("~").replace("AF_(INET|INET6)", "AF_INET") if part.startswith("~") else name
        assert re.search(rf"{re.escape(word)}(:| \w)", comments), f"no comment says why {setting} is open"


def test_a_softer_unit_switches_off_what_the_host_cannot_carry_out_and_nothing_else(tmp_path: Path) -> None:
    asked = confinement.parse(recorded("unit_no_nesting.txt"))
    assert asked is not None
    assert asked.softer is not None
    subject = inventory("staging")
    engine = Engine(VENV, TARGET, DRAFTER, decoding.served(subject))
    whole = render(subject, Place.of_service(subject), engine)
    made = render(subject, Place.of_service(subject), replace(engine, softer=(*asked.softer, "PrivateDevices")))
    assert made.unit == whole.unit
    added = made.dropin.removeprefix(whole.dropin).splitlines()
    assert added[1] == "[Service]"
    assert added[2].startswith("# Softer: systemd on this host cannot")
    assert added[3:] == [
        "ProtectSystem=no",
        "ProtectHome=no",
        "PrivateTmp=no",
        "PrivateMounts=no",
        "PrivateIPC=no",
        "ProtectKernelTunables=no",
        "ProtectKernelModules=no",
        "ProtectKernelLogs=no",
        "ProtectControlGroups=no",
        "ProtectProc=default",
        "PrivateDevices=no",
        "DevicePolicy=closed",
    ]
    before, after = rated(whole, tmp_path)[0], rated(made, tmp_path)[0]
    assert before < after < 5.0, "seccomp, capabilities, devices and the network stay confined"


def test_where_no_view_can_be_made_nothing_hides_the_models() -> None:
    subject = inventory("staging")
    engine = Engine(VENV, "/home/ai/qwen", DRAFTER, decoding.served(subject), ("ProtectSystem",))
    dropin = render(subject, Place.of_service(subject), engine).dropin
    assert dropin.endswith("ProtectSystem=no\nProtectHome=no\nPrivateTmp=no\nBindReadOnlyPaths=\n")


def test_the_unit_restarts_always_ends_all_processes_and_lets_the_gate_judge(subject: Inventory) -> None:
    unit = files(subject).unit
    for line in ("Type=exec", "Restart=always", "KillMode=mixed", "User=ddtree", "RemoveIPC=yes"):
        assert f"\n{line}\n" in unit
    assert f"\nExecStart={VENV}/bin/vllm serve --config /etc/ddtree/ddtree-vllm.yaml\n" in unit
    assert "${" not in unit


def test_the_stop_timeout_leaves_15_s_after_the_drain() -> None:
    assert "\nTimeoutStopSec=35\n" in files(inventory("staging")).unit
    longer = inventory("staging", serve={"options": {"shutdown-timeout": 60}})
    assert "\nTimeoutStopSec=75\n" in files(longer).unit


def test_a_gpu_service_sees_its_device_nodes_and_no_others() -> None:
    dropin = files(inventory("ct129")).dropin
    assert [line for line in dropin.splitlines() if line.startswith("DeviceAllow")] == [
        f"DeviceAllow={n} rw" for n in NODES
    ]
    assert "DevicePolicy=closed" in dropin
    assert "PrivateDevices=yes" in files(inventory("staging")).dropin


def test_the_start_limit_outlasts_three_loads_on_a_gpu() -> None:
    subject = inventory("ct129", serve={"gate_timeout": 1800.0})
    interval = re.search(r"StartLimitIntervalSec=(\d+)", files(subject).dropin)
    assert interval is not None
    assert int(interval[1]) >= 3 * 1800


def test_only_a_service_on_loopback_is_closed_to_the_network() -> None:
    assert "IPAddressDeny=any" in files(inventory("staging")).dropin
    opened = inventory("staging", serve={"options": {"host": "0.0.0.0"}})
    assert "IPAddressDeny" not in files(opened).dropin


def test_a_model_under_a_home_is_bound_into_the_units_view() -> None:
    unit = files(inventory("ct129"), target="/home/ai/qwen").unit
    assert "\nBindReadOnlyPaths=/home/ai/qwen\n" in unit
    assert "\nProtectHome=tmpfs\n" in unit
    assert "\nProtectHome=yes\n" in files(inventory("ct129")).unit


def test_a_secret_is_nowhere_but_in_the_environment_file() -> None:
    subject = inventory("ct129", serve={"secrets": {"VLLM_API_KEY": {"env": "DEPLOY_KEY"}}})
    engine = Engine(VENV, TARGET, DRAFTER, decoding.autoregressive())
    made = render(subject, Place.of_service(subject), engine, NODES, {"VLLM_API_KEY": Secret("s3cret")})
    assert made.text("environment") == 'VLLM_API_KEY="s3cret"\n'
    assert "s3cret" not in made.unit + made.dropin + made.config + repr(made) + str(made.environment)


def test_systemds_quoting_keeps_a_value_as_it_is(tmp_path: Path) -> None:
    value = 'a "b" \\ `c` d#e'
    text = environment_file({"X": value}, {}).reveal()
    assert subprocess.check_output(["/bin/sh", "-c", f'{text.strip()}; printf %s "$X"'], text=True) == value


def test_equal_files_have_equal_digests_and_any_change_shows(subject: Inventory) -> None:
    assert files(subject).digest == files(subject).digest
    assert files(subject).digest != files(subject, target="/other").digest
