"""Room: bytes and inodes of what will be written, added up per file system, and how they are mounted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fit import DRAFTER_BYTES, PRODUCTION, STAGING, disks, finding, fit, subjects

from deployer.facts.disk import Disk
from deployer.facts.finding import Level
from deployer.facts.judge_room import COMPILED, DOWNLOADS, GIB, RELEASE, wants

LARGE = Disk("/", 1 << 40, 1 << 39, 10_000_000)


def deployed() -> object:
    return replace(fit().service, current="r1")


def test_a_first_deployment_wants_release_models_caches_and_pips_downloads() -> None:
    wanted = {want.what: want.size for want in wants(disks(LARGE), PRODUCTION)}
    assert wanted == {
        "a release": RELEASE["cuda"],
        "models": DRAFTER_BYTES,
        "compiled kernels": COMPILED["cuda"],
        "pip's downloads": DOWNLOADS["cuda"],
        "pip's cache": DOWNLOADS["cuda"],
    }


def test_a_wheelhouse_lies_under_the_root_and_pip_downloads_nothing() -> None:
    wanted = {want.what: want.disk.mount for want in wants(disks(LARGE, temporary=Disk("/tmp", 1, 1, 1)), STAGING)}
    assert wanted["wheels"] == "/"
    assert "pip's downloads" not in wanted


def test_what_was_pushed_is_not_counted_again() -> None:
    assert "models" not in {want.what for want in wants(disks(LARGE, pushed=DRAFTER_BYTES), PRODUCTION)}
    half = next(want for want in wants(disks(LARGE, pushed=DRAFTER_BYTES // 2), PRODUCTION) if want.what == "models")
    assert half.size == DRAFTER_BYTES // 2


def test_the_sum_is_held_against_the_free_space_and_the_inventorys_own_number() -> None:
    least = int(PRODUCTION.checks.min_free_gib * GIB)
    assert finding(fit(room=disks(replace(LARGE, free=least))), "disk").level is Level.OK
    short = finding(fit(room=disks(replace(LARGE, free=least - 1))), "disk")
    assert short.level is Level.FAIL
    assert short.remedy.startswith("40 GiB are wanted")
    target = 54 * GIB
    sums = finding(fit(room=disks(replace(LARGE, free=least), models=target)), "disk")
    assert sums.level is Level.FAIL
    assert "models 54.0" in sums.seen
    assert sums.remedy.startswith("78 GiB are wanted"), "release 12, models 54, kernels 2, downloads and cache 5 each"


def test_each_file_system_has_a_finding_of_its_own() -> None:
    small = Disk("/tmp", 1 << 30, 1 << 29, 100_000)
    room = disks(LARGE, temporary=small)
    found = finding(fit(room=room), "disk /tmp")
    assert found.level is Level.FAIL
    assert "pip's downloads 5.0" in found.seen
    assert finding(fit(room=room), "disk").level is Level.OK
    assert finding(fit(room=room), "inodes /tmp").level is Level.OK


def test_half_the_room_is_enough_beside_a_release_and_a_tight_one_is_said_aloud() -> None:
    tight = disks(Disk("/", 1 << 40, 25 << 30, None))
    assert finding(fit(room=tight), "disk").level is Level.FAIL
    beside = finding(fit(room=tight, service=deployed()), "disk")
    assert beside.level is Level.WARN
    assert "[install] keep (3)" in beside.remedy
    assert finding(fit(room=disks(replace(LARGE, free=19 << 30)), service=deployed()), "disk").level is Level.FAIL


def test_inodes_are_counted_where_there_is_a_count() -> None:
    few = finding(fit(room=disks(replace(LARGE, inodes_free=70_000))), "inodes")
    assert few.level is Level.FAIL
    assert "107100 are wanted" in few.remedy
    assert "inodes" not in subjects(fit(room=disks(replace(LARGE, inodes_free=None))))
    assert (
        finding(fit(room=disks(replace(LARGE, inodes_free=70_000)), service=deployed()), "inodes").level is Level.WARN
    )


@pytest.mark.parametrize(
    ("place", "option", "seen"),
    [("root", "ro", "read-only"), ("cache", "noexec", "noexec"), ("temporary", "ro", "read-only")],
)
def test_a_file_system_that_cannot_be_used_is_named_with_the_command_that_mends_it(
    place: str, option: str, seen: str
) -> None:
    bad = replace(LARGE, mount="/bad", options=frozenset({option}))
    found = finding(fit(room=replace(disks(LARGE), **{place: bad})), "mount /bad")
    assert (found.level, found.seen) == (Level.FAIL, seen)
    assert "/bad" in found.remedy
    fine = replace(LARGE, mount="/bad", options=frozenset({"rw", "errors=remount-ro"}))
    assert "mount /bad" not in subjects(fit(room=replace(disks(LARGE), **{place: fine})))


def test_a_temporary_folder_without_exec_is_fine() -> None:
    assert "mount /tmp" not in subjects(fit(room=disks(LARGE, temporary=Disk("/tmp", 1, 1, 1, frozenset({"noexec"})))))


def test_dev_shm_matters_to_several_gpus() -> None:
    small = Disk("/dev/shm", 64 << 20, 64 << 20, None)
    found = finding(fit(room=disks(LARGE, shm=small)), "/dev/shm")
    assert (found.level, found.seen) == (Level.FAIL, "0.1 of 0.1 GiB free")
    assert "/dev/shm" not in subjects(fit(room=disks(LARGE, shm=small)), STAGING)
