"""Finds what this project installs elsewhere: the extension's sources and the unit templates, beside the package."""

from __future__ import annotations

from pathlib import Path

from deployer.errors import InstallError

CHECKOUT = Path(__file__).resolve().parents[2]


def project_path(*parts: str) -> Path:
    """A file or folder of the checkout that this package was installed from (`pip install -e`)."""
    path = CHECKOUT.joinpath(*parts)
    if not path.exists():
        raise InstallError(
            f"{'/'.join(parts)} is missing: ddtree-deploy runs from a checkout",
            where=str(CHECKOUT),
            remedy="clone the project and install it there with pip install -e .",
        )
    return path
