"""docs/monitoring: rules, their tests and the dashboard, by the tools that will read them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from material import FIXTURES, REPOSITORY

FOLDER = REPOSITORY / "docs/monitoring"
PROMTOOL = shutil.which("promtool") or shutil.which("promtool", path=REPOSITORY / "build/tools/usr/bin")
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is missing: tests/setup/report_tools.sh")


def promtool(*words: str | Path, folder: Path = FOLDER) -> str:
    ran = subprocess.run(
        [str(PROMTOOL), *map(str, words)], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def queries() -> Iterator[str]:
    """Every PromQL expression of the dashboard, with values for Grafana's own variables."""
    for panel in DASHBOARD["panels"]:
        yield from (_filled(target["expr"]) for target in panel.get("targets", ()))
    yield from (_filled(query["expr"]) for query in DASHBOARD["annotations"]["list"])


def _filled(expression: str) -> str:
    return expression.replace("$__rate_interval", "5m").replace("$job", ".*").replace("$instance", ".*")


@needs_promtool
def test_the_rules_and_the_example_of_a_scrape_are_valid() -> None:
    assert "12 rules found" in promtool("check", "rules", "rules.yml")
    promtool("check", "config", "prometheus.yml")


@needs_promtool
def test_the_rules_say_what_they_should_of_series_that_are_known() -> None:
    promtool("test", "rules", "rules.test.yml")


@needs_promtool
def test_a_rule_that_says_something_else_would_be_noticed(tmp_path: Path) -> None:
    text = (FOLDER / "rules.yml").read_text()
    shutil.copy(FOLDER / "rules.test.yml", tmp_path)
    for right, wrong in (
        ("1 + sum", "2 + sum"),
        ("rate5m < 2", "rate5m < 1"),
        ("== 0", "== 1"),
        ("> on (job", ">= on (job"),
    ):
        assert right in text
        (tmp_path / "rules.yml").write_text(text.replace(right, wrong))
        with pytest.raises(AssertionError, match="FAILED"):
            promtool("test", "rules", "rules.test.yml", folder=tmp_path)


@needs_promtool
def test_every_query_of_the_dashboard_is_one(tmp_path: Path) -> None:
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries())]
    (tmp_path / "queries.yml").write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", "queries.yml", folder=tmp_path)
    assert len(rules) > 20


def test_the_dashboard_is_what_grafanas_own_model_reads_and_nothing_of_it_is_lost() -> None:
    """A key that Grafana does not know, or knows by another name, is dropped by its model."""
    register_default_plugins()
    back = json.loads(JSONEncoder().encode(Dashboard.from_json(DASHBOARD)))
    assert list(lost(DASHBOARD, back)) == []


def lost(wanted: Any, found: Any, place: str = "") -> Iterator[str]:
    """The places where `found` has not what `wanted` has."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key, value in wanted.items():
            yield from lost(value, found[key], f"{place}/{key}") if key in found else [f"{place}/{key}"]
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        for number, pair in enumerate(zip(wanted, found, strict=True)):
            yield from lost(*pair, f"{place}/{number}")
    elif wanted != found:
        yield place


def test_a_key_that_grafana_does_not_know_would_be_noticed() -> None:
    register_default_plugins()
    wrong = json.loads(json.dumps(DASHBOARD))
    wrong["panels"][1]["options"]["colourMode"] = "value"
    wrong["panels"][1]["descriptoin"] = "x"
    back = json.loads(JSONEncoder().encode(Dashboard.from_json(wrong)))
    assert set(lost(wrong, back)) == {"/panels/1/options/colourMode", "/panels/1/descriptoin"}


def test_panels_have_numbers_of_their_own_and_do_not_lie_on_each_other() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + dx, at["y"] + dy) for dx in range(at["w"]) for dy in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_every_metric_is_one_that_a_rule_makes_or_that_the_engine_was_seen_to_have() -> None:
    rules = (FOLDER / "rules.yml").read_text()
    made = set(re.findall(r"record: (\S+)", rules))
    seen = set(re.findall(r"^([a-z]\w*:\w+)", (FIXTURES / "metrics_tree.txt").read_text(), re.M))
    used = set(re.findall(r"\b(?:vllm|ddtree):\w+(?::\w+)?", rules + "\n".join(queries())))
    assert used - made - seen == set()
    assert {name for name in seen if "ddtree" in name and not name.endswith("_created")} <= used | {
        "vllm:ddtree_accepted_per_step_count",
        "vllm:ddtree_accepted_per_step_sum",
    }, "a counter of the tree is on no panel and in no rule"


def test_every_alert_has_its_line_in_the_page_and_says_how_bad_it_is() -> None:
    rules, page = (FOLDER / "rules.yml").read_text(), (FOLDER / "README.md").read_text()
    alerts = re.findall(r"alert: (\w+)", rules)
    assert len(alerts) == rules.count("severity: ") == rules.count("summary: ") == 6
    assert all(f"`{alert}`" in page for alert in alerts)
