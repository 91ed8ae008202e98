"""`stop`, `uninstall` and a bench that takes the GPUs of a box behind a router: out of it first, by the real requests to a
stand-in router; the host is the stand-in of the serve room.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from bench_host import HELD, BenchHost, Box
from bench_host import inventory as bench_inventory
from recorder import Recorder
from serving import Host, Machine, applied, inventory
from standin_router import StandInRouter, door, listening, ticking

from deployer.cli.bench import planned
from deployer.errors import DeployError, RollbackError, UsageError
from deployer.fleet import parting
from deployer.fleet.parting import lent
from deployer.fleet.traffic import Routed
from deployer.plan import apply
from deployer.plan.step import Progress, Step
from deployer.serve import plan, stop, uninstall
from deployer.serve.service import Service

HERE, OTHER = "http://10.0.0.1:8000", "http://10.0.0.2:8000"


@pytest.fixture
def router() -> Iterator[StandInRouter]:
    with listening(StandInRouter({HERE: True, OTHER: True})) as made:
        yield made


@pytest.fixture(autouse=True)
def _serves(host: Host, machine: Machine, router: StandInRouter, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first deployment serves behind the router, and the log begins after it."""
    applied(plan.plan(inventory(), host))
    machine.log.clear()
    behind = Routed(HERE, (door(router),), clock=ticking())
    monkeypatch.setattr(parting, "behind", lambda box, *, strict: behind)


def heard(made: apply.Plan) -> list[str]:
    recorder = Recorder()
    apply.run(made, recorder)
    return recorder.lines


def test_stop_takes_the_box_out_of_the_router_first_and_its_plan_says_so(
    host: Host, machine: Machine, router: StandInRouter
) -> None:
    made = stop.plan(inventory(), host)
    (step,) = made.pending
    assert step.reason.endswith("; edge must send nothing here before the service stops")
    assert router.asked == [], "planning asks nobody"
    said = heard(made)
    assert (router.boxes, machine.log) == ({OTHER: True}, ["stop"])
    assert "router edge sends no more requests here" in said
    assert stop.plan(inventory(), host).pending == ()


@pytest.mark.parametrize("unreachable", ["refuses", "is not there", "its file cannot be read"])
def test_a_router_that_cannot_be_told_is_named_and_keeps_nobody_from_stopping(
    host: Host, machine: Machine, router: StandInRouter, monkeypatch: pytest.MonkeyPatch, unreachable: str
) -> None:
    def unreadable(box: object, *, strict: bool) -> None:
        raise UsageError("not valid TOML", where="edge.toml", remedy="mend it")

    if unreachable == "refuses":
        router.refusal = "not now"
    elif unreachable == "is not there":
        gone = Routed(HERE, (door(StandInRouter({}, port=1)),), clock=ticking())
        monkeypatch.setattr(parting, "behind", lambda box, *, strict: gone)
    else:
        monkeypatch.setattr(parting, "behind", unreadable)
    made = stop.plan(inventory(), host)
    said = "\n".join([*(step.reason for step in made.steps), *heard(made)])
    assert machine.log == ["stop"]
    assert re.search("edge could not be told|edge does not answer|no router is told: not valid TOML", said)


def test_uninstall_takes_it_out_too_and_a_second_one_asks_for_nothing(
    host: Host, machine: Machine, router: StandInRouter
) -> None:
    host.answers[re.compile(r"^for p in")] = ""
    host.answers[re.compile(r"^PATH=")] = ""
    made = uninstall.plan(inventory(), host)
    assert made.pending[0].title == "service"
    assert made.pending[0].reason.endswith("edge must send nothing here before the service stops")
    applied(made)
    assert (router.boxes, machine.log) == ({OTHER: True}, ["stop"])
    assert all("edge" not in step.reason for step in uninstall.plan(inventory(), host).steps)


def ending(verb: str, host: Host) -> apply.Plan:
    """`stop`, or `uninstall` of a host where nothing but the service is left."""
    if verb == "stop":
        return stop.plan(inventory(), host)
    host.answers[re.compile(r"^for p in")] = ""
    host.answers[re.compile(r"^PATH=")] = ""
    return uninstall.plan(inventory(), host)


@pytest.mark.parametrize("fault", [DeployError("processes do not end", where="box", remedy="x"), KeyboardInterrupt()])
@pytest.mark.parametrize("verb", ["stop", "uninstall"])
def test_a_stop_that_fails_or_is_cut_brings_the_box_back_as_long_as_its_service_runs(
    host: Host,
    machine: Machine,
    router: StandInRouter,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    fault: BaseException,
) -> None:
    def fails(self: Service) -> None:
        assert HERE not in router.boxes
        raise fault

    monkeypatch.setattr(Service, "stop", fails)
    with pytest.raises(type(fault)):
        heard(ending(verb, host))
    assert (router.boxes, machine.active) == ({OTHER: True, HERE: True}, True)


