"""The driver ``namespaces-fuse``: as ``namespaces``, with fuse-overlayfs in place of the kernel's overlay.

It serves where a kernel (before 5.11, or a distribution's policy) refuses an overlay in a user namespace but allows
FUSE there (since 4.18). Slower: each sandbox has a FUSE process of its own. Where it differs: copying a file up from a
layer gives the folder that it lies in a new time, so that layers of equal content may have different digests; and one
whose FUSE process is killed from outside may see its files fail for a moment before it is ended.
"""

import os
import shutil
from collections.abc import Mapping

from leonardo.errors import FailureClass, InfrastructureError
from leonardo.sandbox.driver import Limits
from leonardo.sandbox.fuseoverlay import DEVICE, PROGRAM
from leonardo.sandbox.identities import Identities
from leonardo.sandbox.mounts import Plan
from leonardo.sandbox.namespaces import NamespacesDriver


class FuseDriver(NamespacesDriver):
    """Raises :class:`InfrastructureError` where there is no fuse-overlayfs or no /dev/fuse to be used."""

    name = "namespaces-fuse"

    def __init__(self, identities: Identities) -> None:
        if not shutil.which(PROGRAM):
            raise InfrastructureError(
                f"{PROGRAM} is not installed", f"install the package {PROGRAM}", FailureClass.KERNEL_FEATURE
            )
        mode = os.stat(DEVICE).st_mode if os.path.exists(DEVICE) else 0
        if mode & 0o6 != 0o6:  # root's sandboxes are not root on the host
            raise InfrastructureError(
                f"{DEVICE} cannot be used by every user", f"chmod 666 {DEVICE}", FailureClass.KERNEL_FEATURE
            )
        super().__init__(identities)

    def _plan(self, environment: Mapping[str, str], limits: Limits) -> Plan:
        return super()._plan(environment, limits).changed(fuse=True)
