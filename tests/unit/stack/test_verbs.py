"""`myriad lock` and `myriad bundle` as they are typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from ansible.errors import AnsibleLookupError
from ansible_collections.myriad.gpu.plugins.lookup.bundle import LookupModule
from typer.testing import CliRunner

from myriad.cli import bundle as bundle_verbs
from myriad.cli import lock as lock_verbs
from myriad.errors import InputError, MyriadError
from myriad.stack.build import write_bundle
from myriad.stack.bundle import Bundle, FileEntry, Manifest, Origin
from myriad.stack.lock import load_lock
from myriad.stack.store import Store


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    lock_verbs.register(made)
    bundle_verbs.register(made)
    return made


def _run(app: typer.Typer, *arguments: str) -> tuple[int, Any]:
    """The exit code and the JSON document that a verb printed."""
    result = CliRunner().invoke(app, [*arguments, "--json"])
    return result.exit_code, json.loads(result.stdout)


def _changed_lock(folder: Path, **versions: str) -> Path:
    value = load_lock().model_dump(mode="json", by_alias=True)
    for name, version in versions.items():
        value["components"][name]["version"] = version
    path = folder / "lock.yml"
    path.write_text(yaml.safe_dump(value))
    return path


def _bundle(folder: Path) -> Bundle:
    store = Store(folder / "store")
    entry = FileEntry(
        name="tool",
        component="tool",
        version="1",
        kind="binary",
        sha256=store.put_bytes(b"program"),
        size=7,
        origin=Origin(source="local", folder="x"),
    )
    manifest = Manifest(myriad="0", arch="amd64", lock_sha256="0" * 64, versions={}, files=[entry], images=[])
    return write_bundle(manifest, folder / "bundle", store)


def test_lock_verify_of_the_lock_that_comes_with_myriad(app: typer.Typer) -> None:
    code, value = _run(app, "lock", "verify")
    assert (code, value["ok"], value["findings"]) == (0, True, [])
    assert "kubernetes kube-apiserver amd64" in value["open_pins"]
    assert "kubernetes kubelet amd64" not in value["open_pins"]


def test_lock_verify_of_versions_that_do_not_go_together(app: typer.Typer, tmp_path: Path) -> None:
    path = _changed_lock(tmp_path, kubernetes="1.28.4")
    code, value = _run(app, "lock", "verify", "--lock", str(path))
    assert code == 1
    assert {"kubernetes-for-kueue"} <= {finding["rule"] for finding in value["findings"]}
    with pytest.raises(InputError, match="do not go together"):
        CliRunner().invoke(app, ["lock", "verify", "--lock", str(path)], catch_exceptions=False)


def test_lock_show_one_component(app: typer.Typer) -> None:
    code, value = _run(app, "lock", "show", "runc")
    assert code == 0
    assert value["runc"]["sources"]["package"]["version"] == "1.1.5+ds1-1+deb12u1"
    assert "runc" in CliRunner().invoke(app, ["lock", "show"]).stdout


def test_lock_diff_tells_changes_and_what_the_rules_say(app: typer.Typer, tmp_path: Path) -> None:
    path = _changed_lock(tmp_path, containerd="2.1.1")
    code, value = _run(app, "lock", "diff", str(Path("stack.lock.yml").resolve()), str(path))
    assert code == 0
    assert value["changes"] == [
        {"component": "containerd", "kind": "version", "field": "", "old": "2.3.4", "new": "2.1.1"}
    ]
    assert value["findings"][0]["rule"] == "containerd-for-kubernetes"


def test_bundle_verify(app: typer.Typer, tmp_path: Path) -> None:
    bundle = _bundle(tmp_path)
    code, value = _run(app, "bundle", "verify", str(bundle.directory), "--any-lock")
    assert (code, value["ok"], value["problems"], value["bundle"]) == (0, True, [], bundle.digest)
    bundle.file_path("tool").unlink()
    code, value = _run(app, "bundle", "verify", str(bundle.directory), "--any-lock")
    assert code == 2
    assert [(problem["name"], problem["problem"]) for problem in value["problems"]] == [("tool", "missing")]
    with pytest.raises(MyriadError, match=r"missing    tool \(tool 1\)"):
        CliRunner().invoke(app, ["bundle", "verify", str(bundle.directory), "--any-lock"], catch_exceptions=False)


def test_bundle_build_refuses_an_unknown_source(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["bundle", "build", "--source", "magic"])
    assert result.exit_code == 2
    assert "is not auto, release or modules" in result.output


def test_the_lookup_gives_playbooks_what_a_bundle_holds(tmp_path: Path) -> None:
    bundle = _bundle(tmp_path)
    lookup = LookupModule()
    (value,) = lookup.run([str(bundle.directory)])
    assert value == bundle.as_ansible_vars()
    with pytest.raises(AnsibleLookupError, match="is no bundle"):
        lookup.run([str(tmp_path)])
