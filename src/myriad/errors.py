"""The exceptions that a person sees, each with what happened, where, and what to do next."""

from __future__ import annotations


class MyriadError(Exception):
    """Something failed. Ends a verb with exit code 2.

    Args:
        message: what happened, as a sentence.
        where: the file, host, key or object it happened at.
        hint: what to do next.
    """

    exit_code = 2

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}\n  {self.hint}" if self.hint else text


class InputError(MyriadError):
    """The description, a flag or a file given by the user is wrong. Exit code 1."""

    exit_code = 1


class UnreachableError(MyriadError):
    """Some hosts could not be reached while the rest converged. Exit code 3."""

    exit_code = 3


class NotReadyError(MyriadError):
    """Converged, but some nodes do not take work. Exit code 4."""

    exit_code = 4
