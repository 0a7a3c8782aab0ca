"""Users and their paths, with the real registry behind the real front, over TLS of the site's own authority."""

from __future__ import annotations

import hashlib
import json
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from myriad.registry_site import ca, users
from myriad.registry_site.contents import Contents
from myriad.stack.bundle import Bundle
from myriad.stack.push import PushError, push_bundle
from tests.unit.registry_site.programs import free_port, front_program, registry_config, registry_program, running
from tests.unit.stack.offline_bundle import PROGRAM, make_bundle

OCI = "application/vnd.oci.image.manifest.v1+json"


@dataclass
class Site:
    url: str
    ca: str
    access: Path
    passwords: dict[str, str]
    front: subprocess.Popen[bytes]
    bundle: Bundle

    def client(self, user: str = "", password: str = "") -> httpx.Client:
        auth = (user, password or self.passwords[user]) if user else None
        context = ssl.create_default_context(cadata=self.ca)
        return httpx.Client(base_url=self.url, verify=context, auth=auth, trust_env=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("registry")
    program, front = registry_program(), front_program()
    behind, port = free_port(), free_port()
    secrets = folder / "secrets"
    trust = ca.ensure(secrets, "here", ["127.0.0.1", "localhost"])
    passwords = {user: users.password(secrets, user) for user in ("publisher", "vision", "speech")}
    access = folder / "access.json"
    access.write_text(users.access(passwords))
    config = registry_config(folder, behind)
    command = [str(front), "-listen", f"127.0.0.1:{port}", "-upstream", f"http://127.0.0.1:{behind}"]
    command += ["-access", str(access), "-certificate", str(trust.certificate), "-key", str(trust.key)]
    bundle = make_bundle(folder / "content")
    with (
        running([str(program), "serve", str(config)], behind, folder / "registry.log"),
        running(command, port, folder / "front.log") as process,
    ):
        yield Site(f"https://127.0.0.1:{port}", trust.ca, access, passwords, process, bundle)


def _push(client: httpx.Client, repo: str, tag: str, data: bytes) -> int:
    """Push a small image; the status of the first step that is refused, or of the last."""
    blobs = [data, b"{}"]
    for blob in blobs:
        begun = client.post(f"/v2/{repo}/blobs/uploads/")
        if begun.status_code != 202:
            return begun.status_code
        digest = f"sha256:{hashlib.sha256(blob).hexdigest()}"
        put = client.put(httpx.URL(begun.headers["Location"]).copy_add_param("digest", digest), content=blob)
        if put.status_code != 201:
            return put.status_code
    parts = [{"digest": f"sha256:{hashlib.sha256(blob).hexdigest()}", "size": len(blob)} for blob in blobs]
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI,
        "config": parts[1] | {"mediaType": "application/vnd.oci.image.config.v1+json"},
        "layers": [parts[0] | {"mediaType": "application/vnd.oci.image.layer.v1.tar"}],
    }
    return client.put(
        f"/v2/{repo}/manifests/{tag}", content=json.dumps(manifest).encode(), headers={"Content-Type": OCI}
    ).status_code


def test_the_publisher_fills_it_and_everybody_reads_the_stack(site: Site) -> None:
    with pytest.raises(PushError):
        push_bundle(site.bundle.directory, site.url, ca=site.ca)
    with pytest.raises(PushError):
        push_bundle(site.bundle.directory, site.url, ca=site.ca, credentials=("vision", site.passwords["vision"]))
    who = ("publisher", site.passwords["publisher"])
    assert push_bundle(site.bundle.directory, site.url, ca=site.ca, credentials=who).sent
    assert push_bundle(site.bundle.directory, site.url, ca=site.ca, credentials=who).sent == []
    with site.client() as nobody:
        digest = site.bundle.file("tool").sha256
        assert nobody.get(f"/v2/artifacts/blobs/sha256:{digest}").content == PROGRAM
        part = nobody.get(f"/v2/artifacts/blobs/sha256:{digest}", headers={"Range": "bytes=100-"})
        assert (part.status_code, part.content) == (206, PROGRAM[100:])
        assert nobody.get("/v2/team/app/manifests/v1", headers={"Accept": OCI}).status_code == 200


