"""DPPO in NumPy, float64, token by token: written from the equations of arXiv 2602.04879, and from nothing else.

With mu the rollout policy, pi the learner's, r = pi / mu and A the advantage of a sampled token:

- Eq. 13: D_tv = |mu - pi|.
- Eq. 14: D_kl = mu log(mu / pi) + (1 - mu) log((1 - mu) / (1 - pi)), where 0 log 0 is 0.
- Eq. 12: M = 0 if D > threshold and (A > 0 and r > 1, or A < 0 and r < 1), else 1.
- Eq. 11: the loss is the mean of -M r A over the response tokens; its gradient in log pi is -M r A over their number.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Reference:
    """Of a batch.

    Attributes:
        loss: scalar.
        gradient: of the loss in log pi, [batch, length]; 0 outside the response.
        keep: M, [batch, length]; False outside the response.
        divergence: [batch, length]; 0 outside the response.
        masked: share of response tokens with M = 0.
    """

    loss: float
    gradient: Array
    keep: NDArray[np.bool_]
    divergence: Array
    masked: float


def reference(
    policy: Array, rollout: Array, advantages: Array, response: NDArray[np.bool_], threshold: float, kind: str = "tv"
) -> Reference:
    """The reference for log-probabilities ``policy`` and ``rollout`` [batch, length], ``advantages`` [batch, 1]."""
    gradient, divergence = np.zeros(policy.shape), np.zeros(policy.shape)
    keep = np.zeros(policy.shape, dtype=bool)
    count, total = int(response.sum()), []
    for row, column in zip(*np.nonzero(response), strict=True):
        log_pi, log_mu, advantage = policy[row, column], rollout[row, column], advantages[row, 0]
        distance = _tv(log_pi, log_mu) if kind == "tv" else _kl(log_pi, log_mu)
        away = (advantage > 0 and log_pi > log_mu) or (advantage < 0 and log_pi < log_mu)
        divergence[row, column] = distance
        keep[row, column] = not (away and distance > threshold)
        if keep[row, column] and advantage != 0:
            total.append(-_exp(log_pi - log_mu) * advantage)
            gradient[row, column] = total[-1] / count
    return Reference(math.fsum(total) / count, gradient, keep, divergence, 1 - keep.sum() / count)


def _exp(value: float) -> float:
    return math.inf if value > 709.7 else math.exp(value)


def _tv(log_pi: float, log_mu: float) -> float:
    return abs(math.exp(log_pi) - math.exp(log_mu))


def _kl(log_pi: float, log_mu: float) -> float:
    pi, mu = math.exp(log_pi), math.exp(log_mu)
    return _part(mu, pi) + _part(-math.expm1(log_mu), -math.expm1(log_pi))


def _part(of: float, to: float) -> float:
    if of == 0:
        return 0.0
    return math.inf if to == 0 else of * (math.log(of) - math.log(to))


def random_case(seed: int, rows: int = 5, columns: int = 9, spread: float = 0.7) -> tuple[Array, Array, Array, Array]:
    """log pi, log mu, advantages and response mask of a batch that the trust region touches."""
    source = np.random.default_rng(seed)
    policy = np.log(source.uniform(1e-4, 1.0, (rows, columns)))
    rollout = np.minimum(policy + source.normal(0, spread, policy.shape), 0.0)
    advantages = source.choice([-0.75, -0.25, 0.0, 0.25, 0.75], (rows, 1))
    response = source.random((rows, columns)) < 0.7
    response[0, 0] = True
    return policy, rollout, advantages, response


_HALF = math.log(0.5)
_EDGES: dict[str, tuple[list[float], list[float], float]] = {
    "all masked": ([-0.1, -0.2], [-3.0, -4.0], 1.0),
    "all masked, downwards": ([-3.0, -4.0], [-0.1, -0.2], -1.0),
    "zero advantage": ([-0.1, -3.0], [-3.0, -0.1], 0.0),
    "zero advantage, ratio overflows": ([-0.1, -1.0], [-800.0, -1.0], 0.0),
    "both certain": ([0.0, 0.0], [0.0, 0.0], 1.0),
    "policy became certain": ([0.0, 0.0], [-1e-3, -1.0], 1.0),
    "rollout was certain": ([-1e-3, -1.0], [0.0, 0.0], -1.0),
    "policy near 0": ([-90.0, -700.0], [-1e-9, -80.0], -1.0),
    "policy at 0": ([-math.inf, -1.0], [-2.0, -1.0], -1.0),
    "policy at 0, good": ([-math.inf, -1.0], [-2.0, -1.0], 1.0),
    "both near 0": ([-700.0, -90.0], [-720.0, -80.0], 1.0),
    "one token": ([-0.4], [-0.5], 0.5),
    "ratio overflows, masked": ([-0.1, -0.5], [-800.0, -0.6], 1.0),
    "ratio overflows, kept": ([-0.1, -0.5], [-800.0, -0.6], -1.0),
    "ratio large, kept": ([-0.1, -0.5], [-40.0, -0.6], -1.0),
    "at the threshold": ([math.log(0.6), _HALF], [_HALF, _HALF], 1.0),
}

EDGES: dict[str, tuple[Array, Array, Array, Array]] = {
    name: (np.array([policy]), np.array([rollout]), np.array([[advantage]]), np.ones((1, len(policy)), dtype=bool))
    for name, (policy, rollout, advantage) in _EDGES.items()
} | {"very long": random_case(99, 1, 20_000)}
