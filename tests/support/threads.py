"""Jobs that threads do at once, and whose errors are the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["in_threads"]


def in_threads(*jobs: Callable[[], object], seconds: float = 60.0) -> None:
    """Run jobs at once; raise what they raise, and fail where one never ends."""
    errors: list[BaseException] = []
    ready = threading.Barrier(len(jobs))

    def run(job: Callable[[], object]) -> None:
        try:
            ready.wait(seconds)
            job()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for each in threads:
        each.start()
    for each in threads:
        each.join(seconds)
        assert not each.is_alive(), "waits for ever"
    if errors:
        raise errors.pop(0)
