"""The figures that a stage's criteria may be about, all that its verdict has."""

from leonardo.gates.signal import signal_figures

IN_A_RUN = (
    *signal_figures(()), "engine", "exit_code", "leftovers", "checkpoint_loads", "checkpoint_differs", "early_stop",
    "bound_reached", "rules_not_judged", "cost", "cost_unit", "base_pass_rate", "trained_pass_rate", "difference",
    "difference_ci_low", "difference_ci_high", "evaluated_pairs", "direction", "training_seconds", "seconds",
)  # fmt: skip
"""Of ``leonardo stage run``, with either engine (:mod:`leonardo.stages.training`)."""

IN_A_JOB = (
    *signal_figures(()), "engine", "exit_code", "updates_asked", "checkpoint_whole", "starts", "restarts", "state",
    "nodes", "training_seconds", "seconds", "node_hours",
)  # fmt: skip
"""Of a stage with rows, which is a job of upstream's trainer (:mod:`leonardo.stages.launch_verdict`)."""
