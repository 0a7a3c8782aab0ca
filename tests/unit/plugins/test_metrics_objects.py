"""The objects of metrics: a Prometheus of Myriad's own does not outgrow its volume."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

ROLE = Path(__file__).parents[3] / "roles/metrics"
BYTES = {"GB": 2**30, "Gi": 2**30}
"""Prometheus' units are powers of two, whatever their names (https://prometheus.io/docs/prometheus/latest/storage/)."""


def in_bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+)([A-Za-z]+)", text)
    assert found is not None, text
    return int(found[1]) * BYTES[found[2]]


def test_what_is_kept_stays_below_the_limit_at_which_the_kubelet_deletes_all_of_it(
    ansible: Callable[..., Any], tmp_path: Path
) -> None:
    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    shutil.copytree(ROLE / "templates", tmp_path / "templates")
    given = {
        **{name: value for name, value in defaults.items() if "{{" not in str(value)},
        "metrics_prometheus_image": "prometheus@sha256:" + "0" * 64,
        "metrics_dcgm_exporter_image": "",
        "metrics_namespaces": ["myriad-system"],
    }
    play = {
        "hosts": "localhost", "connection": "local", "gather_facts": False, "vars": given,
        "tasks": [{"ansible.builtin.template": {"src": "objects.yaml.j2", "dest": str(tmp_path / "out.yml")}}],
    }  # fmt: skip
    done = ansible(yaml.safe_dump([play]))
    assert done.returncode == 0, done.stdout + done.stderr
    found = [item for item in yaml.safe_load_all((tmp_path / "out.yml").read_text()) if item]
    (deployment,) = (item for item in found if item["kind"] == "Deployment")
    spec = deployment["spec"]["template"]["spec"]
    options = dict(argument.removeprefix("--").split("=", 1) for argument in spec["containers"][0]["args"])
    (volume,) = (volume for volume in spec["volumes"] if volume["name"] == "data")
    limit = in_bytes(volume["emptyDir"]["sizeLimit"])
    assert in_bytes(options["storage.tsdb.retention.size"]) <= 0.8 * limit
