"""A served bundle, asked by the programs that will ask it: apt, uv, and whoever speaks the registry's protocol."""

from __future__ import annotations

import hashlib
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from myriad.cli.bundle import listen_address
from myriad.errors import InputError, MyriadError
from myriad.stack.bundle import Bundle
from myriad.stack.push import files_tag
from myriad.stack.serve import BundleServer, Site, advice
from tests.unit.stack.offline_bundle import HAS_APT, OCI, PROGRAM, make_bundle

Requests = list[tuple[str, str, int, str]]
needs_apt = pytest.mark.skipif(not HAS_APT, reason="needs dpkg-deb, apt-get and gpg, as Debian and Ubuntu have them")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("served")
    return make_bundle(folder, signing_home=folder / "gpg" if HAS_APT else None)


@pytest.fixture(scope="module")
def requests() -> Requests:
    return []


@pytest.fixture(scope="module")
def server(bundle: Bundle, requests: Requests) -> Iterator[BundleServer]:
    with BundleServer(bundle, on_request=lambda *what: requests.append(what)) as made:
        yield made


@pytest.fixture
def http(server: BundleServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url("127.0.0.1"), trust_env=False) as client:
        yield client


def test_a_client_that_goes_away_leaves_no_traceback(bundle: Bundle, capfd: pytest.CaptureFixture[str]) -> None:
    gone: list[str] = []
    with BundleServer(bundle, on_request=lambda *what: gone.append(what[1])) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            # A reset instead of a close, as from a client that was killed.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(b"GET /v2/ HTTP/1.1\r\nHost: x\r\n\r\n" * 50)
        with httpx.Client(base_url=server.url("127.0.0.1"), trust_env=False) as another:
            assert another.get("/v2/").status_code == 200
    assert "Traceback" not in capfd.readouterr().err


def test_the_registry_half(http: httpx.Client, bundle: Bundle) -> None:
    image = bundle.image("team/app")
    assert http.get("/v2/").headers["Docker-Distribution-API-Version"] == "registry/2.0"
    assert http.get("/v2/_catalog").json() == {"repositories": ["artifacts", "team/app"]}
    assert http.get("/v2/team/app/tags/list").json() == {"name": "team/app", "tags": ["v1"]}
    by_tag = http.get("/v2/team/app/manifests/v1")
    by_digest = http.get(f"/v2/team/app/manifests/{image.digest}")
    assert by_tag.content == by_digest.content and by_tag.headers["Content-Type"] == OCI
    assert by_tag.headers["Docker-Content-Digest"] == image.digest
    assert f"sha256:{hashlib.sha256(by_tag.content).hexdigest()}" == image.digest
    for part in (by_tag.json()["config"], *by_tag.json()["layers"]):
        got = http.get(f"/v2/team/app/blobs/{part['digest']}")
        assert f"sha256:{hashlib.sha256(got.content).hexdigest()}" == part["digest"]
        head = http.head(f"/v2/team/app/blobs/{part['digest']}")
        assert (head.status_code, head.headers["Content-Length"], head.content) == (200, str(part["size"]), b"")
    assert http.get(f"/v2/team/app/referrers/{image.digest}").json()["manifests"] == []


def test_single_files_are_blobs_of_artifacts_as_in_the_sites_registry(http: httpx.Client, bundle: Bundle) -> None:
    manifest = http.get(f"/v2/artifacts/manifests/{files_tag(bundle)}").json()
    assert [layer["annotations"]["org.opencontainers.image.title"] for layer in manifest["layers"]] == ["tool"]
    assert http.get(f"/v2/artifacts/blobs/{manifest['layers'][0]['digest']}").content == PROGRAM
    assert http.get("/files/tool").content == PROGRAM


