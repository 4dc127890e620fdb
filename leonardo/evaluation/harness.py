"""What an evaluation in our harness is pinned to."""

from dataclasses import asdict, replace
from typing import Any

from leonardo.files import digest_of
from leonardo.rollout.episode import EpisodeSettings
from leonardo.rollout.prompts import BASH_TOOL, FORMAT_ERROR, SYSTEM_PROMPT

EVALUATION_SEED = 20_000


def harness_digest(settings: EpisodeSettings) -> str:
    """Names prompts, tool and the bounds of an episode; how many run at once does not decide an outcome."""
    bounds = asdict(replace(settings, live=0, threads=0))
    return digest_of([SYSTEM_PROMPT, BASH_TOOL, FORMAT_ERROR, bounds])


def evaluation_pins(
    settings: EpisodeSettings, *, driver: str, assets: str, temperature: float = 1.0, top_p: float = 1.0
) -> dict[str, Any]:
    """The pins of an evaluation in our harness; ``assets`` names the prepared states."""
    return {
        "driver": driver,
        "sampling": {"temperature": temperature, "top_p": top_p, "max_turn_tokens": settings.turn_tokens},
        "limits": {
            "turns": settings.steps,
            "context_tokens": settings.context_tokens,
            "command_timeout": settings.command_timeout,
            "verifier_timeout": settings.verifier_timeout,
        },
        "harness": harness_digest(settings),
        "assets": assets,
    }
