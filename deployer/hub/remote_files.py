"""Runs on the host, beside remote_fetch.py: which of a commit's files belong to the model."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or find_spec("deployer"):
    from deployer.hub.remote_failure import Failure
else:  # on the host, where it lies beside this file
    from remote_failure import Failure

SMALL = 64 << 20  # bytes; what the hub keeps in git itself is far smaller
WEIGHTS = ".safetensors"
# The same weights once more, in forms that vLLM does not take when there are safetensors.
OTHER_FORMS = (".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".ot", ".tflite", ".mlmodel")

File = dict[str, Any]  # name, size, sha256 (None as long as only git's own hash is known), git


def described(entry: Any) -> File:
    large = entry.lfs is not None
    sha256 = entry.lfs.sha256 if large else None
    return {"name": entry.path, "size": entry.size, "sha256": sha256, "git": None if large else entry.blob_id}


def wanted(files: list[File], spec: dict[str, Any]) -> list[File]:
    """What belongs to the model: nothing hidden, no second form of the weights, and only what was asked for."""
    seen = [file for file in files if not any(part.startswith(".") for part in file["name"].split("/"))]
    if spec["only"]:
        seen = [file for file in seen if file["name"] in spec["only"]]
        absent = [name for name in spec["only"] if name not in {file["name"] for file in seen}]
        if absent:
            raise Failure("entry", f"there is no {absent[0]}")
    elif any(file["name"].endswith(WEIGHTS) for file in seen):
        seen = [file for file in seen if not file["name"].endswith(OTHER_FORMS)]
    for file in seen:
        if "" in file["name"].split("/") or (file["git"] and file["size"] > SMALL):
            raise Failure("strange", f"{file['name']!r}, {file['size']} bytes")
    return seen
