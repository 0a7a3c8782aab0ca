"""Keys, credentials and identities that do not belong into an image, by path and by content. Pure.

Whoever can pull an image can read all of its layers. A pattern here has to be narrow enough that a package's source
code, which speaks of keys all day, is not one: a private key counts with its first lines of content, a token with its
whole length. Values are never repeated: a finding shows where, and the first characters.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate

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


# What a key looks like: its header, whatever kind it names, and at least 40 characters of base64; lines end as they do
# in files of any system or escaped (JSON), and may be indented (YAML).
_END = rb"[ \t]*(?:\r\n?|\n|\\r\\n|\\n)[ \t]*"
_PEM = re.compile(
    rb"-----BEGIN ((?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?)-----"
    + _END
    + rb"(?:[A-Z][A-Za-z-]+: [^\r\n\\]*"
    + _END
    + rb")*(?:"
    + _END
    + rb")?[A-Za-z0-9+/=]{40,}"
)
_SSH2 = re.compile(rb"---- BEGIN SSH2 (?:ENCRYPTED )?PRIVATE KEY ----[\s\S]{0,300}?^[A-Za-z0-9+/=]{40,}", re.MULTILINE)
# "-----BEGIN" in base64, as Secrets and configurations of clusters hold keys; certificates look the same until decoded.
_ENCODED = re.compile(rb"LS0tLS1CRUdJTi(?:[A-Za-z0-9+/]{4}){20,}")
_JWT = re.compile(rb"(?<![\w-])eyJhbGciOi[\w-]*\.(eyJ[\w-]{20,})\.[\w-]{40,}")
_PPK = re.compile(rb"PuTTY-User-Key-File-\d: \S+[\s\S]{0,400}Private-Lines: \d+")
_MINISIGN = re.compile(rb"untrusted comment: [^\n]*secret key\r?\n[A-Za-z0-9+/=]{60,}")
_AGE = re.compile(rb"AGE-SECRET-KEY-1[0-9A-Z]{58}")

_TOKENS: tuple[tuple[bytes, re.Pattern[bytes], str], ...] = (
    (
        b"AKIA",
        re.compile(rb"(?<![A-Za-z0-9+/])AKIA(?!IOSFODNN7EXAMPLE)[A-Z0-9]{16}(?![A-Za-z0-9+/])"),
        "an AWS access key",
    ),
    (b"ASIA", re.compile(rb"(?<![A-Za-z0-9+/])ASIA[A-Z0-9]{16}(?![A-Za-z0-9+/])"), "an AWS session key"),
    *(
        (
            literal,
            re.compile(
                re.escape(literal)
                + rb"['\"]?\s*[=:]\s*['\"]?(?![A-Za-z0-9/+]*EXAMPLE)[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+])"
            ),
            "an AWS secret key",
        )
        for literal in (b"aws_secret_access_key", b"AWS_SECRET_ACCESS_KEY", b"SecretAccessKey")
    ),
    (
        # Not the one in every address of a Google Chat webhook: it names Chat itself, and its documentation shows it.
        b"AIza",
        re.compile(rb"(?<![\w-])AIza(?!SyDdI0hCZtE6vySjMm-WEfRq3CPzqKqqsHI)[0-9A-Za-z_-]{35}(?![\w-])"),
        "a Google API key",
    ),
    (b"ya29.", re.compile(rb"(?<![\w-])ya29\.[0-9A-Za-z_-]{60,}"), "a Google access token"),
    (b"GOCSPX-", re.compile(rb"GOCSPX-[0-9A-Za-z_-]{28}"), "a Google OAuth secret"),
    (b"gh", re.compile(rb"(?<![A-Za-z0-9_])gh[pousr]_[A-Za-z0-9]{36,255}(?![A-Za-z0-9_])"), "a GitHub token"),
    (b"github_pat_", re.compile(rb"github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}"), "a GitHub token"),
    *(
        (literal, re.compile(rb"(?<![\w-])" + literal + rb"[\w-]{20}"), "a GitLab token")
        for literal in (b"glpat-", b"gldt-", b"glrt-", b"glrtr-", b"glcbt-", b"glptt-", b"gloas-", b"glsoat-")
    ),
    (b"hf_", re.compile(rb"(?<![A-Za-z0-9_])hf_[A-Za-z0-9]{34}(?![A-Za-z0-9_])"), "a Hugging Face token"),
    (b"hf_oauth_", re.compile(rb"(?<![A-Za-z0-9_])hf_oauth_[\w.-]{40,}"), "a Hugging Face token"),
    (b"api_org_", re.compile(rb"(?<![A-Za-z0-9_])api_org_[A-Za-z0-9]{34}(?![A-Za-z0-9_])"), "a Hugging Face token"),
    (
        b"hooks.slack.com/services/",
        re.compile(rb"hooks\.slack\.com/services/T[A-Z0-9]{8,}/B[A-Z0-9]{8,}/(?!X{24})[A-Za-z0-9]{24}"),
        "a Slack webhook",
    ),
    (b"sk_live_", re.compile(rb"(?<!\w)sk_live_[A-Za-z0-9]{24,}"), "a Stripe key"),
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
    if b"BEGIN SSH2" in data and _SSH2.search(data):
        yield Secret("a private key (ssh2)")
    if b"LS0tLS1CRUdJTi" in data and any(map(_encoded_key, _ENCODED.findall(data))):
        yield Secret("a private key (in base64)")
    if b"untrusted comment:" in data and _MINISIGN.search(data):
        yield Secret("a private key (minisign)")
    if b"PuTTY-User-Key" in data and _PPK.search(data):
        yield Secret("a private key (PuTTY)")
    if b"AGE-SECRET-KEY" in data and _AGE.search(data):
        yield Secret("a private key (age)")
    if keys_only:
        return
    if b"eyJhbGciOi" in data and any(_of_a_cluster(match[1]) for match in _JWT.finditer(data)):
        yield Secret("a token of a Kubernetes service account")
    for literal, pattern, what in _TOKENS:
        if literal in data and pattern.search(data):
            yield Secret(what, literal.decode().rstrip("=") if literal != b"gh" else "gh")


def _encoded_key(text: bytes) -> bool:
    return _PEM.match(base64.b64decode(text[: len(text) // 4 * 4])) is not None


def _of_a_cluster(payload: bytes) -> bool:
    """Is a JWT one of Kubernetes? Others stand in examples of every library that reads them."""
    try:
        return b"kubernetes" in base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4))
    except binascii.Error:
        return False


# A password, or a token in the user's place; git's own user is neither.
_URL = re.compile(
    rb"https?://[^\s/:@'\"<>{}$%]*:[^\s/@'\"<>{}$]+@[\w.-]+|https?://(?!git@)(?:__token__|oauth2?|[\w.-]+)@[\w.-]+"
)


def _machine_id(data: bytes) -> str:
    return "the id of the machine that it was built on" if re.fullmatch(rb"[0-9a-f]{32}\s*", data) else ""


def _shadow(data: bytes) -> str:
    hashed = [
        line.split(b":")[0].decode(errors="replace")
        for line in data.splitlines()
        if re.match(rb"[^:]+:\$?[^*!:][^:]*\$", line)
    ]
    if hashed:
        return f"the password of {', '.join(hashed)}"
    free = re.search(rb"^([^:\s]+)::", data, re.MULTILINE)
    return f"no password for {free[1].decode(errors='replace')}, who may log in without one" if free else ""


_AUTHS = ("auth", "password", "identitytoken", "registrytoken")


def _docker(data: bytes) -> str:
    if not any(b'"' + key.encode() + b'"' in data for key in _AUTHS):
        return ""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return ""
    # `.dockercfg`, the older form, has the hosts at the top.
    auths = body.get("auths", body) if isinstance(body, dict) else None
    named = [
        str(host)
        for host, one in (auths.items() if isinstance(auths, dict) else ())
        if isinstance(one, dict) and any(isinstance(one.get(key), str) and one[key] for key in _AUTHS)
    ]
    return f"registry credentials for {', '.join(sorted(named))}" if named else ""


def _auths_anywhere(data: bytes) -> str:
    return _docker(data) if b'"auths"' in data else ""


def _netrc(data: bytes) -> str:
    plain = re.sub(rb"(^|\s)#[^\n]*", b" ", data)
    return "passwords (netrc)" if re.search(rb"\bpassword\s+\S+", plain) else ""


def _kubeconfig(data: bytes) -> str:
    # Only a client's configuration has users; what merely speaks of tokens has none.
    found = b"users" in data and re.search(
        rb"['\"]?\b(client-key-data|token|password)['\"]?\s*:\s*['\"]?(?![${])[^\s'\"]+", data
    )
    return "credentials of a cluster" if found else ""


def _der(data: bytes) -> str:
    # PKCS#8, PKCS#1 and SEC 1 begin with a sequence and a version of 0 or 1; a public key or a certificate does not.
    return (
        "a private key (DER)"
        if re.match(rb"\x30(?:\x82..|\x81.|.)\x02\x01[\x00\x01][\x30\x02\x04]", data, re.S)
        else ""
    )


def _store(data: bytes) -> str:
    pkcs12 = re.match(rb"\x30(?:\x83...|\x82..|\x81.|.)\x02\x01\x03\x30", data, re.S)
    return "a key store" if pkcs12 or data.startswith(b"\xfe\xed\xfe\xed") else ""


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
    ("*netrc", _netrc),
    ("*.netrc.*", _netrc),
    ("*.pypirc", _matching(rb"^\s*password[ \t]*[=:][ \t]*\S+", "a package index's password")),
    ("*pip.conf", _in_url("a package index's password")),
    ("*pip/pip.ini", _in_url("a package index's password")),
    ("*uv.toml", _in_url("a package index's password")),
    ("*requirements*.txt", _in_url("a package index's password")),
    ("*requirements*.in", _in_url("a package index's password")),
    ("*constraints*.txt", _in_url("a package index's password")),
    ("*pyproject.toml", _in_url("a package index's password")),
    ("*Pipfile", _in_url("a package index's password")),
    ("*Pipfile.lock", _in_url("a package index's password")),
    ("*.dist-info/direct_url.json", _in_url("a package index's password")),
    ("*pypoetry/auth.toml", _matching(rb"^\s*password[ \t]*=[ \t]*\S+", "a package index's password")),
    ("*uv/credentials/credentials.toml", _any("a package index's password")),
    ("*.condarc", _in_url("a channel's password")),
    ("*.git/config", _in_url("a password of a remote")),
    ("*.gitconfig", _in_url("a password of a remote")),
    ("*.git-credentials", _any("git's stored passwords")),
    ("*etc/apt/sources.list*", _in_url("a repository's password")),
    ("*etc/apt/auth.conf*", _matching(rb"\bpassword\s+\S+", "a repository's password")),
    ("*.json", _auths_anywhere),
    ("*.dockerconfigjson", _docker),
    ("*.dockercfg", _docker),
    ("*.aws/credentials", _matching(rb"aws_secret_access_key[ \t]*=[ \t]*\S+", "AWS credentials")),
    ("*application_default_credentials.json", _matching(rb'"(refresh_token|private_key)"\s*:\s*"[^"]+"', "Google key")),
    ("*gcloud/credentials.db", _any("Google credentials")),
    ("*gcloud/access_tokens.db", _any("Google credentials")),
    ("*gcloud/legacy_credentials/*", _any("Google credentials")),
    ("*.boto", _matching(rb"^\s*(aws_secret_access_key|gs_oauth2_refresh_token)[ \t]*=[ \t]*\S+", "cloud credentials")),
    ("*.s3cfg", _matching(rb"^\s*secret_key[ \t]*=[ \t]*\S+", "cloud credentials")),
    ("*rclone.conf", _matching(rb"^\s*(secret\w*_key|client_secret|token|pass)[ \t]*=[ \t]*\S", "cloud credentials")),
    ("*.azure/accessTokens.json", _any("Azure credentials")),
    ("*.azure/msal_token_cache.*", _any("Azure credentials")),
    ("*huggingface/token", _any("a Hugging Face token")),
    ("*huggingface/stored_tokens", _any("Hugging Face tokens")),
    ("*.huggingface/token", _any("a Hugging Face token")),
    ("*.kube/*", _kubeconfig),
    ("*kubeconfig", _kubeconfig),
    ("*kubeconfig.y*ml", _kubeconfig),
    ("*kubeconfig.json", _kubeconfig),
    ("*.kubeconfig", _kubeconfig),
    ("*etc/kubernetes/*.conf", _kubeconfig),
    ("*etc/rancher/*.yaml", _kubeconfig),
    ("*serviceaccount/token", _any("a token of a Kubernetes service account")),
    ("*.npmrc", _matching(rb"_(authToken|password|auth)[ \t]*=[ \t]*['\"]?(?![$'\"])\S+", "an npm registry's token")),
    ("*.yarnrc.yml", _matching(rb"npmAuth(Token|Ident):\s*['\"]?(?![$'\"])\S+", "an npm registry's token")),
    ("*.cargo/credentials*", _matching(rb"^\s*token[ \t]*=[ \t]*\S+", "a crate registry's token")),
    ("*.m2/settings.xml", _matching(rb"<password>(?!\$)[^<]+</password>", "a Maven repository's password")),
    ("*.kaggle/kaggle.json", _matching(rb'"key"\s*:\s*"\w+"', "a Kaggle key")),
    ("*wandb/settings", _matching(rb"^\s*api_key[ \t]*=[ \t]*\S+", "a Weights & Biases key")),
    ("*.ngc/config", _matching(rb"^\s*apikey[ \t]*=[ \t]*\S+", "an NVIDIA API key")),
    ("*credentials.tfrc.json", _matching(rb'"token"\s*:\s*"[^"]+"', "a Terraform token")),
    (
        "*/.env",
        _matching(
            rb"^\s*(export\s+)?\w*(secret|passw(or)?d|token|api_?key|access_?key)[ \t]*=[ \t]*['\"]?(?![$<'\"])\S{6,}",
            "secret values (.env)",
        ),
    ),
    ("*.gnupg/private-keys-v1.d/*", _any("a private key (GnuPG)")),
    ("*.gnupg/secring.gpg", _any("a private key (GnuPG)")),
    ("*munge/munge.key", _any("munge's key, by which the nodes of a Slurm cluster trust each other")),
    ("*wireguard/*.conf", _matching(rb"^\s*PrivateKey[ \t]*=[ \t]*\S+", "a private key (WireGuard)")),
    ("*.key", _der),
    ("*.der", _der),
    ("*.p8", _der),
    ("*.pk8", _der),
    ("*.p12", _store),
    ("*.pfx", _store),
    ("*.jks", _store),
    ("*.config/gh/hosts.yml", _matching(rb"oauth_token:\s*\S+", "a GitHub token")),
    ("*.ssh/id_*", _ssh_key),
    ("*etc/ssh/ssh_host_*_key", _any("an SSH host key: every container of the image would have the same")),
    ("*krb5.keytab", _any("a Kerberos keytab")),
    ("*.vault-token", _any("a Vault token")),
    ("*.pgpass", _any("PostgreSQL passwords")),
    ("*.my.cnf", _matching(rb"^\s*password[ \t]*=[ \t]*\S+", "a MySQL password")),
    ("*etc/machine-id", _machine_id),
    ("*var/lib/dbus/machine-id", _machine_id),
    ("etc/shadow*", _shadow),
    ("etc/passwd*", _shadow),
    ("*.bash_history", _any("what somebody typed (shell history)")),
    ("*.python_history", _any("what somebody typed (Python history)")),
)  # fmt: skip


# One expression for all of them: it is asked for each of a hundred thousand files.
_WANTED = re.compile("|".join(translate(pattern) for pattern, _look in _PATHS))


def wants_content(path: str) -> bool:
    """Whether the file's name alone makes its content worth a look."""
    return _WANTED.match(path) is not None


