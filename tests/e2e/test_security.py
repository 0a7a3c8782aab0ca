"""The lab's real secrets are in no log: not of a whole run at -vvv, not in the journals and pods of any node."""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Iterator

import pytest
import yaml

from .conftest import LAB, Lab, PlaybookRun

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(1200)]

KEYS = ("ca.key", "sa.key", "front-proxy-ca.key", "etcd/ca.key", "apiserver.key")
PLANTED = "planted-9d4e1c77-secret"
LOGS = "journalctl --no-pager -o cat; cat /var/log/pods/*/*/*.log /var/log/kubernetes/audit/*.log 2>/dev/null"


@pytest.fixture
def secrets(lab: Lab) -> Iterator[dict[str, str]]:
    """A part of each secret that is long enough to be nothing else, by what it is."""
    found = {}
    encryption = json.loads(lab.ssh("cp1", "cat /etc/kubernetes/pki/encryption.json"))
    for key in encryption["resources"][0]["providers"][0]["secretbox"]["keys"]:
        found[f"key {key['name']}"] = key["secret"]
    for name in KEYS:
        lines = lab.ssh("cp1", f"cat /etc/kubernetes/pki/{name}").splitlines()
        # One from the middle: the first ones of two keys may be alike.
        found[name] = next(line for line in lines[len(lines) // 2 :] if re.fullmatch(r"[A-Za-z0-9+/]{64}", line))
    user = yaml.safe_load((LAB / "kubeconfig").read_text())["users"][0]["user"]
    found["the administrator's key"] = user["client-key-data"][400:480]
    lab.kubectl("-n", "default", "create", "secret", "generic", "planted", f"--from-literal=word={PLANTED}")
    found |= {"a Secret": PLANTED, "a Secret, as the API has it": base64.b64encode(PLANTED.encode()).decode()}
    yield found
    lab.kubectl("-n", "default", "delete", "secret", "planted")


def said_on(lab: Lab, host: str, words: list[str]) -> int:
    """Lines of all logs of a node that hold one of the words."""
    patterns = " ".join(f"-e {shlex.quote(word)}" for word in words)
    return int(lab.ssh(host, f"({LOGS}) | grep -cF {patterns} || true", timeout=300))


def test_no_secret_of_the_lab_is_in_any_log(lab: Lab, playbook: PlaybookRun, secrets: dict[str, str]) -> None:
    done = playbook("site", "-vvv", "--diff", "-e", "site_full=true", timeout=900)
    assert done.code == 0, done.output[-3000:]
    written = [path.read_text(errors="replace") for path in (LAB / "logs").rglob("*") if path.is_file()]
    here = [done.output, json.dumps(done.events), *written]
    assert any("kubernetes_control_plane" in text for text in here), "the look finds what is there"
    assert {name for name, word in secrets.items() for text in here if word in text} == set()
    for host in lab.hosts:
        assert said_on(lab, host, ["kubelet"]) > 0, "the look finds what is there"
        assert {name for name, word in secrets.items() if said_on(lab, host, [word])} == set(), host


def test_no_token_with_which_a_node_joined_is_left(lab: Lab) -> None:
    found = json.loads(lab.kubectl("-n", "kube-system", "get", "secrets", "-o", "json"))["items"]
    assert [item["metadata"]["name"] for item in found if item["type"] == "bootstrap.kubernetes.io/token"] == []