def test_a_team_reads_and_writes_its_own_path_alone(site: Site) -> None:
    with site.client("vision") as vision, site.client("speech") as speech, site.client() as nobody:
        assert _push(vision, "teams/vision/train", "v1", b"layer one") == 201
        assert vision.get("/v2/teams/vision/train/tags/list").json()["tags"] == ["v1"]
        for repo in ("teams/speech/train", "pause", "artifacts", "teams/vision2/train", "teams", "teams/visionx"):
            assert _push(vision, repo, "v1", b"x") == 403, repo
        for path in ("tags/list", "manifests/v1", f"blobs/sha256:{hashlib.sha256(b'layer one').hexdigest()}"):
            assert speech.get(f"/v2/teams/vision/train/{path}").status_code == 403
            asked = nobody.get(f"/v2/teams/vision/train/{path}")
            assert asked.status_code == 401 and asked.headers["WWW-Authenticate"].startswith("Basic ")
        assert speech.delete("/v2/teams/vision/train/manifests/v1").status_code == 403


def test_a_layer_of_another_team_cannot_be_mounted(site: Site) -> None:
    with site.client("vision") as vision, site.client("speech") as speech:
        assert _push(vision, "teams/vision/secret", "v1", b"weights of vision") == 201
        digest = f"sha256:{hashlib.sha256(b'weights of vision').hexdigest()}"
        query = {"mount": digest, "from": "teams/vision/secret"}
        assert speech.post("/v2/teams/speech/stolen/blobs/uploads/", params=query).status_code == 403
        assert speech.get(f"/v2/teams/speech/stolen/blobs/{digest}").status_code == 404
        own = vision.post("/v2/teams/vision/copy/blobs/uploads/", params=query)
        assert own.status_code == 201


@pytest.mark.parametrize(
    "path",
    [
        "/v2/teams/speech/../vision/train/manifests/v1",
        "/v2//teams/vision/train/manifests/v1",
        "/v2/teams%2fvision/train/manifests/v1",
        "/v2/teams/speech/%2e%2e/vision/train/manifests/v1",
        "/v2/./teams/vision/train/manifests/v1",
        "/debug/vars",
        "/",
    ],
)
def test_no_spelling_of_a_path_gets_around_it(site: Site, path: str) -> None:
    # By hand: a client would tidy the path up.
    with site.client("speech") as speech:
        request = speech.build_request("GET", "/")
        request.url = httpx.URL(site.url).copy_with(raw_path=path.encode())
        assert speech.send(request).status_code in (403, 404)


def test_wrong_credentials_and_docker_which_asks_first(site: Site) -> None:
    with site.client("vision", "wrong") as wrong:
        assert wrong.get("/v2/").status_code == 401
        assert wrong.get("/v2/pause/tags/list").status_code == 401
    with site.client("nobody-we-know", "x") as stranger:
        assert stranger.get("/v2/").status_code == 401
    with site.client() as nobody:
        assert nobody.get("/v2/").headers["WWW-Authenticate"] == 'Basic realm="registry"'
        assert nobody.get("/v2/_catalog").status_code == 401
        assert nobody.get("/v2/", headers={"Authorization": "Bearer abc"}).status_code == 401
    with site.client("vision") as vision:
        assert vision.get("/v2/").status_code == 200
        assert vision.get("/v2/_catalog").status_code == 403
    with site.client("publisher") as publisher:
        assert "teams/vision/train" in publisher.get("/v2/_catalog").json()["repositories"]


def test_an_authority_that_is_not_the_sites_is_refused(site: Site, tmp_path: Path) -> None:
    other = ca.ensure(tmp_path, "x", ["127.0.0.1"]).ca
    with pytest.raises(PushError, match="CERTIFICATE_VERIFY_FAILED"):
        push_bundle(site.bundle.directory, site.url, ca=other, credentials=("publisher", "x"))


def test_retention_reads_it_with_the_publishers_credentials(site: Site) -> None:
    with Contents(site.url, ca=site.ca, credentials=("publisher", site.passwords["publisher"])) as contents:
        assert {"teams/vision/train", "team/app", "artifacts"} <= {entry.repo for entry in contents.entries()}


def test_new_users_are_known_after_a_hangup_and_a_broken_file_changes_nothing(site: Site) -> None:
    before = site.access.read_text()
    try:
        with site.client("late", "late-password") as late:
            assert late.get("/v2/").status_code == 401
            site.access.write_text(users.access({**site.passwords, "late": "late-password"}))
            site.front.send_signal(signal.SIGHUP)
            _until(lambda: late.get("/v2/").status_code == 200)
            site.access.write_text("{ not json")
            site.front.send_signal(signal.SIGHUP)
            time.sleep(0.3)
            assert late.get("/v2/").status_code == 200
            site.access.write_text(before)
            site.front.send_signal(signal.SIGHUP)
            _until(lambda: late.get("/v2/").status_code == 401)
    finally:
        site.access.write_text(before)
        site.front.send_signal(signal.SIGHUP)


def _until(condition: object) -> None:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        if condition():  # type: ignore[operator]
            return
        time.sleep(0.05)
    raise AssertionError("it did not come")