def in_file(path: str, data: bytes) -> Iterator[Secret]:
    """What a file of that name keeps, by what is in it."""
    for pattern, look in _PATHS:
        if fnmatchcase(path, pattern):
            what = look(data)
            if what:
                yield Secret(what)


_NAME = re.compile(
    r"secret|passw(or)?d|passphrase|_pwd$|token(?!iz)|api_?key|access_?key|credential|private_?key|_pat$", re.IGNORECASE
)
# What is said about a secret is none: where it lies, how long it may be.
_ABOUT = re.compile(
    r"_(file|path|dir|parallelism|length|len|limit|min|max|count|size|ttl|timeout|expiry|name|type|prefix)$|"
    r"(min|max)_\w*tokens$|_tokens_\w+$",
    re.IGNORECASE,
)
_HARMLESS = re.compile(r"^(|/.*|true|false|0|1|none|.*_?file|\$\{?\w+\}?)$", re.IGNORECASE)
_BUILD_ARGUMENT = re.compile(r"(\w+)=([^\s|&;]{8,})")


def _speaks_of_a_secret(name: str) -> bool:
    return bool(_NAME.search(name)) and not _ABOUT.search(name)


def in_environment(name: str, value: str) -> Iterator[Secret]:
    """A variable of the image's configuration, which every container and everyone who inspects the image sees."""
    found = list(in_bytes(value.encode()))
    yield from found
    if not found and _speaks_of_a_secret(name) and not _HARMLESS.match(value):
        yield Secret("a value that its name calls secret")
    elif not found and _URL.search(value.encode()):
        yield Secret("a password in a URL")


def in_history(line: str) -> Iterator[Secret]:
    """A line of the image's history: build arguments stay in it for good."""
    found = list(in_bytes(line.encode()))
    yield from found
    if not found:
        for match in _BUILD_ARGUMENT.finditer(line):
            if _speaks_of_a_secret(match[1]) and not _HARMLESS.match(match[2]):
                yield Secret(f"the build argument {match[1]}")
