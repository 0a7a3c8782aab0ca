"""The site's own registry serves images and files, and what it serves is what it says."""

import json
from typing import Any

import pytest
from testinfra.host import Host

testinfra_hosts = ["ansible://control_plane"]

URL = "http://127.0.0.1:5000/v2"
ACCEPT = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json"


def fetch(host: Host, path: str) -> Any:
    return json.loads(host.check_output(f"curl -fsS -H %s {URL}/{path}", f"Accept: {ACCEPT}"))


def test_it_runs_and_starts_at_boot(host: Host) -> None:
    service = host.service("myriad-registry")
    assert service.is_running
    assert service.is_enabled


def test_it_answers(host: Host) -> None:
    assert host.check_output(f"curl -s -o /dev/null -w '%{{http_code}}' {URL}/").endswith("200")


@pytest.mark.parametrize("image", ["kube-apiserver", "etcd", "coredns", "pause", "kube-proxy", "kueue"])
def test_it_holds_the_images_of_the_lock(host: Host, image: str) -> None:
    tags = fetch(host, f"{image}/tags/list")["tags"]
    assert tags
    manifest = fetch(host, f"{image}/manifests/{tags[0]}")
    assert manifest.get("layers") or manifest.get("manifests")


def test_a_file_is_served_by_its_digest_unchanged(host: Host) -> None:
    manifest = fetch(host, f"artifacts/manifests/{fetch(host, 'artifacts/tags/list')['tags'][0]}")
    smallest = min((layer for layer in manifest["layers"] if layer["size"]), key=lambda layer: layer["size"])
    algorithm, digest = smallest["digest"].split(":")
    assert algorithm == "sha256"
    assert host.check_output(f"curl -fsS {URL}/artifacts/blobs/{smallest['digest']} | sha256sum").split()[0] == digest


def test_an_unknown_file_is_not_found(host: Host) -> None:
    code = host.check_output(f"curl -s -o /dev/null -w '%{{http_code}}' {URL}/artifacts/blobs/sha256:{'0' * 64}")
    assert code.endswith("404")
