"""`bench --take-gpu`: the service is away meanwhile and back after, whoever brings it back; nothing is measured beside it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from bench_host import ARM, SERVICE, BenchHost, Box, inventory
from tuning import BY_THE_SERVICE, applied, without_waiting

from deployer.bench.plan import plan
from deployer.errors import DeployError, TransferError

ON_GPUS = inventory(install={"build": "cuda"})


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    without_waiting(monkeypatch)


@pytest.fixture
def box() -> Box:
    return Box(gpus="")


@pytest.fixture
def host(box: Box) -> BenchHost:
    return BenchHost(box)


def test_a_service_that_gave_its_gpus_is_started_again_after(host: BenchHost, box: Box) -> None:
    box.gpus = BY_THE_SERVICE
    applied(plan(ON_GPUS, host, take_gpu=True))
    assert (box.log[0], box.log[-1]) == (f"stop {SERVICE}", f"start {SERVICE}")
    assert box.active[SERVICE]


def test_it_is_started_again_when_the_bench_is_interrupted_too(host: BenchHost, box: Box) -> None:
    def cut(what: str) -> None:
        raise KeyboardInterrupt

    box.gpus, box.before_client = BY_THE_SERVICE, cut
    with pytest.raises(KeyboardInterrupt):
        applied(plan(ON_GPUS, host, take_gpu=True))
    assert box.active == {SERVICE: True, ARM: False}


def test_the_host_itself_starts_the_service_again_if_the_laptop_never_comes_back(host: BenchHost, box: Box) -> None:
    """The way back is on the host before the service is stopped, and gone once it was started again."""
    box.gpus = BY_THE_SERVICE
    applied(plan(ON_GPUS, host, take_gpu=True))
    kept = next(
        n for n, command in enumerate(host.commands) if command.startswith("sudo write /opt/ddtree/state/way-back.sh")
    )
    [watch] = [command for command in host.commands if "exec systemd-run" in command]
    stopped = next(n for n, command in enumerate(host.commands) if command.startswith("sudo u=ddtree-vllm.service;"))
    assert kept < stopped
    patience = re.search(r"timeout (\d+) /bin/sh", watch)
    assert patience is not None
    assert int(patience[1]) == 3 * inventory().serve.gate_timeout + 3 * 3600, "every start and client at its own limit"
    started = next(
        n for n, command in enumerate(host.commands) if command.startswith("sudo if test -e /opt/ddtree/state/way-back")
    )
    assert any("way-back.sh.closed" in command for command in host.commands[started:]), "the way goes when it was gone"


@pytest.mark.parametrize("after_its_last_answer", [False, True])
@pytest.mark.parametrize("when", ["ar c1 T0", "tree:15 c1 T0"])
def test_once_the_host_has_started_the_service_again_by_itself_nothing_is_measured_beside_it(
    host: BenchHost, box: Box, when: str, after_its_last_answer: bool
) -> None:
    """As after minutes of silence: the connection lives on, and the service has its GPUs back."""

    def gone_back(what: str) -> None:
        if what == when and not after_its_last_answer:
            host.go_back()
            raise DeployError("no result: the host stopped the client")

    def result(command: str) -> str:
        found = box.files["cell.json"].decode()
        if box.log[-1] == when:
            host.go_back()
        return found

    host.answers = {re.compile(r"^cat /run/.*cell\.json"): result} | host.answers
    box.gpus, box.before_client = BY_THE_SERVICE, gone_back
    with pytest.raises(TransferError, match="the host started the service again by itself") as caught:
        applied(plan(ON_GPUS, host, take_gpu=True))
    assert "what was measured before is kept" in caught.value.remedy
    known = ["ar", "chain"] if when.startswith("tree") else []
    assert len(host.cells) == len(known), "and what was measured while it came back is not kept"
    assert box.log.count(f"start {SERVICE}") == 1
    assert box.active == {SERVICE: True, ARM: False}
    after = box.log[box.log.index(f"start {SERVICE}") :]
    assert not [line for line in after if line.startswith("start ") and SERVICE not in line]


def test_no_engine_is_started_beside_it_either(host: BenchHost, box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host goes back after an arm's last result was kept, before the next arm's start."""
    write = host.write

    def written(data: bytes, remote: str, **options: Any) -> None:
        write(data, remote, **options)
        if "/state/bench/" in remote:
            host.go_back()

    monkeypatch.setattr(host, "write", written)
    box.gpus = BY_THE_SERVICE
    with pytest.raises(TransferError, match="by itself"):
        applied(plan(ON_GPUS, host, take_gpu=True))
    assert len(host.cells) == 1
    assert [line for line in box.log if line.startswith("start ")] == ["start ar", f"start {SERVICE}"]


def test_without_a_service_to_put_back_there_is_no_way_to_keep(host: BenchHost) -> None:
    applied(plan(inventory(), host))
    assert not any("way-back" in command for command in host.commands)
