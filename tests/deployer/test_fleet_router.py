"""The router's files: what an inventory may say, the unit it becomes, and which boxes are behind it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from calling import write_inventory
from fakes import FakeTransport
from material import inventory_for

from deployer.errors import PreflightError, UsageError
from deployer.facts import firewall
from deployer.fleet.inventory import Router, address_of, boxes, in_front_of, load, names
from deployer.fleet.plan import Seen, knock
from deployer.fleet.render import arguments, render
from deployer.fleet.traffic import UNROUTED, Routed, behind
from deployer.install.lockfile import bundled
from deployer.inventory.load import load as load_box
from deployer.inventory.model import Inventory
from deployer.transport.base import Result
from deployer.transport.local import LocalTransport

WORKERS = {"http://10.0.0.1:8000": "10.0.0.1", "http://10.0.0.2:8000": "10.0.0.2"}
VENV = "/opt/ddtree-router/releases/router-1/venv"


def router(**serve: Any) -> Router:
    return Router.model_validate({"name": "edge", "group": "pair", "ssh": {"host": "kpro5"}, "serve": serve})


@pytest.fixture
def hosts(tmp_path: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two boxes of group `pair`, one of none, and a router for the pair."""
    folder = tmp_path / "inventory"
    (folder / "routers").mkdir(parents=True)
    monkeypatch.setenv("DDTREE_INVENTORY", str(folder))
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("ann", "bob", "carl"), start=1):
        groups = ["pair"] if name != "carl" else []
        serve = {"address": f"10.0.0.{number}", "allow": ["10.0.0.9"]}
        made = inventory_for(tmp_path, drafter).model_dump(mode="json", exclude_none=True)
        write_inventory(
            Inventory.model_validate(made | {"serve": made["serve"] | serve}),
            folder / f"{name}.toml",
            name=name,
            groups=groups,
        )
    (folder / "routers/edge.toml").write_text('name = "edge"\ngroup = "pair"\n[ssh]\nhost = "kpro5"\n')
    return folder


def test_a_router_sends_to_the_boxes_of_its_group(hosts: Path) -> None:
    assert list(names()) == ["edge"]
    assert [address_of(box) for box in boxes(load("edge"))] == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]
    assert [found.name for found in in_front_of(load_box("ann"))] == ["edge"]
    assert in_front_of(load_box("carl")) == ()


def test_a_box_knows_the_routers_in_front_of_it_and_most_have_none(hosts: Path) -> None:
    traffic = behind(load_box("bob"), strict=True)
    assert isinstance(traffic, Routed)
    assert (traffic.url, traffic.strict, [door.name for door in traffic.doors]) == (
        "http://10.0.0.2:8000",
        True,
        ["edge"],
    )
    assert behind(load_box("carl"), strict=True) is UNROUTED


def test_a_box_on_loopback_cannot_be_behind_a_router(hosts: Path) -> None:
    text = (hosts / "ann.toml").read_text()
    (hosts / "ann.toml").write_text(re.sub(r"(?m)^(address|allow) = .*\n(?:    .*\n\]\n)?", "", text))
    with pytest.raises(UsageError, match="no router reaches it"):
        [address_of(box) for box in boxes(load("edge"))]


def test_who_is_in_front_is_not_guessed_while_a_routers_file_cannot_be_read(hosts: Path) -> None:
    (hosts / "routers/other.toml").write_text("name = ")
    with pytest.raises(UsageError) as raised:
        in_front_of(load_box("ann"))
    assert "other.toml" in raised.value.where


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("prot = 1", "unknown key prot"),
        ("[serve]\nprot = 1", "did you mean port?"),
        ('[install]\nsource = "wheelhouse"', "no wheelhouse is named"),
        ('[serve]\nallow = ["10.0.0.300"]', "serve.allow.0"),
    ],
)
def test_a_mistake_in_a_routers_file_is_named(hosts: Path, line: str, said: str) -> None:
    file = hosts / "routers/edge.toml"
    text = file.read_text()
    file.write_text(f"{line}\n{text}" if not line.startswith("[") else f"{text}{line}\n")
    with pytest.raises(UsageError) as raised:
        load("edge")
    assert said in str(raised.value)


def test_an_unknown_routers_name_is_answered_with_the_nearest(hosts: Path) -> None:
    with pytest.raises(UsageError) as raised:
        load("egde")
    assert raised.value.remedy == "did you mean edge?"


