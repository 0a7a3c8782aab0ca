"""Names of images in registries, and the credentials that are kept for their hosts."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from myriad.errors import InputError

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# https://github.com/opencontainers/distribution-spec/blob/main/spec.md#pulling-manifests
REPO = re.compile(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*")
_HOST = re.compile(r"([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9-]+)*|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?")
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_HUB = "docker.io"


class Ref(NamedTuple):
    """An image in a registry: `host/repo:tag`, `host/repo@sha256:...`, or with both. Empty parts are not given."""

    host: str
    repo: str
    tag: str = ""
    digest: str = ""

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.host}/{self.repo}{tag}{f'@{self.digest}' if self.digest else ''}"

    @property
    def wanted(self) -> str:
        """What to ask for: the digest where there is one, else the tag."""
        return self.digest or self.tag


def parse_ref(text: str) -> Ref:
    """Read a reference; a name without a host is one of docker.io, as everywhere.

    Raises:
        InputError: it is none.
    """
    rest, at, digest = text.strip().partition("@")
    if at and not DIGEST.fullmatch(digest):
        raise InputError(f'"{text}": what follows @ is not sha256: and 64 hexadecimal digits')
    first, slash, path = rest.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        host = first
    else:
        host, path = _HUB, rest if slash else f"library/{rest}"
    repo, colon, tag = path.rpartition(":")
    if not colon:
        repo, tag = path, ""
    if not _HOST.fullmatch(host) or not REPO.fullmatch(repo) or (colon and not TAG.fullmatch(tag)):
        raise InputError(
            f'"{text}" is not the name of an image', hint="write host/repository:tag or host/repository@sha256:<digest>"
        )
    return Ref(host, repo, tag, digest)


def stored_credentials(host: str, environment: Mapping[str, str] | None = None) -> tuple[str, str] | None:
    """The user and password that `docker login` or `podman login` keeps for a registry host; None without.

    Reads `$REGISTRY_AUTH_FILE`, `$DOCKER_CONFIG/config.json`, `~/.docker/config.json`.

    Raises:
        InputError: the file cannot be read as such, or keeps them in a credential helper.
    """
    env = os.environ if environment is None else environment
    home = Path(env.get("HOME", "~")).expanduser()
    places = [
        Path(env["REGISTRY_AUTH_FILE"]) if env.get("REGISTRY_AUTH_FILE") else None,
        Path(env["DOCKER_CONFIG"]) / "config.json" if env.get("DOCKER_CONFIG") else home / ".docker" / "config.json",
    ]
    names = {host, f"https://{host}", f"http://{host}"}
    if host in (_HUB, "registry-1.docker.io"):
        names |= {_HUB, "https://index.docker.io/v1/", "index.docker.io"}
    for path in filter(None, places):
        if not path.is_file():
            continue
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            entries = value.get("auths", {})
            found = next(
                (entries[name] for name in entries if name.rstrip("/") in {one.rstrip("/") for one in names}), None
            )
            if found and found.get("auth"):
                user, colon, password = base64.b64decode(found["auth"]).decode().partition(":")
                if colon:
                    return user, password
        except (ValueError, AttributeError, TypeError, binascii.Error) as error:
            raise InputError(f"is no configuration with credentials ({error})", where=str(path)) from error
        if host in value.get("credHelpers", {}) or (found is not None and value.get("credsStore")):
            raise InputError(
                f"keeps the credentials of {host} in a credential helper, which is not asked here",
                where=str(path),
                hint="set REGISTRY_AUTH_FILE to a file with plain `auths`: `podman login --authfile FILE` writes one",
            )
    return None