@pytest.mark.parametrize("verb", ["stop", "uninstall"])
def test_one_that_fails_with_the_service_down_says_how_requests_come_again(
    host: Host, machine: Machine, router: StandInRouter, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    def half(self: Service) -> None:
        machine.active = False
        raise DeployError("processes do not end", where="box", remedy="x")

    monkeypatch.setattr(Service, "stop", half)
    recorder = Recorder()
    with pytest.raises(DeployError, match="processes do not end"):
        apply.run(ending(verb, host), recorder)
    assert router.boxes == {OTHER: True}
    said = "no requests come here: the service does not run; they come again by: ddtree-deploy up box"
    assert recorder.lines[-1] == said


def test_one_that_fails_and_a_router_that_refuses_then_leave_the_stop_as_the_error(
    host: Host, router: StandInRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Service) -> None:
        router.refusal = "not now"
        raise DeployError("processes do not end", where="box", remedy="x")

    monkeypatch.setattr(Service, "stop", fails)
    recorder = Recorder()
    with pytest.raises(DeployError, match="processes do not end"):
        apply.run(stop.plan(inventory(), host), recorder)
    assert re.search("answers 500: not now; they come again by: ddtree-deploy up box", recorder.lines[-1])


def borrowed(host: Host, machine: Machine, fault: BaseException | None = None) -> Step:
    """A step that stops the service for a while, as a bench does."""
    service = Service.of(inventory(), host)

    def work(progress: Progress) -> None:
        service.stop()
        try:
            if fault:
                raise fault
        finally:
            service.start()

    return lent(Step("bench", "tree", "not measured", work), inventory(), service)


def test_a_bench_that_takes_the_gpus_is_out_meanwhile_and_back_when_the_service_answers(
    host: Host, machine: Machine, router: StandInRouter
) -> None:
    step = borrowed(host, machine)
    assert step.reason == "not measured; edge must send nothing here before the service stops"
    assert step.action is not None
    recorder = Recorder()
    step.action(recorder)
    assert machine.log == ["stop", "start"]
    assert [asked for asked in router.asked if asked.startswith("POST")] == [
        f"POST /remove_worker {HERE}",
        f"POST /add_worker {HERE}",
    ]
    assert recorder.lines[-1] == "router edge sends requests here"


def test_a_bench_that_fails_brings_the_box_back_and_an_interrupted_one_says_how(
    host: Host, machine: Machine, router: StandInRouter
) -> None:
    failing = borrowed(host, machine, DeployError("no memory", where="box", remedy="less"))
    assert failing.action is not None
    with pytest.raises(DeployError, match="no memory"):
        failing.action(Recorder())
    assert HERE in router.boxes
    cut, recorder = borrowed(host, machine, KeyboardInterrupt()), Recorder()
    assert cut.action is not None
    with pytest.raises(KeyboardInterrupt):
        cut.action(recorder)
    assert recorder.lines[-1] == "requests come again by: ddtree-deploy up box"


def test_a_bench_whose_service_does_not_come_back_is_an_error_though_its_results_are_kept(
    host: Host, machine: Machine, router: StandInRouter
) -> None:
    step = borrowed(host, machine)
    machine.engine.sound = lambda options: False
    assert step.action is not None
    with pytest.raises(RollbackError, match=r"was stopped for this does not answer again: .*the service") as caught:
        step.action(Recorder())
    assert machine.log == ["stop", "start"], "after the bench"
    assert router.boxes == {OTHER: True}
    assert caught.value.remedy.endswith("what was done is kept, and no router sends here until: ddtree-deploy up box")


def test_a_bench_that_fails_as_well_says_both(host: Host, machine: Machine) -> None:
    step = borrowed(host, machine, DeployError("no memory", where="box", remedy="less"))
    machine.engine.sound = lambda options: False
    assert step.action is not None
    with pytest.raises(RollbackError, match=r"^no memory; and the service that was stopped for this does not answer"):
        step.action(Recorder())


@pytest.mark.parametrize("fault", [None, DeployError("no memory", where="box", remedy="less")])
def test_a_router_that_does_not_take_the_box_back_is_an_error_and_the_bench_s_own_comes_first(
    host: Host, machine: Machine, router: StandInRouter, monkeypatch: pytest.MonkeyPatch, fault: DeployError | None
) -> None:
    start = Service.start

    def refused_then(self: Service) -> None:
        router.refusal = "not now"
        start(self)

    monkeypatch.setattr(Service, "start", refused_then)
    step, recorder = borrowed(host, machine, fault), Recorder()
    assert step.action is not None
    with pytest.raises(DeployError, match=r"^no memory\n" if fault else "answers 500: not now"):
        step.action(recorder)
    said = "what was done is kept; no requests come yet, when it serves they come by: ddtree-deploy up box"
    assert said in recorder.lines


def test_without_a_router_a_bench_is_as_it_was(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parting, "behind", lambda box, *, strict: Routed(HERE, ()))
    step = Step("bench", "tree", "not measured", lambda progress: None)
    assert lent(step, inventory(), Service.of(inventory(), host)) is step


@pytest.mark.parametrize("take_gpu", [True, False])
def test_only_a_bench_that_stops_the_service_asks_for_that(take_gpu: bool) -> None:
    on_gpus = bench_inventory(install={"build": "cuda"})
    made = planned(
        on_gpus, BenchHost(Box(gpus=HELD.replace("mtp-vllm.service", "ddtree-vllm.service"))), take_gpu=take_gpu
    )
    assert ("edge must send nothing here" in made.steps[-1].reason) is take_gpu
