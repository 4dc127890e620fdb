"""An overlay on TMAX: agentic RL in terminal sandboxes on machines without Docker."""

__version__ = "0.1.0"
