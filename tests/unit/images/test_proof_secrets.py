"""What is taken for a secret in an image and what is not: packages speak of keys all day."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import apprise
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from myriad.images.proof_secrets import OVERLAP, in_bytes, in_environment, in_file, in_history, wants_content
from myriad.images.proof_tree import TreeFile, _content

BEGIN = "-----BEGIN"
BODY = "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgevZzL1gdAFr88hb2"


def pem(kind: str, separator: str = "\n") -> bytes:
    """Put together here, so that nobody takes this file for one that holds a key."""
    return f"-----BEGIN {kind}PRIVATE KEY-----{separator}{BODY}{separator}-----END {kind}PRIVATE KEY-----".encode()


@pytest.mark.parametrize(
    "kind", ["", "RSA ", "EC ", "DSA ", "OPENSSH ", "ENCRYPTED ", "ENCRYPTED SIGSTORE ", "ED25519 ", "ANY OTHER "]
)
@pytest.mark.parametrize("separator", ["\n", "\r\n", "\\n", "\r", " \n", "\n    "])
def test_private_keys_of_all_kinds(kind: str, separator: str) -> None:
    (one,) = in_bytes(b"x = '" + pem(kind, separator) + b"'")
    assert one.what.startswith("a private key")


def test_an_old_encrypted_key_with_headers() -> None:
    head = "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,AB12\n\n"
    text = f"{BEGIN} RSA PRIVATE KEY-----\n{head}{BODY}\n"
    assert [one.what for one in in_bytes(text.encode())] == ["a private key (rsa private key)"]


def test_a_key_as_secrets_and_configurations_of_clusters_hold_it() -> None:
    encoded = base64.b64encode(pem("EC ")).decode()
    assert [one.what for one in in_bytes(f"client-key-data: {encoded}\n".encode())] == ["a private key (in base64)"]
    certificate = base64.b64encode(f"-----BEGIN CERTIFICATE-----\n{BODY}\n{BODY}\n".encode()).decode()
    assert list(in_bytes(f"client-certificate-data: {certificate}\n".encode())) == []


def test_keys_of_other_programs() -> None:
    ssh2 = f"---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\nComment: x\n{BODY}\n"
    assert [one.what for one in in_bytes(ssh2.encode())] == ["a private key (ssh2)"]
    minisign = f"untrusted comment: minisign encrypted secret key\n{BODY}\n"
    assert [one.what for one in in_bytes(minisign.encode())] == ["a private key (minisign)"]


def jwt(payload: dict[str, str]) -> bytes:
    parts = [json.dumps({"alg": "RS256"}).replace(" ", ""), json.dumps(payload)]
    return b".".join(base64.urlsafe_b64encode(one.encode()).rstrip(b"=") for one in parts) + b"." + b"s" * 80


def test_a_token_of_a_service_account_is_told_from_an_example_of_a_library() -> None:
    (one,) = in_bytes(b"token: " + jwt({"iss": "https://kubernetes.default.svc"}))
    assert one.what == "a token of a Kubernetes service account"
    assert list(in_bytes(jwt({"sub": "1234567890", "name": "John Doe"}))) == []


@pytest.mark.parametrize(
    "text",
    [
        f"{BEGIN} PRIVATE KEY-----",
        f"if data.startswith('{BEGIN} RSA PRIVATE KEY-----'):",
        f"{BEGIN} PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----",
        "-----BEGIN PUBLIC KEY-----\n" + BODY,
        "-----BEGIN CERTIFICATE-----\n" + BODY,
        "AKIA" + "IOSFODNN7EXAMPLE",
        "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "aws_secret_access_key = None",
        "hf_hub_download(repo_id, filename, revision=revision)",
        "hf_transfer_is_available_in_this_version_of_the",
        "ghp_short",
        "https://chat.googleapis.com/v1/spaces/x/messages?key=AIza" + "SyDdI0hCZtE6vySjMm-WEfRq3CPzqKqqsHI&token=",
        "sk-learn and T3BlbkFJ",
        "xoxb-token",
    ],
)
def test_what_only_speaks_of_keys(text: str) -> None:
    assert list(in_bytes(text.encode())) == []


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        (("AKIA", "QWERTYUIOPASDF23"), "an AWS access key"),
        (("aws_secret_access_key=", "wJalrXUtnFEMIK7MDENGbPxRfiCYzzzzzzzzKEY0"), "an AWS secret key"),
        (("AWS_SECRET_ACCESS_KEY=", "wJalrXUtnFEMIK7MDENGbPxRfiCYzzzzzzzzKEY0"), "an AWS secret key"),
        (("aws_secret_access_key: ", "wJalrXUtnFEMIK7MDENGbPxRfiCYzzzzzzzzKEY0"), "an AWS secret key"),
        (('"SecretAccessKey": "', "wJalrXUtnFEMIK7MDENGbPxRfiCYzzzzzzzzKEY0"), "an AWS secret key"),
        (("glrt-", "a" * 20), "a GitLab token"),
        (("glcbt-64_", "a" * 20), "a GitLab token"),
        (("api_org_", "aBcDeFgHiJkLmNoPqRsTuVwXyZ01234567"), "a Hugging Face token"),
        (("https://hooks.slack.com/services/", "T01234567/B01234567/" + "a1B2" * 6), "a Slack webhook"),
        (("sk_live_", "a1B2" * 6), "a Stripe key"),
        (("AIza", "SyA" + "b" * 32), "a Google API key"),
        (("ghp_", "a1B2" * 9), "a GitHub token"),
        (("ghs_", "a1B2" * 9), "a GitHub token"),
        (("github_pat_", "A" * 22 + "_" + "b" * 59), "a GitHub token"),
        (("glpat-", "a" * 20), "a GitLab token"),
        (("hf_", "aBcDeFgHiJkLmNoPqRsTuVwXyZ01234567"), "a Hugging Face token"),
        (("xoxb-", "123456789012-" + "a" * 24), "a Slack token"),
        (("pypi-AgE", "I" * 60), "a PyPI token"),
        (("AccountKey=", "a" * 86 + "=="), "an Azure storage key"),
        (("nvapi-", "a" * 64), "an NVIDIA API key"),
        (("sk-ant-", "api03-" + "a" * 90), "an Anthropic API key"),
    ],
)
def test_tokens_are_found_and_never_repeated(parts: tuple[str, str], what: str) -> None:
    (one,) = in_bytes(f"TOKEN = '{''.join(parts)}'\n".encode())
    assert one.what == what
    assert parts[1] not in str(one)


@pytest.mark.parametrize(
    ("path", "data", "what"),
    [
        ("root/.netrc", b"machine api.wandb.ai login user password abcdef", "passwords (netrc)"),
        ("root/.pypirc", b"[pypi]\nusername = __token__\npassword = x", "a package index's password"),
        (
            "etc/pip.conf",
            b"[global]\nindex-url = https://user:pass@pypi.site/simple",
            "a package index's password in a URL",
        ),
        ("root/.config/pip/pip.conf", b"index-url=https://u:p@h/simple", "a package index's password in a URL"),
        ("root/.git-credentials", b"https://u:p@github.com", "git's stored passwords"),
        ("src/.git/config", b"url = https://token:x@git.site/r.git", "a password of a remote in a URL"),
        ("root/.aws/credentials", b"[default]\naws_secret_access_key = abc", "AWS credentials"),
        ("root/.cache/huggingface/token", b"hf_x", "a Hugging Face token"),
        ("root/.kube/config", b"users:\n- user: {token: abc}", "credentials of a cluster"),
        ("root/.ssh/id_ed25519", b"-----BEGIN", "an SSH key"),
        ("etc/ssh/ssh_host_rsa_key", b"x", "an SSH host key: every container of the image would have the same"),
        ("etc/machine-id", b"0123456789abcdef0123456789abcdef\n", "the id of the machine that it was built on"),
        ("etc/shadow", b"root:$6$salt$hash:19000::::::\n", "the password of root"),
        ("root/.bash_history", b"export TOKEN=x", "what somebody typed (shell history)"),
        ("root/.npmrc", b"//r.site/:_authToken=abc", "an npm registry's token"),
        ("etc/netrc", b"machine a login b password c", "passwords (netrc)"),
        ("root/.netrc.bak", b"machine a login b password c", "passwords (netrc)"),
        ("root/.yarnrc.yml", b"npmAuthToken: abc", "an npm registry's token"),
        ("app/requirements.txt", b"--extra-index-url https://u:p@h/simple", "a package index's password in a URL"),
        ("app/pyproject.toml", b'url = "https://u:p@h/simple"', "a package index's password in a URL"),
        ("opt/x-1.dist-info/direct_url.json", b'{"url": "https://tok@h/x"}', "a package index's password in a URL"),
        ("root/.config/pypoetry/auth.toml", b'[a]\npassword = "x"', "a package index's password"),
        ("opt/kubeconfig.yaml", b"users:\n- user:\n    token: abc\n", "credentials of a cluster"),
        ("root/.kube/config", b'{"users": [{"user": {"token": "abc"}}]}', "credentials of a cluster"),
        ("etc/kubernetes/admin.conf", b"users:\n- user: {password: x}", "credentials of a cluster"),
        ("opt/pull-secret.json", b'{"auths": {"r.site": {"auth": "dTpw"}}}', "registry credentials for r.site"),
        ("root/.dockercfg", b'{"r.site": {"auth": "dTpw"}}', "registry credentials for r.site"),
        ("x/.dockerconfigjson", b'{"auths": {"r.site": {"registrytoken": "t"}}}', "registry credentials for r.site"),
        ("root/.kaggle/kaggle.json", b'{"username":"u","key":"abc"}', "a Kaggle key"),
        ("root/.cargo/credentials.toml", b'[registry]\ntoken = "abc"', "a crate registry's token"),
        ("app/.env", b"A=1\nDB_PASSWORD=hunter2222\n", "secret values (.env)"),
        ("opt/server.key", b"\x30\x82\x04\xbd\x02\x01\x00\x30\x0d", "a private key (DER)"),
        ("opt/server.p12", b"\x30\x82\x04\xbd\x02\x01\x03\x30\x82", "a key store"),
        ("etc/shadow", b"root::19000::::::\n", "no password for root, who may log in without one"),
        ("etc/passwd", b"root:$6$salt$hash:0:0::/root:/bin/sh\n", "the password of root"),
    ],
)
def test_files_that_keep_secrets(path: str, data: bytes, what: str) -> None:
    assert wants_content(path)
    assert [one.what for one in in_file(path, data)] == [what]


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("etc/pip.conf", b"[global]\nindex-url = https://pypi.site/simple"),
        ("root/.netrc", b""),
        ("root/.ssh/id_ed25519.pub", b"ssh-ed25519 AAAA"),
        ("etc/machine-id", b"uninitialized\n"),
        ("etc/machine-id", b""),
        ("etc/shadow", b"root:*:20089:0:99999:7:::\ndaemon:!:1::::::\nx:!*:1::::::\n"),
        ("root/.docker/config.json", b'{"auths": {"r.site": {}}, "credsStore": "pass"}'),
        ("root/.docker/config.json", b"no json"),
        ("src/.git/config", b"url = git@git.site:r.git"),
        ("src/.git/config", b"url = https://git@git.site/r.git"),
        ("root/.docker/config.json", b'{"auths": "x", "auth": 1}'),
        ("root/.docker/config.json", b'{"auths": [{"auth": "x"}]}'),
        ("root/.docker/config.json", b"[" * 5000 + b'"auth"'),
        ("root/.npmrc", b"//r.site/:_authToken=${NPM_TOKEN}"),
        ("root/.netrc", b"# password goes here\n"),
        ("app/requirements.txt", b"a @ git+https://github.com/a/b@main\nb @ git+https://git@h/b\nnumpy>=2"),
        ("etc/pip.conf", b"index-url = https://${USER}:${PASSWORD}@h/simple"),
        ("opt/client/kubeconfig.yaml", b"token: str  # of the user"),
        ("app/.env", b"TOKEN=\nPASSWORD=$PASSWORD\nTOKENIZER=bert-base"),
        ("opt/server.key", b"\x30\x82\x01\x22\x30\x0d\x06\x09"),
        ("etc/passwd", b"root:x:0:0:root:/root:/bin/bash\n"),
        ("app/settings.json", b'{"auth": "none", "token": "abc"}'),
    ],
)
def test_files_of_these_names_without_secrets(path: str, data: bytes) -> None:
    assert list(in_file(path, data)) == []


def test_dockers_credentials_name_the_registry() -> None:
    auth = base64.b64encode(b"u:p").decode()
    body = json.dumps({"auths": {"r.site": {"auth": auth}, "empty.site": {}}}).encode()
    assert [one.what for one in in_file("root/.docker/config.json", body)] == ["registry credentials for r.site"]


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("HF_TOKEN", "abcdefgh", True),
        ("WANDB_API_KEY", "0123456789", True),
        ("DB_PASSWORD", "x", True),
        ("PIP_INDEX_URL", "https://u:p@pypi.site/simple", True),
        ("ANYTHING", "ghp_" + "a1B2" * 9, True),
        ("HF_TOKEN_PATH", "/run/secrets/hf", False),
        ("TOKENIZERS_PARALLELISM", "false", False),
        ("GPG_KEY", "A035C8C19219BA821ECEA86B64E628F8D684696D", False),
        ("SSL_CERT_FILE", "/etc/ssl/cert.pem", False),
        ("DB_PASSWORD", "", False),
        ("DB_PASSWORD_FILE", "secret.txt", False),
        ("PATH", "/usr/bin", False),
        ("MYSQL_PWD", "hunter2", True),
        ("GITHUB_PAT", "hunter2", True),
        ("PWD", "workspace", False),
        ("MAX_TOKENS", "512", False),
        ("TOKENIZER", "bert-base", False),
        ("PASSWORD_MIN_LENGTH", "8", False),
        ("HTTP_PROXY", "http://u:p@proxy.site:3128", True),
    ],
)
def test_variables_of_the_configuration(name: str, value: str, found: bool) -> None:
    assert bool(list(in_environment(name, value))) is found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("|1 HF_TOKEN=hf_abcdefgh /bin/sh -c pip install x", True),
        ("ENV PIP_INDEX_URL=https://x", False),
        ("RUN --mount=type=secret,id=token pip install", False),
        ("|1 TOKEN_FILE=/run/x /bin/sh", False),
        ("myriad: wheels (torch)", False),
        ("|1 TOKENIZER=bert-base-uncased /bin/sh", False),
        ("|1 DB_PWD=hunter2hunter2 /bin/sh", True),
    ],
)
def test_the_history_keeps_build_arguments(line: str, found: bool) -> None:
    assert bool(list(in_history(line))) is found


@settings(deadline=None, max_examples=25)
@given(st.integers(min_value=0, max_value=OVERLAP + 200))
def test_a_key_is_found_wherever_pieces_of_a_file_end(before: int) -> None:
    """A file is read in pieces of 1 MiB."""
    data = b"a" * ((1 << 20) - before) + b"\n" + pem("") + b"\n"
    found = _content(io.BytesIO(data), TreeFile("opt/key", "file", size=len(data)))
    assert [one.what for one in found.secrets] == ["a private key (private key)"]


def test_a_library_of_the_extension_is_no_alarm() -> None:
    """It speaks of 130 services and their tokens; with a false alarm every image that has it would fail its proof."""
    plugins = Path(apprise.__file__).parent / "plugins"
    found = {one.name: list(in_bytes(one.read_bytes())) for one in plugins.glob("*.py")}
    assert len(found) > 100 and {name: secrets for name, secrets in found.items() if secrets} == {}
