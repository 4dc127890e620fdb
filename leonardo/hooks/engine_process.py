"""Imported by vLLM in each process that holds a worker; importing it is what prepares the process.

Not to be imported elsewhere: the process that does dies with its parent.
"""

from leonardo.hooks.cpu import prepare_engine
from leonardo.hooks.fingerprints import HeldWeights
from leonardo.hooks.shutdown import die_with_parent


class Extension(HeldWeights):
    """Mixed into vLLM's worker class; naming it is how vLLM comes to import this module."""


die_with_parent()
prepare_engine()
