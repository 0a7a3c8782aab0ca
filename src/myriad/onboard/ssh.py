"""Asks many machines at once what they are: the probe goes in by standard input, so nothing is left on them."""

from __future__ import annotations

import ipaddress
import json
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from myriad.errors import InputError, MyriadError
from myriad.inventory_ranges import expand
from myriad.onboard.describe import Login
from myriad.onboard.facts import HostFacts, read_facts

PROBE = Path(__file__).with_name("probe.py")
_CONNECT_S = 10
_ANSWER_S = 60
_AT_ONCE = 50
# What a shell, ssh or a file of YAML would take for something else than a user or a host is neither.
USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
"""Names of accounts."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class Target:
    """One host as it was asked for.

    Attributes:
        host: name in lower case, or address in its shortest form.
        user: who logs in.
    """

    host: str
    user: str


@dataclass(frozen=True, slots=True)
class Silent:
    """A host that did not say what it is, and why, with what to do."""

    host: str
    why: str


def read_targets(text: str, user: str) -> list[Target]:
    """`gpu[1:8],root@10.0.0.6,[2001:db8::5]` as targets.

    Raises:
        InputError: nothing is named, something is no host, or a host is named twice.
    """
    found: list[Target] = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        before, at, host = word.rpartition("@")
        if at and USER.fullmatch(before) is None:
            raise _no_host(word)
        found += [Target(one, before or user) for one in _hosts(host, word)]
    twice = [host for host, count in Counter(target.host for target in found).items() if count > 1]
    if twice:
        raise InputError(f"{', '.join(twice)} is named twice", where="--hosts", hint="name each machine once")
    if not found:
        raise InputError("names no host", where="--hosts", hint="for example --hosts 10.0.0.5,10.0.0.6")
    return found


def hosts_of(text: str) -> tuple[str, ...]:
    """Hosts of another flag (`--control-plane`), written as in `read_targets`, each once."""
    return tuple(dict.fromkeys(target.host for target in read_targets(text, "root"))) if text.strip(" ,") else ()


def _hosts(text: str, word: str) -> list[str]:
    """The hosts of one word, as they are compared and asked: addresses in their shortest form, names in lower case."""
    inside = text[1:-1] if text.startswith("[") and text.endswith("]") and text.count(":") > 1 else text
    try:
        return [_address(inside)]
    except ValueError:
        pass
    name, colon, port = text.rpartition(":")
    if colon and port.isdecimal() and (":" not in name or "[" in name):
        raise InputError(
            f'"{word}" names a port', where="--hosts", hint=f"--port {port} says it for all; hosts stand alone: {name}"
        )
    if "[" in text:
        try:
            return [one for host in expand(text) for one in _hosts(host, word)]
        except ValueError as error:
            raise InputError(f'"{word}" {error}', where="--hosts") from error
    if re.fullmatch(r"[0-9]+(\.[0-9]+)+", text):
        raise InputError(f'"{word}" is no IPv4 address', where="--hosts", hint="four numbers from 0 to 255")
    if _NAME.fullmatch(text) is None:
        raise _no_host(word)
    return [text.lower()]


def _address(text: str) -> str:
    """An IP address in its shortest form. Raises ValueError for anything else."""
    address = ipaddress.ip_address(text)
    if address.version == 6 and (address.scope_id or address.is_link_local):
        raise InputError(
            f"{text} is valid behind one interface only, and no other machine reaches it there",
            where="--hosts",
            hint="give the host's address in the network, or its name",
        )
    return str(address)


def _no_host(word: str) -> InputError:
    return InputError(
        f'"{word}" is not a host',
        where="--hosts",
        hint="write names or addresses with commas: 10.0.0.5,10.0.0.6, or ranges: gpu[001:128]",
    )


def ask(targets: Sequence[Target], login: Login, *, sysfs: str = "/sys") -> tuple[list[HostFacts], list[Silent]]:
    """Probe all targets side by side; a dead one costs one timeout for all.

    Args:
        targets: whom.
        login: port, key and options of ssh; who logs in stands with each target.
        sysfs: where the hosts' sysfs stands.

    Returns:
        Facts of those that answered, in the order of the targets, and why the others did not.
    """
    source = PROBE.read_bytes()
    with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(targets))) as pool:
        answers = list(pool.map(lambda target: _ask_one(target, login, source, sysfs), targets))
    return [a for a in answers if isinstance(a, HostFacts)], [a for a in answers if isinstance(a, Silent)]


def command(target: Target, login: Login, *, sysfs: str = "/sys") -> list[str]:
    """The ssh command for one target: never a question, since nobody would see it."""
    words = ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_S}", "-o", "ServerAliveInterval=5"]
    words += ["-p", str(login.port)] if login.port != 22 else []
    words += ["-i", login.key, "-o", "IdentitiesOnly=yes"] if login.key else []
    for option in login.options:
        words += ["-o", option]
    # The remote shell splits what it is given; the probe's options are ours but for the path.
    quoted = "'" + sysfs.replace("'", "'\\''") + "'"
    return [*words, "-l", target.user, target.host, f"python3 - --sysfs {quoted}"]


def _ask_one(target: Target, login: Login, source: bytes, sysfs: str) -> HostFacts | Silent:
    try:
        done = subprocess.run(
            command(target, login, sysfs=sysfs), input=source, capture_output=True, timeout=_ANSWER_S, check=False
        )
    except FileNotFoundError as error:
        raise MyriadError("there is no ssh on this machine", hint="apt-get install openssh-client") from error
    except subprocess.TimeoutExpired:
        return Silent(target.host, f"logged in, and said nothing for {_ANSWER_S} s: look at the machine itself")
    said = done.stderr.decode(errors="replace")
    if done.returncode:
        return Silent(target.host, reason(target, done.returncode, said))
    try:
        # A login script may have printed before.
        return read_facts(target.host, json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        text = " ".join(done.stdout.decode(errors="replace").split())[:120]
        return Silent(
            target.host, f'answered "{text}" instead of the probe: does the account of {target.user} have a shell?'
        )
    except MyriadError as error:
        return Silent(target.host, error.message)


def reason(target: Target, code: int, said: str) -> str:
    """Why ssh or the probe failed, as a sentence that ends with what to do. Pure."""
    last = " ".join((said.strip().splitlines() or [""])[-1].split())[:200]
    at = f"{target.user}@{target.host}"
    if code == 255:
        lower = said.lower()
        if "remote host identification has changed" in lower:
            return (
                "its host key is not the one that is known here: it was installed anew, or somebody else answers. "
                f"Where you know why: ssh-keygen -R {target.host}"
            )
        if "host key verification failed" in lower:
            return f"its host key is not known here: `ssh {at}` once, and compare the key that it shows"
        if "permission denied" in lower:
            return f"lets nobody in as {target.user} with the keys at hand: `ssh-copy-id {at}`, or give --key or --user"
        if "could not resolve" in lower:
            return "its name is not known here: give the address"
        if "refused" in lower:
            return f"refuses ssh ({last}): is sshd running, on this port?"
        if "timed out" in lower or "no route" in lower or "unreachable" in lower:
            return f"does not answer ({last}): is it on, and does this machine reach it?"
        return f"ssh gave up ({last or 'without a word'}): `ssh {at}` shows more"
    if code == 127:
        return "has no python3: on Debian and Ubuntu `apt-get install python3`; other systems are not supported"
    return f"the probe failed ({last or f'exit code {code}'})"
