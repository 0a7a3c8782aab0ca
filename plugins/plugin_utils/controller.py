"""What action plugins that work on the controller begin with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleActionFail

if TYPE_CHECKING:
    from myriad.errors import MyriadError


def errors_of_myriad() -> type[MyriadError]:
    """The exception whose text is a sentence for people. Where the package is missing, that is the sentence."""
    try:
        from myriad.errors import MyriadError
    except ImportError as error:
        raise AnsibleActionFail(
            f"The Python package myriad cannot be imported on the controller: {error}. "
            "Run ansible-playbook from the environment that `make lab` or `pip install myriad` made."
        ) from error
    return MyriadError


@contextmanager
def told_by_myriad() -> Iterator[None]:
    """What fails inside with a sentence of Myriad's fails the task with that sentence."""
    failure = errors_of_myriad()
    try:
        yield
    except failure as error:
        # Without the chain, which ansible would print a second time.
        raise AnsibleActionFail(str(error)) from None


@contextmanager
def told_of_a_host(result: dict[str, Any]) -> Iterator[None]:
    """`told_by_myriad`, where a host that does not come back makes the task's result unreachable, Ansible's word for a
    host that is gone: the others are done, this one is not (exit code 3)."""
    with told_by_myriad():
        from myriad.kube.reboot import NotBackError

        try:
            yield
        except NotBackError as error:
            result.update(unreachable=True, msg=str(error))
