"""Faults for a run of the trainer: loaded by every process of it, by Python itself.

``LEONARDO_TEST_FAULT`` says which: ``reset:SHARE`` lets so many resets fail at random, ``task:SHARE`` lets every reset
of so many of the prepared states fail.
"""

import os
import random

kind, _, share = os.environ.get("LEONARDO_TEST_FAULT", "").partition(":")
if kind in ("reset", "task"):
    from leonardo.errors import InfrastructureError
    from leonardo.hooks import sandbox

    start = sandbox.PreparedBackend.start

    def start_or_fail(self: sandbox.PreparedBackend) -> None:
        drawn = random.random() if kind == "reset" else random.Random(self._image).random()
        if drawn < float(share):
            raise InfrastructureError("a fault that the test put here")
        start(self)

    sandbox.PreparedBackend.start = start_or_fail  # type: ignore[method-assign]
