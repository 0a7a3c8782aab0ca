"""Keys, credentials and identities that do not belong into an image, by path and by content. Pure.

Whoever can pull an image can read all of its layers. A pattern here has to be narrow enough that a package's source
code, which speaks of keys all day, is not one: a private key counts with its first lines of content, a token with its
whole length. Values are never repeated: a finding shows where, and the first characters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

OVERLAP = 512
"""Bytes that a reader keeps of one piece for the next, so that no secret falls between two."""

MOST_TOKENS = 64 << 20
"""Files above this size are searched for private keys alone."""


@dataclass(frozen=True, slots=True)
class Secret:
    """Something secret: what it is, and its first characters as far as they are the same in all of its kind."""

    what: str
    shown: str = ""

    def __str__(self) -> str:
        return f"{self.what} ({self.shown}...)" if self.shown else self.what


# What a key looks like: its header and at least 40 characters of base64, with line ends as they are or escaped (JSON).
_PEM = re.compile(
    rb"-----BEGIN ((?:RSA |EC |DSA |OPENSSH |ENCRYPTED (?:SIGSTORE |COSIGN )?)?PRIVATE KEY|PGP PRIVATE KEY BLOCK)-----"
    rb"(?:\r?\n|\\n|\\r\\n)(?:[A-Z][A-Za-z-]+: [^\n\\]*(?:\r?\n|\\n))*(?:\r?\n|\\n)?[A-Za-z0-9+/=]{40,}"
)
_PPK = re.compile(rb"PuTTY-User-Key-File-\d: \S+[\s\S]{0,400}Private-Lines: \d+")
_AGE = re.compile(rb"AGE-SECRET-KEY-1[0-9A-Z]{58}")

_TOKENS: tuple[tuple[bytes, re.Pattern[bytes], str], ...] = (
    (
        b"AKIA",
        re.compile(rb"(?<![A-Za-z0-9+/])AKIA(?!IOSFODNN7EXAMPLE)[A-Z0-9]{16}(?![A-Za-z0-9+/])"),
        "an AWS access key",
    ),
    (b"ASIA", re.compile(rb"(?<![A-Za-z0-9+/])ASIA[A-Z0-9]{16}(?![A-Za-z0-9+/])"), "an AWS session key"),
    (
        b"aws_secret_access_key",
        re.compile(rb"aws_secret_access_key\s*=\s*['\"]?(?![A-Za-z0-9/+]*EXAMPLE)[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+])"),
        "an AWS secret key",
    ),
    (b"AIza", re.compile(rb"(?<![\w-])AIza[0-9A-Za-z_-]{35}(?![\w-])"), "a Google API key"),
    (b"ya29.", re.compile(rb"(?<![\w-])ya29\.[0-9A-Za-z_-]{60,}"), "a Google access token"),
    (b"GOCSPX-", re.compile(rb"GOCSPX-[0-9A-Za-z_-]{28}"), "a Google OAuth secret"),
    (b"gh", re.compile(rb"(?<![A-Za-z0-9_])gh[pousr]_[A-Za-z0-9]{36,255}(?![A-Za-z0-9_])"), "a GitHub token"),
    (b"github_pat_", re.compile(rb"github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}"), "a GitHub token"),
    (b"glpat-", re.compile(rb"(?<![\w-])glpat-[\w-]{20}"), "a GitLab token"),
    (b"hf_", re.compile(rb"(?<![A-Za-z0-9_])hf_[A-Za-z0-9]{34}(?![A-Za-z0-9_])"), "a Hugging Face token"),
    (b"xox", re.compile(rb"(?<![\w-])xox[abeprs]-\d{8,}-[\w-]{16,}"), "a Slack token"),
    (b"pypi-AgE", re.compile(rb"pypi-AgE[\w-]{50,}"), "a PyPI token"),
    (b"npm_", re.compile(rb"(?<![A-Za-z0-9_])npm_[A-Za-z0-9]{36}(?![A-Za-z0-9_])"), "an npm token"),
    (b"dckr_pat_", re.compile(rb"dckr_pat_[\w-]{27}"), "a Docker Hub token"),
    (b"sk-ant-", re.compile(rb"sk-ant-[a-z0-9]{3,8}-[\w-]{60,}"), "an Anthropic API key"),
    (b"T3BlbkFJ", re.compile(rb"sk-[\w-]{16,}T3BlbkFJ[\w-]{16,}"), "an OpenAI API key"),
    (b"AccountKey=", re.compile(rb"AccountKey=[A-Za-z0-9+/]{86}=="), "an Azure storage key"),
    (b"nvapi-", re.compile(rb"(?<![\w-])nvapi-[\w-]{60,}"), "an NVIDIA API key"),
    (b"hvs.", re.compile(rb"(?<![\w.-])hvs\.[\w-]{60,}"), "a Vault token"),
)


def in_bytes(data: bytes, *, keys_only: bool = False) -> Iterator[Secret]:
    """Secrets in a piece of a file."""
    if b"PRIVATE KEY" in data:
        for match in _PEM.finditer(data):
            yield Secret(f"a private key ({match[1].decode().lower().removesuffix(' block')})", "")
    if b"PuTTY-User-Key" in data and _PPK.search(data):
        yield Secret("a private key (PuTTY)")
    if b"AGE-SECRET-KEY" in data and _AGE.search(data):
        yield Secret("a private key (age)")
    if keys_only:
        return
    for literal, pattern, what in _TOKENS:
        if literal in data and pattern.search(data):
            yield Secret(what, literal.decode().rstrip("=") if literal != b"gh" else "gh")


_URL = re.compile(
    rb"https?://[^\s/:@'\"<>{}$%]*:[^\s/@'\"<>{}$]+@[\w.-]+|https?://(?:__token__|oauth2?|[\w.-]+)@[\w.-]+"
)


def _machine_id(data: bytes) -> str:
    return "the id of the machine that it was built on" if re.fullmatch(rb"[0-9a-f]{32}\s*", data) else ""


def _shadow(data: bytes) -> str:
    hashed = [
        line.split(b":")[0].decode(errors="replace")
        for line in data.splitlines()
        if re.match(rb"[^:]+:\$?[^*!:][^:]*\$", line)
    ]
    return f"the password of {', '.join(hashed)}" if hashed else ""


def _docker(data: bytes) -> str:
    try:
        body = json.loads(data)
    except ValueError:
        return ""
    auths = body.get("auths") if isinstance(body, dict) else None
    named = [
        host
        for host, one in (auths or {}).items()
        if isinstance(one, dict) and any(one.get(key) for key in ("auth", "password", "identitytoken"))
    ]
    return f"registry credentials for {', '.join(sorted(named))}" if named else ""


_Look = Callable[[bytes], str]
"""Content of a file -> what is secret in it; empty for nothing."""


def _matching(pattern: bytes, what: str) -> _Look:
    compiled = re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    return lambda data: what if compiled.search(data) else ""


def _any(what: str) -> _Look:
    return lambda data: what if data.strip() else ""


def _in_url(what: str) -> _Look:
    return lambda data: f"{what} in a URL" if _URL.search(data) else ""


def _ssh_key(data: bytes) -> str:
    return "an SSH key" if data.strip() and not data.startswith((b"ssh-", b"ecdsa-", b"sk-")) else ""


_PATHS: tuple[tuple[str, _Look], ...] = (
    ("*.netrc", _matching(rb"\bpassword\s+\S+", "passwords (netrc)")),
    ("*_netrc", _matching(rb"\bpassword\s+\S+", "passwords (netrc)")),
    ("*.pypirc", _matching(rb"^\s*password\s*[=:]\s*\S+", "a package index's password")),
    ("*pip.conf", _in_url("a package index's password")),
    ("*pip/pip.ini", _in_url("a package index's password")),
    ("*uv.toml", _in_url("a package index's password")),
    ("*.condarc", _in_url("a channel's password")),
    ("*.git/config", _in_url("a password of a remote")),
    ("*.gitconfig", _in_url("a password of a remote")),
    ("*.git-credentials", _any("git's stored passwords")),
    ("*etc/apt/sources.list*", _in_url("a repository's password")),
    ("*etc/apt/auth.conf*", _matching(rb"\bpassword\s+\S+", "a repository's password")),
    ("*.docker/config.json", _docker),
    ("*containers/auth.json", _docker),
    ("*.dockercfg", _docker),
    ("*.aws/credentials", _matching(rb"aws_secret_access_key\s*=\s*\S+", "AWS credentials")),
    ("*application_default_credentials.json", _matching(rb'"(refresh_token|private_key)"\s*:\s*"[^"]+"', "Google key")),
    ("*gcloud/credentials.db", _any("Google credentials")),
    ("*.azure/accessTokens.json", _any("Azure credentials")),
    ("*.azure/msal_token_cache.*", _any("Azure credentials")),
    ("*huggingface/token", _any("a Hugging Face token")),
    ("*huggingface/stored_tokens", _any("Hugging Face tokens")),
    ("*.kube/config", _matching(rb"(client-key-data|token|password):\s*\S+", "credentials of a cluster")),
    ("*.npmrc", _matching(rb"_(authToken|password|auth)\s*=\s*\S+", "an npm registry's token")),
    ("*.config/gh/hosts.yml", _matching(rb"oauth_token:\s*\S+", "a GitHub token")),
    ("*.ssh/id_*", _ssh_key),
    ("*etc/ssh/ssh_host_*_key", _any("an SSH host key: every container of the image would have the same")),
    ("*krb5.keytab", _any("a Kerberos keytab")),
    ("*.vault-token", _any("a Vault token")),
    ("*.pgpass", _any("PostgreSQL passwords")),
    ("*.my.cnf", _matching(rb"^\s*password\s*=\s*\S+", "a MySQL password")),
    ("*etc/machine-id", _machine_id),
    ("*var/lib/dbus/machine-id", _machine_id),
    ("etc/shadow*", _shadow),
    ("*.bash_history", _any("what somebody typed (shell history)")),
    ("*.python_history", _any("what somebody typed (Python history)")),
)  # fmt: skip


def wants_content(path: str) -> bool:
    """Whether the file's name alone makes its content worth a look."""
    return any(fnmatchcase(path, pattern) for pattern, _look in _PATHS)


