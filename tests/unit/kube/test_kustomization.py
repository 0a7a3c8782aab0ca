"""A kustomization rendered by a real kubectl: what is changed, what goes, and what another manifest does to it."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from pathlib import Path

import pytest
import yaml

from myriad.errors import InputError, MyriadError
from myriad.kube.kustomization import KustomizationError, render
from myriad.stack.bundle import Bundle

MANIFEST = """\
apiVersion: batch/v1
kind: Job
metadata: {name: init, namespace: system}
spec: {template: {spec: {restartPolicy: Never, containers: [{name: main, image: docker.io/project/init:v1}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: operator, namespace: system}
spec:
  replicas: 1
  selector: {matchLabels: {app: operator}}
  template:
    metadata: {labels: {app: operator}}
    spec: {containers: [{name: main, image: "docker.io/project/operator:v1", args: [--leader-elect=false]}]}
"""


def kubectl() -> Path | None:
    """kubectl of a bundle of the cache, or of this machine."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "myriad" / "bundles"
    for folder in home.glob("*"):
        try:
            path = Bundle.load(folder).file_path("kubectl")
        except MyriadError:
            continue
        if path.exists():
            return path
    found = shutil.which("kubectl")
    return Path(found) if found else None


KUBECTL = kubectl()
needs_kubectl = pytest.mark.skipif(KUBECTL is None, reason="kubectl is in no bundle of the cache and not on PATH")


def kustomization(*patches: object, resources: str = "operator.yaml") -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [resources],
            "images": [
                {"name": "docker.io/project/operator", "newName": "site/operator", "digest": "sha256:" + "a" * 64}
            ],
            "patches": [{"patch": yaml.safe_dump(patch)} for patch in patches],
        }
    )


LEADER = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "operator", "namespace": "system"},
    "spec": {
        "replicas": 2,
        "template": {"spec": {"containers": [{"name": "main", "args": ["--leader-elect=true"]}]}},
    },
}
NO_JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "init", "namespace": "system"},
    "$patch": "delete",
}


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "by-its-digest"
    path.write_text(MANIFEST)
    return path


@needs_kubectl
def test_what_a_site_needs_otherwise(manifest: Path) -> None:
    assert KUBECTL
    text = render(KUBECTL, kustomization(LEADER, NO_JOB), files={"operator.yaml": manifest}, name="operator")
    (operator,) = yaml.safe_load_all(text)
    assert operator["spec"]["replicas"] == 2
    (container,) = operator["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["--leader-elect=true"]
    assert container["image"] == f"site/operator@sha256:{'a' * 64}"


@needs_kubectl
def test_a_patch_that_finds_nothing_is_an_error(manifest: Path) -> None:
    assert KUBECTL
    manifest.write_text(MANIFEST.replace("name: operator, namespace", "name: renamed, namespace"))
    with pytest.raises(KustomizationError, match="another version"):
        render(KUBECTL, kustomization(LEADER), files={"operator.yaml": manifest}, name="operator")


@needs_kubectl
def test_a_folder_comes_out_of_an_archive(manifest: Path, tmp_path: Path) -> None:
    assert KUBECTL
    archive = tmp_path / "folder.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, text in (("base/kustomization.yaml", "resources: [all.yaml]\n"), ("base/all.yaml", MANIFEST)):
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    text = render(KUBECTL, kustomization(NO_JOB, resources="base"), files={"base/": archive}, name="operator")
    assert [item["kind"] for item in yaml.safe_load_all(text)] == ["Deployment"]
    with pytest.raises(InputError, match="holds no folder manifests"):
        render(KUBECTL, kustomization(resources="manifests"), files={"manifests/": archive}, name="operator")


def test_what_is_not_there_is_named(tmp_path: Path, manifest: Path) -> None:
    with pytest.raises(InputError, match="kubectl is not at"):
        render(tmp_path / "kubectl", "", files={"operator.yaml": manifest}, name="operator")
    with pytest.raises(InputError, match=r"operator\.yaml of it is not at"):
        render(manifest, "", files={"operator.yaml": tmp_path / "gone"}, name="operator")
