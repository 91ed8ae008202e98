"""docs/verbs.md is made from the command line's own help."""

from __future__ import annotations

import subprocess
import sys

from material import REPOSITORY

MAKE = "-m typer deployer.cli.app utils docs --name ddtree-deploy --title Verbs"


def test_the_page_of_verbs_is_what_the_help_says() -> None:
    made = subprocess.run(
        [sys.executable, *MAKE.split()], cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=120
    )
    page = (REPOSITORY / "docs/verbs.md").read_text()
    assert page.strip() == made.stdout.strip(), f"the help has changed: build/venv/bin/python {MAKE} >docs/verbs.md"
