"""`python -m myriad.agent`: looks at one node, publishes its portrait, keeps its labels and its gate true."""

from __future__ import annotations

import logging
import signal
import sys
import threading

from myriad.agent.loop import Agent
from myriad.agent.settings import Settings
from myriad.errors import MyriadError
from myriad.kube.client import connect


def main() -> int:
    """Entry point."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    for noisy in ("httpx", "httpcore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        settings = Settings.from_env()
        agent = Agent(connect(), settings)
    except MyriadError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    if settings.metrics_port:
        agent.metrics.serve(settings.metrics_port)
    stop = threading.Event()
    worker = threading.Thread(target=agent.run, args=(stop,), name="agent")
    worker.start()
    while worker.is_alive() and signal.sigtimedwait(ends, 0.5) is None:
        pass
    died = not worker.is_alive()
    stop.set()
    # The gate stays as it is: another agent takes over, or the node goes with this one.
    agent.changed.set()
    worker.join()
    return 2 if died else 0


if __name__ == "__main__":
    sys.exit(main())
