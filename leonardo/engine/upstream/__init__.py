"""The cluster engine: upstream's trainer with this project's patches, run in an environment of its own."""

COMMIT = "1cce58a2627c39e41ab2d3033ddbb082787da23a"
"""Of upstream, that all of this is for."""
