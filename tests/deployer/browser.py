"""A real browser without a window: what a page logs, and where its text lies."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
# Each text of a plot as a box; texts that overlap; and elements that are wider than what holds them.
_PROBE = """<script>
addEventListener("load", () => {
  const found = {texts: 0, overlaps: [], outside: [], wide: [], empty: []};
  found.size = [innerWidth, document.documentElement.scrollWidth];
  for (const plot of document.querySelectorAll("figure svg")) {
    const frame = plot.getBoundingClientRect();
    const boxes = [...plot.querySelectorAll("text")].map(t => [t.textContent, t.getBoundingClientRect()]);
    found.texts += boxes.length;
    for (const [word, box] of boxes)
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
        found.outside.push(plot.getAttribute("aria-label") + ": " + word);
    boxes.forEach(([word, a], i) => boxes.slice(i + 1).forEach(([other, b]) => {
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 1 && down > 3) found.overlaps.push(plot.getAttribute("aria-label") + ": " + word + " / " + other);
    }));
    if (!plot.querySelector(".line")) found.empty.push(plot.getAttribute("aria-label"));
  }
  for (const part of document.querySelectorAll("h1, h2, p, dd, li, figcaption, summary"))
    if (part.scrollWidth > part.clientWidth + 1 && getComputedStyle(part).display !== "inline") found.wide.push(part.textContent);
  found.colours = [getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor];
  const told = document.createElement("pre");
  told.id = "probe";
  told.textContent = JSON.stringify(found);
  document.body.append(told);
});
</script>"""


def installed() -> str | None:
    """The browser's program, if this machine has one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass(frozen=True)
class Seen:
    """`found` is what the probe measured, `logged` the lines of the browser's console."""

    found: dict[str, Any]
    logged: list[str]


def look(page: str, folder: Path, *, width: int, dark: bool = False) -> Seen:
    """Opens a page from a file, offline, in a window of `width` pixels."""
    program = installed()
    assert program is not None
    path = folder / f"page-{width}.html"
    path.write_text(page.replace("</body>", f"{_PROBE}</body>"), encoding="utf-8")
    quiet = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync"]
    quiet += ["--disable-component-update", "--no-sandbox", "--hide-scrollbars", "--enable-logging=stderr"]
    with tempfile.TemporaryDirectory() as profile:
        ran = subprocess.run(
            [program, "--headless", *quiet, *(["--force-dark-mode"] if dark else []), f"--user-data-dir={profile}",
             f"--window-size={width},900", "--dump-dom", path.as_uri()],
            capture_output=True, text=True, timeout=180, check=True,
        )  # fmt: skip
    told = re.search(r'<pre id="probe">(.*?)</pre>', ran.stdout, re.S)
    assert told is not None, ran.stderr[-2000:]
    logged = [line for line in ran.stderr.splitlines() if "CONSOLE" in line]
    return Seen(json.loads(html.unescape(told[1])), logged)
