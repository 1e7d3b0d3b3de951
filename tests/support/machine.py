"""What state machines have in common: they count steps, and clean up after faults."""

from __future__ import annotations

import sys

from hypothesis.stateful import RuleBasedStateMachine

__all__ = ["Machine"]


class Machine(RuleBasedStateMachine):
    """A state machine whose classes know when a law was first broken.

    Its first rule calls `begun` as soon as there is something to clean up, and one
    invariant calls `stepped`.
    """

    steps: int = 0
    """How many steps all machines of this class have taken."""
    caught: int | None = None
    """How many those were when a law was first broken."""

    def begun(self) -> None:
        """From now on `teardown` cleans up."""
        self.outside = sys.exception()

    def stepped(self) -> None:
        """Count a step."""
        type(self).steps += 1

    def end(self) -> None:
        """Check everything a last time; raises where a law is broken."""

    def abandon(self) -> None:
        """Prepare for what the traceback of a broken law keeps alive."""

    def leave(self) -> None:
        """Clean up, whatever happened."""

    def teardown(self) -> None:
        """Look for what is left, unless a law was broken before; clean up."""
        if not hasattr(self, "outside"):
            return
        error = sys.exception()
        # Hypothesis ends a run that draws too much with what is no `Exception`.
        broken = isinstance(error, Exception) and error is not self.outside
        try:
            if not broken:
                broken = True
                self.end()
                broken = False
        finally:
            if broken:
                self.abandon()
                if type(self).caught is None:
                    type(self).caught = self.steps
            self.leave()
