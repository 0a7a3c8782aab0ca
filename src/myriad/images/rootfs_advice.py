"""What to do when mmdebstrap fails, from its last lines. Pure."""

from __future__ import annotations

from collections.abc import Iterable

KEYRING_HINT = "apt-get install debian-archive-keyring (it is in Debian and in Ubuntu), or name another keyring"
_MODE = ("unable to pick chroot mode", "newuidmap", "newgidmap", "/etc/subuid", "/etc/subgid", "unshare(CLONE_NEWUSER)")
_SIGNATURE = ("NO_PUBKEY", "is not signed", "EXPKEYSIG", "signatures couldn't be verified", "signatures were invalid")


def advice(lines: Iterable[str], *, user: str) -> str:
    """What to do next, as a phrase.

    Args:
        lines: the last lines that mmdebstrap printed.
        user: who ran it.
    """
    told = "\n".join(lines)
    if any(word in told for word in _MODE):
        # https://manpages.debian.org/bookworm/mmdebstrap/mmdebstrap.1.en.html, "unshare": without root it needs a range
        # of ids of its own, and the kernel's leave for namespaces (Debian's and Ubuntu's switches).
        return (
            f"without root it needs the package uidmap (apt-get install uidmap) and a range of ids for {user} in "
            f"/etc/subuid and /etc/subgid (usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}); "
            "where that is there, the kernel forbids user namespaces (kernel.unprivileged_userns_clone, or Ubuntu's "
            "kernel.apparmor_restrict_unprivileged_userns); or run it as root"
        )
    if "No space left on device" in told:
        return "make room where TMPDIR and the cache lie: it unpacks there before it writes the tar"
    if any(word in told for word in _SIGNATURE):
        return f"the archive's signature cannot be verified: {KEYRING_HINT}"
    return f"look at the log; unreachable mirrors are set by apt_sources, a missing signature by {KEYRING_HINT}"