@pytest.mark.parametrize(
    ("asked", "status", "expected"),
    [
        ("bytes=100-", 206, PROGRAM[100:]),
        ("bytes=0-9", 206, PROGRAM[:10]),
        ("bytes=-7", 206, PROGRAM[-7:]),
        ("bytes=10-99999999", 206, PROGRAM[10:]),
        (f"bytes={len(PROGRAM)}-", 416, b""),
        ("bytes=9-3", 416, b""),
        ("bytes=-0", 416, b""),
        ("bytes=0-1,5-6", 200, PROGRAM),
        ("lines=1-2", 200, PROGRAM),
    ],
)
def test_a_broken_download_goes_on(http: httpx.Client, asked: str, status: int, expected: bytes) -> None:
    got = http.get("/files/tool", headers={"Range": asked})
    assert (got.status_code, got.content) == (status, expected)
    # The connection is still in step.
    assert http.get("/v2/").status_code == 200


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/v2/nobody/manifests/v1", "NAME_UNKNOWN"),
        ("/v2/team/app/manifests/v2", "MANIFEST_UNKNOWN"),
        (f"/v2/team/app/blobs/sha256:{'0' * 64}", "BLOB_UNKNOWN"),
        ("/v2/team/app/blobs/sha256:../../bundle.yml", "BLOB_UNKNOWN"),
        ("/v2/team/app/tags/other", "UNSUPPORTED"),
        ("/v2/team/app", "UNSUPPORTED"),
    ],
)
def test_what_the_registry_has_not_is_told_in_its_words(http: httpx.Client, path: str, code: str) -> None:
    got = http.get(path)
    assert (got.status_code, got.json()["errors"][0]["code"]) == (404, code)


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/..%2f..%2fetc/passwd", "/files/../bundle.yml/", "/files/nothing", "/sha256/", "/%00"]
)
def test_nothing_but_what_the_manifest_names_is_given(server: BundleServer, path: str) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as raw:
        raw.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        assert raw.recv(100).startswith(b"HTTP/1.1 404 ")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_it_only_reads(http: httpx.Client, method: str) -> None:
    got = http.request(method, "/v2/team/app/blobs/uploads/", content=b"x" * 10)
    assert (got.status_code, got.headers["Allow"]) == (405, "GET, HEAD")


def test_many_clients_at_once_each_get_the_whole_file(server: BundleServer) -> None:
    url = f"{server.url('127.0.0.1')}/files/tool"
    got: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: got.append(httpx.get(url, trust_env=False, timeout=30).content))
        for _ in range(24)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [PROGRAM] * 24


@needs_apt
def test_apt_installs_from_it_and_believes_its_signature(
    server: BundleServer, bundle: Bundle, requests: Requests, tmp_path: Path
) -> None:
    apt = bundle.manifest.apt
    assert apt is not None and apt.fingerprint
    for folder in ("lists/partial", "cache/archives/partial"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "status").write_text("")
    key = tmp_path / "myriad.asc"
    sources = tmp_path / "bundle.sources"

    def write(key_text: str) -> None:
        key.write_text(key_text)
        sources.write_text(
            f"Types: deb\nURIs: {server.url('127.0.0.1')}/apt\nSuites: bookworm\nComponents: main\n"
            f"Architectures: amd64\nSigned-By: {key}\n"
        )

    def apt_get(*arguments: str) -> subprocess.CompletedProcess[str]:
        options = {
            "Dir::State::lists": tmp_path / "lists",
            "Dir::State::status": tmp_path / "status",
            "Dir::Cache": tmp_path / "cache",
            "Dir::Etc::sourcelist": sources,
            "Dir::Etc::sourceparts": "/dev/null",
            "Debug::NoLocking": "true",
            "APT::Sandbox::User": "root",
            "APT::Architecture": "amd64",
            "APT::Update::Error-Mode": "any",
            "Acquire::http::Proxy::127.0.0.1": "DIRECT",
        }
        flags = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
        return subprocess.run(["apt-get", *flags, *arguments], capture_output=True, text=True, check=False)

    write(apt.key)
    updated = apt_get("update")
    assert updated.returncode == 0, updated.stderr
    done = apt_get("install", "--yes", "--download-only", "lead")
    assert done.returncode == 0, done.stderr
    debs = {path.name.split("_")[0] for path in (tmp_path / "cache" / "archives").glob("*.deb")}
    assert debs == {"lead", "follow"}
    assert any(path.startswith("/apt/pool/") and status == 200 for _, _, status, path in requests)
    # Somebody else's key: refused.
    other = make_bundle(tmp_path / "other", signing_home=tmp_path / "gpg").manifest.apt
    assert other is not None
    write(other.key)
    refused = apt_get("update")
    assert refused.returncode != 0 and "NO_PUBKEY" in refused.stderr


