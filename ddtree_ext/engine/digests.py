"""Rewrites the digests in hooks.py from the installed vLLM: for the day the pin moves, after each hook was read again."""

from __future__ import annotations

import re
from pathlib import Path

from ddtree_ext.engine.compat import source_digest
from ddtree_ext.engine.hooks import HOOKS


def main() -> None:
    """Prints what changed and rewrites hooks.py."""
    path = Path(__file__).with_name("hooks.py")
    text = path.read_text()
    for name, old in HOOKS.items():
        new = source_digest(name)
        if new != old:
            print(f"{name}: {old or 'none'} -> {new}")
            text = re.sub(rf'("{re.escape(name)}": )"[^"]*"', rf'\1"{new}"', text)
    path.write_text(text)


if __name__ == "__main__":
    main()
