"""Every setting of the desk engine with its reason. What was measured, was measured on two cores of a laptop class."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from leonardo.engine.desk.faults import Faults
from leonardo.errors import InputError
from leonardo.rollout.episode import EpisodeSettings

Divergence = Literal["tv", "kl"]
"""Measure of a token's trust region: total variation, or Kullback-Leibler in nats."""


@dataclass(frozen=True)
class PolicyShape:
    """The tiny policy: the reference architecture (Qwen3.5's text model), two layers of it.

    Attributes:
        hidden_size, intermediate_size: 0.5 M parameters in all; a step of 32 short sequences takes 0.15 s.
        layers: one linear and one full attention layer, the least that makes the model hybrid. The short convolution of
            the first tells each word what stands before it, which lets the second find what to copy.
        heads: of the full attention, each with keys of its own. With two heads copying is found late or never within
            the budget, with four on every seed tried.
        head_dim: 64, because vLLM's CPU build refuses 16 and 32.
        linear_heads, linear_head_dim: of the linear attention; a small state keeps its PyTorch form fast.
        vocabulary: at most; the desk corpus fills about a thousand.
        positions: longest conversation.
    """

    hidden_size: int = 128
    intermediate_size: int = 256
    layers: tuple[str, ...] = ("linear_attention", "full_attention")
    heads: int = 4
    head_dim: int = 64
    linear_heads: int = 2
    linear_head_dim: int = 32
    vocabulary: int = 1500
    positions: int = 2048


@dataclass(frozen=True)
class WarmStartConfig:
    """Supervised training, from nothing or a pretrained model, on demonstrations that are right, partial or wrong.

    Attributes:
        shape: of a policy that is made from nothing.
        right, partial: shares of such demonstrations, the rest is wrong. They decide how often the warm-started policy
            succeeds: it imitates all of them alike, and reinforcement learning has to find out which are good.
        demonstrations: a prepared task; each is run in a real sandbox for its observations.
        whole_share: share of whole demonstrations among batches; the others hold the first turn alone, of tasks that
            were never prepared: they need no observation, cost nothing to make and teach copying.
        steps, batch: 32 sequences a step; a step takes 0.15 s.
        matrix_learning_rate: of Muon, for the matrices; it needs a third of AdamW's steps here.
            0: AdamW trains them too.
        other_learning_rate: of AdamW, for embeddings, norms and scales; twice the former finds copying soonest.
        decay_from: share of the steps after which the rates fall linearly.
        right_only: share of the steps, at the start, that see right demonstrations alone.
        data_seed: decides which demonstrations there are, so that runs with different seeds share them.
    """

    shape: PolicyShape = field(default_factory=PolicyShape)
    right: float = 0.4
    partial: float = 0.15
    demonstrations: int = 2
    whole_share: float = 0.4
    steps: int = 600
    batch: int = 32
    matrix_learning_rate: float = 1e-2
    other_learning_rate: float = 2e-2
    weight_decay: float = 0.01
    gradient_limit: float = 1.0
    warm_up: int = 20
    decay_from: float = 0.5
    right_only: float = 0.4
    data_seed: int = 0
    episode: EpisodeSettings = field(default_factory=EpisodeSettings)


@dataclass(frozen=True)
class LearnerConfig:
    """DPPO on the desk.

    Attributes:
        steps: learner steps.
        groups, group_size: prompts a round of sampling, and rollouts of each.
        wanted_groups: groups with variance that a step waits for; ``rounds`` bounds the waiting.
        threshold, divergence: radius of the trust region and its measure, total variation (``tv``, reference: 0.1) or
            Kullback-Leibler (``kl``).
        passes, minibatches: over a step's rollouts; with several updates a step the policy leaves the rollout policy,
            which is what the trust region is for.
        learning_rate: of AdamW, without decay of weights: a step must move the policy far, there are few.
        micro_batch: sequences of one forward pass.
        checkpoint_every: steps between checkpoints to resume from; 0 writes none. The desk policy's has 6.5 MB.
        faults: injected on purpose, in control runs only.
    """

    steps: int = 16
    groups: int = 16
    group_size: int = 8
    wanted_groups: int = 8
    rounds: int = 2
    threshold: float = 0.1
    divergence: Divergence = "tv"
    passes: int = 1
    minibatches: int = 2
    learning_rate: float = 2e-3
    warm_up: int = 1
    gradient_limit: float = 1.0
    micro_batch: int = 64
    checkpoint_every: int = 1
    faults: Faults = field(default_factory=Faults)
    episode: EpisodeSettings = field(default_factory=EpisodeSettings)

    def __post_init__(self) -> None:
        if self.divergence not in get_args(Divergence):
            raise InputError(f"divergence {self.divergence!r} is unknown", f"Known: {', '.join(get_args(Divergence))}")


def settings_of(config: Any) -> dict[str, Any]:
    """A config as a JSON object."""
    return asdict(config)