def in_file(path: str, data: bytes) -> Iterator[Secret]:
    """What a file of that name keeps, by what is in it."""
    for pattern, look in _PATHS:
        if fnmatchcase(path, pattern):
            what = look(data)
            if what:
                yield Secret(what)


_NAME = re.compile(r"secret|passw(or)?d|token|api_?key|access_?key|credential|private_?key", re.IGNORECASE)
_HARMLESS = re.compile(r"^(|/.*|true|false|0|1|none|.*_?file|\$\{?\w+\}?)$", re.IGNORECASE)
_BUILD_ARGUMENT = re.compile(
    r"(\w*(?:secret|passw(?:or)?d|token|api_?key|access_?key)\w*)=([^\s|&;]{8,})", re.IGNORECASE
)


def in_environment(name: str, value: str) -> Iterator[Secret]:
    """A variable of the image's configuration, which every container and everyone who inspects the image sees."""
    found = list(in_bytes(value.encode()))
    yield from found
    if (
        not found
        and _NAME.search(name)
        and not name.upper().endswith(("_FILE", "_PATH", "_DIR", "_PARALLELISM"))
        and not _HARMLESS.match(value)
    ):
        yield Secret("a value that its name calls secret")
    elif not found and _URL.search(value.encode()):
        yield Secret("a password in a URL")


def in_history(line: str) -> Iterator[Secret]:
    """A line of the image's history: build arguments stay in it for good."""
    found = list(in_bytes(line.encode()))
    yield from found
    if not found:
        for match in _BUILD_ARGUMENT.finditer(line):
            if not _HARMLESS.match(match[2]):
                yield Secret(f"the build argument {match[1]}")
