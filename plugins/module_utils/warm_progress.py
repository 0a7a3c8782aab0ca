"""Whether a pull still moves, and what a pull that failed died of. Pure."""

from __future__ import annotations

import re
from collections import deque

from ansible_collections.myriad.gpu.plugins.module_utils.warm_disk import size_text


class Progress:
    """Judges a pull by what it moves, not by the clock: a slow pull of 20 GB lives, one that stands still does not.

    Args:
        size: bytes that have to move in all (fetched and unpacked).
        stall_s: the time over which it is judged.
        least_rate: bytes a second that it has to move on average over that time. A pull therefore never takes longer
            than size / least_rate + stall_s: the deadline follows from the size.
    """

    def __init__(self, size, stall_s, least_rate):
        self.size = size
        self.stall_s = stall_s
        self.least_rate = least_rate
        self.moved = 0
        self.began = None
        self._seen = deque()

    @property
    def deadline_s(self):
        """The longest that it can take."""
        return self.size / self.least_rate + self.stall_s

    def see(self, now, moved):
        """It has moved so many bytes by now. Returns why it is given up, or "" while it lives."""
        if self.began is None:
            self.began = now
            self._seen.append((now, 0))
        # A blob that is committed leaves its temporary folder for a moment: what was moved stays moved.
        self.moved = max(self.moved, moved)
        self._seen.append((now, self.moved))
        while len(self._seen) > 1 and self._seen[1][0] <= now - self.stall_s:
            self._seen.popleft()
        since, before = self._seen[0]
        if now - since >= self.stall_s and self.moved - before < self.least_rate * self.stall_s:
            gained = self.moved - before
            what = "nothing moved" if not gained else f"only {size_text(gained)} moved"
            return (
                f"{what} in {now - since:.0f} s ({size_text(self.moved)} of {size_text(self.size)} were done); "
                f"at least {size_text(int(self.least_rate))}/s are asked for"
            )
        return ""


# What a pull that failed was about. The first that matches.
CAUSES = (
    ("runtime", r"containerd\.sock|c\.sock|transport is closing|error reading from server: EOF|connection error: desc"
                r"|server is not responding|Cannot connect to the Docker daemon"),
    ("disk", r"no space left on device|disk quota exceeded"),
    ("content", r"unexpected (commit )?digest|digest mismatch|failed size validation|checksum|wrong diff id"),
    # Numbers stand alone: digests are full of them.
    ("missing", r"not found|manifest unknown|name unknown|\b404\b"),
    ("login", r"\b40[13]\b|unauthorized|authentication required|denied"),
    ("registry", r"refused|no such host|i/o timeout|timeout|TLS|x509|certificate|EOF|reset by peer|\b5\d\d\b|\b429\b"
                 r"|too many requests|unreachable|failed to do request|failed to resolve"),
)  # fmt: skip
WORDS = {
    "runtime": "the container runtime went away in mid-pull",
    "disk": "the disk ran full",
    "content": "what came is not what the digest names",
    "missing": "the registry does not have it (a site run fills it from the bundle)",
    "login": "the registry wants other credentials",
    "registry": "the registry did not serve it",
    "other": "the pull failed",
}
# With these another registry is worth a try.
ELSEWHERE = frozenset({"missing", "login", "registry", "content", "stalled"})


def cause_of(text):
    """What a pull died of: a key of `WORDS`."""
    for cause, pattern in CAUSES:
        if re.search(pattern, text, re.IGNORECASE | re.DOTALL):
            return cause
    return "other"


def last_words(text, most=300):
    """The end of what a program said, in one line, without the drawing of its progress."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    lines = [line.strip() for line in plain.splitlines() if re.search(r"ctr:|rror|fatal|failed", line)]
    lines = lines or [line.strip() for line in plain.splitlines() if line.strip()]
    return " ".join(lines[-2:])[-most:]
