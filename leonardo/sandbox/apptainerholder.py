"""The driver ``apptainer-holder``: one long-lived Apptainer container a base image; sandboxes are namespaces within it.

It serves where Apptainer may make user namespaces with many ids and we may not. The holder enters the container's
user and mount namespaces, ends with it, and makes sandboxes as in the driver ``namespaces``. A base is
an unpacked folder or, for a plain user, an image file (SIF) that Apptainer mounts by squashfuse.

Untested: the setuid flavour of Apptainer. Where its configuration makes no user namespace for ``--fakeroot``, the
self-test fails and the next driver is tried.
"""

import contextlib
import os
from pathlib import Path

from leonardo.errors import FailureClass, InfrastructureError
from leonardo.sandbox.apptainer import Container, installed, own_identities
from leonardo.sandbox.client import HolderClient, Join, LayerReference, layer_reference
from leonardo.sandbox.driver import LayerStack
from leonardo.sandbox.mounts import IMAGE
from leonardo.sandbox.namespaces import NamespacesDriver


class _Hold:
    """A container and the holder in it."""

    def __init__(self, container: Container, client: HolderClient) -> None:
        self.container = container
        self.client = client

    @property
    def alive(self) -> bool:
        return self.client.alive and self.container.alive

    def close(self) -> None:
        self.client.close()
        self.container.close()


class ApptainerHolderDriver(NamespacesDriver):
    """Sandboxes in nested namespaces of a container that stays. As root the holder has ids of its own.

    Raises :class:`InfrastructureError` where there is no Apptainer.
    """

    name = "apptainer-holder"

    def __init__(self, program: Path | None = None) -> None:
        self._apptainer = installed(program)
        super().__init__(own_identities())
        self.one_id = False  # see ApptainerDriver
        self._container: Container | None = None
        self._holds: dict[str, _Hold] = {}

    def _start_holder(self) -> HolderClient:
        if self._container:
            self._container.close()
        hold = self._open_hold(None)
        self._container = hold.container
        return hold.client

    def _open_hold(self, image: Path | None) -> _Hold:
        container = self._apptainer.start_with_host(image, self.lease)
        try:
            # root's container has no user namespace of its own; the holder makes one in it
            kinds = ("mnt",) if os.geteuid() == 0 else ("user", "mnt")
            join = Join(container.process, kinds, image=True, servers=(container.process, *container.servers))
            return _Hold(container, HolderClient(self._identities, join=join))
        except BaseException:
            container.close()
            raise

    def _place(self, stack: LayerStack) -> tuple[HolderClient, list[LayerReference]]:
        if not stack.base.is_file():
            return super()._place(stack)
        if os.geteuid() == 0:
            raise InfrastructureError(
                f"image file {stack.base} cannot be root's base: its files are host root's, whom no sandbox has among "
                "its ids",
                "unpack it, or be a plain user",
                FailureClass.KERNEL_FEATURE,
            )
        image = layer_reference(stack.base)
        client = self._hold_of(image["key"], stack.base.resolve()).client
        return client, [*map(layer_reference, stack.deltas), {"path": IMAGE, "key": IMAGE}]

    def _hold_of(self, key: str, image: Path) -> _Hold:
        with self._lock:
            if self._closed:
                raise InfrastructureError("the sandbox driver is closed")
            hold = self._holds.get(key)
            if hold and not hold.alive:
                self._holds.pop(key).close()
                hold = None
            if hold is None:
                hold = self._holds[key] = self._open_hold(image)
            return hold

    def close(self) -> None:
        super().close()
        with self._lock:
            holds, self._holds = list(self._holds.values()), {}
            container, self._container = self._container, None
        with contextlib.ExitStack() as ends:  # every one, whatever the others do
            for hold in holds:
                ends.callback(hold.close)
            if container:
                ends.callback(container.close)
