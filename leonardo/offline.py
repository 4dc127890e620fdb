"""Libraries that would ask a hub, or draw bars beside ours, are told not to: nothing of a hub is needed here."""

import os


def stay_local() -> None:
    """Set this before they are imported; what a person has set stands."""
    for name, value in {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}.items():
        os.environ.setdefault(name, value)
