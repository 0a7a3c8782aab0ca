"""Parts of the cluster that only some descriptions ask for: which, what a bundle lacks for them, what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.myriad.gpu.plugins.filter import monitoring, stack, volcano

from myriad.stack.bundle import MANIFEST, Manifest, manifest_bytes

ROLE = Path(__file__).parents[3] / "roles" / "volcano" / "defaults" / "main.yml"
PLUGINS = yaml.safe_load(ROLE.read_text())["volcano_tiers"]


def configuration(actions: str, *more: dict[str, object]) -> str:
    return yaml.safe_dump({"actions": actions, "tiers": [*PLUGINS, {"plugins": list(more)}] if more else PLUGINS})


def test_most_descriptions_ask_for_none() -> None:
    assert stack.cluster_parts({"h100": {"model": "H100-SXM5-80GB"}}) == []
    assert stack.cluster_parts(None) == []


def test_each_part_has_its_line() -> None:
    pools = {"a": {"engine": "kueue"}, "b": {"engine": "volcano"}}
    assert stack.cluster_parts(pools, True, {"prometheus_url": "http://p"}) == [
        "volcano",
        "training_operator",
        "metrics",
    ]
    assert stack.cluster_parts({"a": None}, False, {}) == []


def test_what_a_bundle_lacks_for_them_is_said_with_the_reason(tmp_path: Path) -> None:
    manifest = Manifest(
        myriad="0", arch="amd64", lock_sha256="0" * 64, versions={}, files=[], images=[],
        left_out={"volcano": "no release host answers"},
    )  # fmt: skip
    (tmp_path / MANIFEST).write_bytes(manifest_bytes(manifest))
    assert stack.bundle_problems(str(tmp_path)) == []
    assert stack.bundle_problems(str(tmp_path), ["metrics"]) == []
    said = stack.bundle_problems(str(tmp_path), ["volcano", "training_operator"])
    assert said[0] == "it has no volcano-manifest, which the description asks for (no release host answers)"
    assert "myriad bundle build --with volcano" in said[1] and "engine kueue" in said[1]
    assert "nobody asked for it" in said[2] and "--with training-operator" in said[3]


def test_the_roles_own_configuration_of_volcano_is_right() -> None:
    assert volcano.volcano_problems(configuration("enqueue, allocate, backfill")) == []


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (configuration("enqueue, alocate, backfill"), "volcano-unknown-action"),
        (configuration("enqueue, allocate, preempt"), "volcano-second-preemptor"),
        (configuration("enqueue, allocate", {"name": "numaaware"}), "volcano-unknown-plugin"),
        (configuration("enqueue, allocate", {"name": "overcommit"}), "volcano-overcommit"),
        (configuration("enqueue, allocate", {"name": "capacity"}, {"name": "proportion"}), "volcano-two-shares"),
    ],
)
def test_one_that_volcano_throws_away_or_that_fights_kueue_is_refused(text: str, rule: str) -> None:
    assert any(f"[{rule}]" in sentence for sentence in volcano.volcano_problems(text))


def test_a_sites_own_alerts_come_beside_those_of_myriad() -> None:
    own = monitoring.alert_rules([])["groups"]
    mine = {"name": "site", "rules": [{"alert": "A", "expr": "up == 0"}]}
    assert monitoring.alert_rules([mine])["groups"] == [*own, mine]
    with pytest.raises(AnsibleFilterError, match="give yours another name"):
        monitoring.alert_rules([{"name": own[0]["name"], "rules": []}])
