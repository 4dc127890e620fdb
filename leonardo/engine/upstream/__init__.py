"""The cluster engine: upstream's trainer with this project's patches, run in an environment of its own."""