def test_uv_installs_a_wheel_by_its_hash(server: BundleServer, bundle: Bundle, tmp_path: Path) -> None:
    wheel = bundle.manifest.wheels[0]
    pins = tmp_path / "pins.txt"
    pins.write_text(f"thing==1.5 --hash=sha256:{wheel.sha256}\n")
    uv = Path(__import__("sys").executable).with_name("uv")
    command = [str(uv), "pip", "install", "--no-cache", "--target", str(tmp_path / "site"), "--require-hashes"]
    index = f"{server.url('127.0.0.1')}/wheels/simple"
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        [*command, "--default-index", index, "-r", str(pins)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "thing.py").read_text() == "VERSION = '1.5'\n"


def test_the_index_of_wheels(http: httpx.Client) -> None:
    assert '<a href="thing/">' in http.get("/wheels/simple/").text
    moved = http.get("/wheels/simple/thing")
    assert (moved.status_code, moved.headers["Location"]) == (301, "/wheels/simple/thing/")
    assert http.get("/wheels/simple/nothing/").status_code == 404


def test_a_file_that_left_the_bundle_is_an_error_that_names_it(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)
    site = Site(bundle)
    assert site.whole() == []
    bundle.file_path("tool").unlink()
    assert site.whole() == ["tool"]
    with BundleServer(bundle) as server:
        got = httpx.get(f"{server.url('127.0.0.1')}/files/tool", trust_env=False)
    assert got.status_code == 500 and "bundle verify" in got.text


def test_https(tmp_path: Path, bundle: Bundle) -> None:
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=x"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.create_default_context(cafile=str(certificate))
    with (
        BundleServer(bundle, tls=(certificate, key)) as server,
        # One that connects and never speaks holds up nobody.
        socket.create_connection(("127.0.0.1", server.port)),
        httpx.Client(verify=context, trust_env=False) as client,
    ):
        assert client.get(f"{server.url('127.0.0.1')}/files/tool").content == PROGRAM
    with pytest.raises(MyriadError, match="certificate and its key cannot be used"):
        BundleServer(bundle, tls=(key, certificate))


def test_an_address_that_is_taken_is_named(bundle: Bundle) -> None:
    with BundleServer(bundle) as server, pytest.raises(MyriadError, match=r"cannot be listened on"):
        BundleServer(bundle, port=server.port)
    with pytest.raises(MyriadError, match="cannot be listened on"):
        BundleServer(bundle, address="192.0.2.7")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (":80", ("0.0.0.0", 80)),
        ("10.0.0.5", ("10.0.0.5", 5080)),
        ("10.0.0.5:0", ("10.0.0.5", 0)),
        ("[::1]:81", ("::1", 81)),
        ("::1", ("::1", 5080)),
        ("", ("0.0.0.0", 5080)),
    ],
)
def test_where_to_listen(text: str, expected: tuple[str, int]) -> None:
    assert listen_address(text) == expected


@pytest.mark.parametrize("text", ["10.0.0.5:x", ":99999", "a:-1", "10.0.0.5:8 0"])
def test_where_nobody_can_listen(text: str) -> None:
    with pytest.raises(InputError, match="is no port"):
        listen_address(text)


def test_what_nodes_have_to_be_given(bundle: Bundle) -> None:
    lines = {line.split(":")[0]: line for _, line in advice(Site(bundle), "http://10.0.0.5:5080")}
    assert lines["site_bundle"] == f"site_bundle: {bundle.directory}"
    if HAS_APT:
        assert lines["site_apt_repository"] == "site_apt_repository: http://10.0.0.5:5080/apt"
    assert any("MYRIAD_MIRROR_PYTHON=http://10.0.0.5:5080/wheels/simple make env" in line for line in lines.values())