@pytest.mark.parametrize(
    "serve",
    [
        {"address": "10.0.0.1"},
        {"allow": ["10.0.0.9"]},
        {"address": "10.0.0.1", "allow": ["10.0.0.9"], "options": {"host": "10.0.0.1"}},
        {"address": "ann", "allow": ["10.0.0.9"]},
    ],
)
def test_a_box_on_the_network_says_where_it_is_and_who_may_connect(
    tmp_path: Path, drafter: Path, serve: dict[str, Any]
) -> None:
    data = inventory_for(tmp_path, drafter).model_dump(mode="json", exclude_none=True)
    with pytest.raises(ValueError, match=r"address|options.host"):
        Inventory.model_validate(data | {"serve": data["serve"] | serve})


def test_the_router_is_patient_where_its_own_defaults_lose_requests() -> None:
    words = arguments(router(), tuple(WORKERS))
    assert words[:6] == ("--host", "127.0.0.1", "--port", "30000", "--policy", "round_robin")
    assert words[-3:] == ("--worker-urls", *WORKERS)
    pairs = dict(zip(words[::2], words[1::2], strict=False))
    assert (pairs["--cb-timeout-duration-secs"], pairs["--retry-max-retries"]) == ("5", "10")
    changed = arguments(router(options={"retry_max_retries": 3, "log-level": "warning"}), tuple(WORKERS))
    assert changed[changed.index("--retry-max-retries") + 1] == "3"
    assert changed[changed.index("--log-level") + 1] == "warning"


@pytest.mark.parametrize("key", ["host", "port", "worker_urls", "policy", "api-key"])
def test_options_that_the_deployer_decides_are_refused(key: str) -> None:
    with pytest.raises(UsageError, match="must not set"):
        arguments(router(options={key: "x"}), tuple(WORKERS))


def test_it_is_on_the_network_only_for_those_it_allows_and_reaches_only_its_boxes() -> None:
    closed, opened = render(router(), VENV, WORKERS), render(router(allow=["192.168.7.0/24"]), VENV, WORKERS)
    assert "IPAddressAllow=localhost 10.0.0.1 10.0.0.2\n" in closed.dropin
    assert "IPAddressAllow=localhost 10.0.0.1 10.0.0.2 192.168.7.0/24\n" in opened.dropin
    assert "IPAddressDeny=any\n" in closed.dropin
    assert "--host 127.0.0.1 " in closed.unit
    assert "--host 0.0.0.0 " in opened.unit


def test_requests_under_way_may_end_before_the_router_does() -> None:
    assert "\nTimeoutStopSec=315\n" in render(router(drain_timeout=300), VENV, WORKERS).unit


def test_systemd_rates_the_routers_confinement_at_1_5_or_better(tmp_path: Path) -> None:
    assert shutil.which("systemd-analyze"), "systemd belongs to what this project needs"
    made = render(router(), VENV, WORKERS)
    body, install = made.unit.split("[Install]")
    unit = tmp_path / "ddtree-router.service"
    unit.write_text(f"{body}\n{made.dropin}\n[Install]{install}")
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(unit)]
    report = subprocess.run(command, text=True, capture_output=True, check=True)
    level = re.search(r"exposure level for \S+: (\d+\.\d)", report.stdout)
    assert level is not None
    assert float(level[1]) <= 1.5
    assert "Unknown" not in report.stderr


def test_the_lock_pins_the_router_and_all_it_needs_by_hash() -> None:
    lock = bundled("router")
    assert lock.version("vllm-router") == "0.1.17"
    assert lock.version("torch") is None
    assert all(pin.sha256 for pin in lock.pins)


def test_the_boxes_are_asked_from_the_routers_host() -> None:
    """A real script against a port of this machine where nobody listens, and a box that does not exist."""
    seen = knock(LocalTransport(), "python3", ("http://127.0.0.1:9",))
    assert seen.healthy == ()
    assert str(seen).startswith("0 of 1 boxes answer (http://127.0.0.1:9: ")
    assert str(Seen({"a": "ok", "b": "timed out"})) == "1 of 2 boxes answer (b: timed out)"


@pytest.mark.parametrize(
    ("answer", "said"), [("open\n", "the kernel does not enforce it"), ("", "Failed to start transient unit")]
)
def test_a_host_that_does_not_enforce_the_allow_list_is_refused(answer: str, said: str) -> None:
    failed = Result("", 0 if answer else 1, answer, "Failed to start transient unit")
    host = FakeTransport({re.compile("systemd-run"): failed})
    with pytest.raises(PreflightError) as raised:
        firewall.must_hold(host, "python3", "ddtree-vllm.service")
    assert said in raised.value.what
    firewall.must_hold(FakeTransport({re.compile("systemd-run"): "closed\n"}), "python3", "ddtree-vllm.service")
