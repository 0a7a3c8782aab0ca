"""What one value of the description may be: validators that refuse with a sentence which reads on from the key
(`is -8; a quota is 0 or more GPUs`)."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError

from myriad.fleet import names


class Part(BaseModel):
    """A part of the description: frozen, and without keys that nobody knows."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def refuse(message: str) -> PydanticCustomError:
    """The error that becomes a sentence about the key."""
    # Braces would be read as fields of the template; they never stand in our sentences but may in the user's text.
    return PydanticCustomError("description", "{sentence}", {"sentence": message})


def whole(what: str, *, low: int, high: int) -> Callable[[Any], int]:
    """A whole number from `low` to `high`; `what` says so in words."""

    def check(value: Any) -> int:
        if isinstance(value, str) and value.strip().lstrip("-").isdigit():
            raise refuse(f"is the text {names.show(value)}; write the number without quotes")
        if isinstance(value, float):
            raise refuse(f"is {names.show(value)}; {what}, in whole numbers")
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise refuse(f"is {names.show(value)}; {what}")
        return int(value)

    return check


def positive(what: str, *, most: int = 10**6) -> Callable[[Any], Fraction]:
    """A number above 0 and at most `most`, kept exactly."""

    def check(value: Any) -> Fraction:
        if isinstance(value, Fraction):
            return value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
            raise refuse(f"is {names.show(value)}; {what}")
        return Fraction(str(value))

    return check


def one_of(*allowed: str) -> Callable[[Any], Any]:
    """One of a few words."""

    def check(value: Any) -> Any:
        if value not in allowed or isinstance(value, bool):
            best = names.closest(value, allowed) if isinstance(value, str) else None
            offer = f'; did you mean "{best}"?' if best else ""
            raise refuse(f"is {names.show(value)}; allowed: {', '.join(allowed[:-1])} or {allowed[-1]}{offer}")
        return value

    return check


def text(what: str) -> Callable[[Any], str]:
    """Text that is not blank."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            raise refuse(f"is {names.show(value)}; {what}")
        return str(value)

    return check


def faultless(fault: Callable[[Any], str | None]) -> Callable[[Any], Any]:
    """Text in which `fault` finds nothing wrong."""

    def check(value: Any) -> Any:
        sentence = fault(value)
        if sentence is not None:
            raise refuse(sentence)
        return str(value)

    return check


def empty_mapping(value: Any) -> Any:
    """A key without a value is an empty mapping."""
    return {} if value is None else value


def items(what: str, default: str = "[a, b]") -> Callable[[Any], Any]:
    """A list; `default` is the example of one."""

    def check(value: Any) -> Any:
        if value is None:
            return ()
        if not isinstance(value, list | tuple):
            example = f"[{value}]" if isinstance(value, str) and "/" not in value else default
            raise refuse(f"is {names.show(value)}; write a list of {what}, for example {example}")
        return tuple(value)

    return check


def flag(value: Any) -> bool:
    """true or false."""
    if not isinstance(value, bool):
        raise refuse(f"is {names.show(value)}; write true or false")
    return value
