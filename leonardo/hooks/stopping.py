"""A run that is asked to stop ends after the step that it is in, and that step's state is saved.

Whoever runs the trainer asks by making the file that a variable names, and waits for the end. Not heeded in the last
step, whose end is the run's: upstream cannot go on from a state that has no step left. Nor where no state is saved.
"""

import os
import sys
from pathlib import Path
from typing import Any

from leonardo.hooks.shutdown import end_as_asked
from leonardo.hooks.step_records import flush_records

STOP = "LEONARDO_STOP"
"""Names the file that is there once the run is to stop; it is looked for where the driver runs."""


def save_if_asked(args: Any, step: int) -> None:
    """Have the state of ``step`` saved if the run is asked to stop, however often states are saved else.

    The step's record is written first. Records that are ahead of the state are dropped when the run is gone on with;
    one that is missing would never be made.

    Args:
        args: upstream's configuration of the run; ``checkpoint_state_freq`` is changed.
        step: that was made, from 1.
    """
    if _asked(args, step):
        flush_records()
        args.checkpoint_state_freq = 1


def end_if_saved(args: Any, step: int) -> None:
    """End as on SIGTERM if the run is asked to stop and the state of ``step`` was saved. To be called after that."""
    if _asked(args, step) and args.checkpoint_state_freq > 0 and step % args.checkpoint_state_freq == 0:
        print(f"leonardo: asked to stop: the state of step {step} is saved, the run ends", file=sys.stderr, flush=True)
        end_as_asked()


def _asked(args: Any, step: int) -> bool:
    if args.checkpoint_state_dir is None or step >= args.num_training_steps:
        return False
    file = os.environ.get(STOP)
    return bool(file and Path(file).exists())
