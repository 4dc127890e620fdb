"""Function calling: the rows and checkers of the Berkeley Function Calling Leaderboard as tasks with a verifier reward.

Rows, reference answers, simulated services and checkers are those of the PyPI package ``bfcl-eval``, which is installed
apart (``make bfcl``) and only ever imported by a worker process (:mod:`leonardo.functions.worker`).
"""
