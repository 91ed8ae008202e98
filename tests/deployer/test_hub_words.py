"""What an inventory may say of the hub, and what the operator is told when a fetch fails."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fakes import FakeTransport
from material import inventory_for
from pydantic import ValidationError

from deployer.errors import PreflightError, TransferError
from deployer.hub import failure
from deployer.hub.request import Request, requests
from deployer.hub.state import Listed, Record, Status
from deployer.inventory.model import Drafter, Hub, Inventory, Target
from deployer.plan.layout import Layout
from deployer.transport.local import LocalTransport

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def inventory(tmp_path: Path) -> Inventory:
    return inventory_for(tmp_path, tmp_path / "drafter.safetensors")


def request_of(inventory: Inventory, **hub: object) -> Request:
    asked = Hub.model_validate({"repo": "owner/Big", **hub})
    target = inventory.target.model_copy(update={"hub": asked})
    return requests(inventory.model_copy(update={"target": target}))[0]


def test_a_target_comes_from_one_place() -> None:
    hub = Hub(repo="owner/Big")
    assert Target(path="/models/big", hub=hub).hub == hub
    with pytest.raises(ValidationError, match="say either push or hub"):
        Target(path="/models/big", hub=hub, push=Path("/models"))


@pytest.mark.parametrize("repo", ["", "/x", "a/b/c", "-x/y", "a b/c", "https://huggingface.co/a/b", "a/b;c"])
def test_what_is_no_repository_is_refused(repo: str) -> None:
    with pytest.raises(ValidationError):
        Hub(repo=repo)


@pytest.mark.parametrize(
    ("endpoint", "good"),
    [
        ("https://huggingface.co", True),
        ("https://mirror.example/hf", True),
        ("http://127.0.0.1:8080", True),
        ("http://localhost", True),
        ("http://mirror.example", False),
        ("http://127.0.0.1.example", False),
        ("http://localhost.example:80", False),
    ],
)
def test_a_token_goes_over_https_or_to_this_machine_only(endpoint: str, good: bool) -> None:
    Hub(repo="owner/Big", endpoint=endpoint)
    if good:
        Hub.model_validate({"repo": "owner/Big", "endpoint": endpoint, "token": {"env": "T"}})
    else:
        with pytest.raises(ValidationError, match="without https everybody on the way reads it"):
            Hub.model_validate({"repo": "owner/Big", "endpoint": endpoint, "token": {"env": "T"}})


def test_equal_requests_have_one_unit_and_one_record(inventory: Inventory) -> None:
    first, second = request_of(inventory), request_of(inventory, revision="v2")
    assert first.unit == request_of(inventory).unit
    assert first.unit != second.unit
    assert re.fullmatch(r"ddtree-vllm-fetch-[0-9a-f]{12}\.service", first.unit)
    assert first.folder(Layout.of(inventory)).startswith(f"{inventory.root}/state/hub/")
    assert (first.pinned, request_of(inventory, revision=COMMIT).pinned) == (False, True)


def test_a_model_is_known_when_every_files_hash_is(inventory: Inventory) -> None:
    request, large = request_of(inventory), Listed("model.safetensors", 10, "a" * 64)
    assert Record(COMMIT, "now", (large, Listed("config.json", 2, None))).model(request) is None
    model = Record(COMMIT, "now", (large, Listed("config.json", 2, "b" * 64))).model(request)
    assert model is not None
    assert model.manifest == {"model.safetensors": "a" * 64, "config.json": "b" * 64}


@pytest.mark.parametrize(
    "kind", ["network", "busy", "gated", "repo", "refused", "revision", "entry", "room", "damaged"]
)
def test_every_kind_of_failure_names_the_model_the_host_and_what_to_do(inventory: Inventory, kind: str) -> None:
    request = request_of(inventory, revision="v2", token={"env": "HF_TOKEN"})
    status = Status("failed", 1, 2, kind, "what the hub said")
    error = failure.explained(FakeTransport({}), request, "/opt/store", status)
    assert isinstance(error, TransferError | PreflightError)
    assert error.what.endswith(": what the hub said")
    assert "owner/Big" in error.where
    assert error.where.startswith("box: ")
    assert error.remedy


def test_a_host_without_a_way_out_gets_its_model_from_the_laptop(inventory: Inventory) -> None:
    hub, kinds = Hub(repo="owner/Tiny"), {"drafter": "[drafter] file", "target": "[target] push"}
    of_the_hub = inventory.model_copy(
        update={
            "drafter": Drafter(hub=hub, profile=inventory.drafter.profile),
            "target": inventory.target.model_copy(update={"hub": hub}),
        }
    )
    asked = requests(of_the_hub)
    assert len({request.unit for request in asked}) == 2, "one repository may hold both"
    status = Status("failed", 0, 0, "network", "no route")
    said = {request.kind: failure.explained(FakeTransport({}), request, "/s", status).remedy for request in asked}
    assert said.keys() == kinds.keys()
    assert all(words in said[kind] for kind, words in kinds.items())


def test_a_kind_that_nobody_foresaw_leads_to_the_journal(inventory: Inventory) -> None:
    request = request_of(inventory)
    error = failure.explained(FakeTransport({}), request, "/opt/store", Status("failed", 0, 0, "unexpected", "Boom"))
    assert f"journalctl -u {request.unit}" in error.remedy
    assert request.unit in failure.vanished(FakeTransport({}), request).where


def test_a_disk_that_fills_up_during_a_fetch_is_named_like_in_a_push(inventory: Inventory) -> None:
    status = Status("failed", 1, 2, "disk", "[Errno 28] No space left on device: '/opt/store/x.part'")
    error = failure.explained(LocalTransport(), request_of(inventory), "/opt", status)
    assert error.what.startswith("the disk is full while sending owner/Big (fetched from the hub)")
    assert "what arrived is kept and continued" in error.remedy
