"""Who may do what in the site's registry: everybody reads the stack, a team reads and writes its own path.

Paths: `teams/<team>/...` belongs to a team; everything else is the site's, written by the publisher alone and read by
all. Passwords are made on the controller and kept in the secrets folder; registries get hashes only
(PBKDF2-HMAC-SHA256 over a password of 192 random bits, so few rounds suffice).
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from myriad.errors import InputError

USERS_FOLDER = "registry-users"
#: Writes everywhere: the controller, which fills registries from bundles.
PUBLISHER = "publisher"
TEAM_PATH = "teams"
_ROUNDS = 1000
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")


def password(folder: Path, user: str, *, make: bool = True) -> str:
    """The password of a user from the secrets folder, made where there is none.

    Args:
        folder: the site's secrets folder.
        user: `publisher`, or a team.
        make: make it; else an empty string stands for a missing one.

    Raises:
        InputError: the name cannot be one of a user, or the file is empty.
    """
    if not _NAME.fullmatch(user):
        raise InputError(f"{user!r} cannot be a user of the registry", hint="lower-case letters, digits, and . _ -")
    path = folder / USERS_FOLDER / user
    if path.is_file():
        text = path.read_text(encoding="utf-8").strip()
        if not text:
            raise InputError("is empty", where=str(path), hint="write a password into it, or remove it for a new one")
        return text
    if not make:
        return ""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    made = secrets.token_urlsafe(24)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:  # another run has just made it
        return password(folder, user)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(f"{made}\n")
    return made


def hashed(user: str, text: str) -> dict[str, Any]:
    """A password as the registry's front compares it. The salt follows from both, so that a second run is the same."""
    salt = hashlib.sha256(f"{user}\0{text}".encode()).digest()[:16]
    digest = hashlib.pbkdf2_hmac("sha256", text.encode(), salt, _ROUNDS)
    return {"salt": salt.hex(), "rounds": _ROUNDS, "hash": digest.hex()}


def access(passwords: Mapping[str, str]) -> str:
    """The access file of the registry's front: users with hashes and the paths that they read and write.

    Args:
        passwords: by user; `publisher` and teams.
    """
    users = {}
    for user, text in sorted(passwords.items()):
        own = [f"{TEAM_PATH}/{user}/"]
        everything = [""]
        paths = {"pull": everything, "push": everything} if user == PUBLISHER else {"pull": own, "push": own}
        users[user] = {**hashed(user, text), **paths}
    value = {
        # What everybody reads: all that does not belong to a team.
        "private": [f"{TEAM_PATH}/"],
        "users": users,
    }
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def pull_secret(registry: str, user: str, text: str) -> str:
    """Content of a Secret of type kubernetes.io/dockerconfigjson, in base64."""
    auth = base64.b64encode(f"{user}:{text}".encode()).decode()
    config = {"auths": {registry: {"username": user, "password": text, "auth": auth}}}
    return base64.b64encode(json.dumps(config, sort_keys=True).encode()).decode()


def pull_objects(
    registry: str, teams: Mapping[str, Iterable[str]], passwords: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Secrets for the namespaces of teams, and their default ServiceAccounts that use them.

    Args:
        registry: the name that image references carry.
        teams: namespaces by team.
        passwords: by team.
    """
    objects: list[dict[str, Any]] = []
    for team, namespaces in sorted(teams.items()):
        if not passwords.get(team):
            continue
        for namespace in namespaces:
            objects.append(
                {
                    "apiVersion": "v1",
                    "kind": "Secret",
                    "metadata": {"name": "myriad-registry", "namespace": namespace},
                    "type": "kubernetes.io/dockerconfigjson",
                    "data": {".dockerconfigjson": pull_secret(registry, team, passwords[team])},
                }
            )
            objects.append(
                {
                    "apiVersion": "v1",
                    "kind": "ServiceAccount",
                    "metadata": {"name": "default", "namespace": namespace},
                    "imagePullSecrets": [{"name": "myriad-registry"}],
                }
            )
    return objects
