"""The driver ``namespaces``: sandboxes in namespaces of their own, made without privilege or container runtime.

One holder process keeps the layers and makes the sandboxes (see holder.py); this is its controller.
"""

import contextlib
import os
import socket
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from leonardo.errors import FailureClass, InfrastructureError, InputError
from leonardo.sandbox import cgroups, wire
from leonardo.sandbox.client import (
    TOOL_PATIENCE,
    HolderClient,
    HolderGoneError,
    LayerReference,
    in_words,
    layer_reference,
)
from leonardo.sandbox.driver import Driver, LayerStack, Limits, SetUpResult
from leonardo.sandbox.identities import Identities
from leonardo.sandbox.leases import Lease
from leonardo.sandbox.mounts import SHARED_MEMORY, Plan
from leonardo.sandbox.served import DEFAULT_ENVIRONMENT, Channel, Life, SandboxGoneError, ServedBackend, failure_of
from leonardo.sandbox.timings import Timings

DEFAULT_LIMITS = Limits()
LOG_LIMIT = 256 << 10
"""Bytes of a set-up's output that are kept, head and tail."""
SCRIPT = "/dev/leonardo/set-up"
CERTIFICATES = "/dev/leonardo/ca-certificates.crt"
"""Where a set-up sees the host's certificates: not where distributions keep theirs, which a package may replace."""

_HOST_CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu
    "/etc/pki/tls/certs/ca-bundle.crt",  # RHEL
    "/etc/ssl/ca-bundle.pem",  # SUSE
)
_CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "NODE_EXTRA_CA_CERTS")


class NamespaceLife:
    """A sandbox of a holder."""

    def __init__(
        self, holder: HolderClient, identifier: str, channel: socket.socket, group: cgroups.Group | None = None
    ) -> None:
        self.channel = channel
        self._group = group
        self._holder = holder
        self._identifier = identifier
        self._reason: str | None = None

    @property
    def sound(self) -> bool:
        return self._holder.sound

    def end(self, *, gone: bool = False) -> str:
        if self._reason is None:
            self.channel.close()
            try:
                if gone and not self.sound:  # the holder is about to be ended for it, and knows the sandbox's part only
                    raise HolderGoneError(self._holder.why_ended())
                answer = self._holder.request({"do": "destroy", "id": self._identifier, "gone": gone})
                self._reason = answer["reason"]
            except HolderGoneError as error:
                self._reason = str(error)
            if self._group:
                if gone and "memory" in self._group.new_events():
                    self._reason = "memory"
                self._group.remove()
        return self._reason

    def refusals(self) -> set[str]:
        return self._group.new_events() if self._group and self._reason is None else set()


class NamespacesDriver(Driver):
    """Sandboxes below a holder with ``identities``; the holder is started when first needed, and again if it died."""

    name = "namespaces"

    def __init__(self, identities: Identities) -> None:
        self.degraded = identities.degraded
        self.one_id = identities.single
        self.timings = Timings()
        self.groups = cgroups.find()
        self._identities = identities
        self._lock = threading.Lock()
        self._client: HolderClient | None = None
        self.lease = Lease()
        self._closed = False

    # ---- the holder

    def _start_holder(self) -> HolderClient:
        return HolderClient(self._identities)

    def _holder(self) -> HolderClient:
        with self._lock:
            if self._closed:
                raise InfrastructureError("the sandbox driver is closed")
            if self._client and not self._client.alive:
                self._client.close()
                self._client = None
            if self._client is None:
                self._client = self._start_holder()
            return self._client

    def close(self) -> None:
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        if client:
            client.close()
        self.lease.close()

    def self_test(self) -> dict[str, str]:
        """Try what sandboxes need, in one: check -> what went wrong, or ``""``."""
        limits = Limits()
        life, ready = self._create(self._holder(), "test", self._plan({}, limits), limits)
        life.end()
        return ready["checks"]

    # ---- sandboxes

    def backend(self, stack: LayerStack, *, timeout: float = 120, limits: Limits = DEFAULT_LIMITS) -> ServedBackend:
        return ServedBackend(lambda: self._open_life(stack, limits), timeout, limits, self.timings)

    def _open_life(self, stack: LayerStack, limits: Limits) -> Life:
        holder, layers = self._place(stack)
        plan = self._plan(stack.environment, limits).changed(own=stack.own)
        return self._create(holder, "create", plan, limits, layers)[0]

    def _place(self, stack: LayerStack) -> tuple[HolderClient, list[LayerReference]]:
        """The holder for sandboxes on ``stack``, and the layers as it has them, uppermost first."""
        return self._holder(), [layer_reference(folder) for folder in (*stack.deltas, stack.base)]

    def _plan(self, environment: Mapping[str, str], limits: Limits) -> Plan:
        return Plan(
            layers=(),
            environment={**DEFAULT_ENVIRONMENT, **environment},
            disk=limits.disk,
            processes=limits.processes,
            open_files=limits.open_files,
            host_root=self._identities.root[0] == 0,
        )

    def _create(
        self,
        holder: HolderClient,
        action: str,
        plan: Plan,
        limits: Limits,
        layers: Sequence[LayerReference] = (),
        binds: Mapping[str, LayerReference] | None = None,
        job: socket.socket | None = None,
    ) -> tuple[NamespaceLife, dict[str, Any]]:
        """A sandbox of ``holder`` and the first thing that it said. ``layers`` are uppermost first."""
        identifier = holder.new_id()
        header = {
            "do": action,
            "id": identifier,
            "plan": plan.to_json(),
            "memory": limits.memory,
            "layers": list(layers),
            "binds": dict(binds or {}),
        }
        group = self._make_group(limits)
        joins = group.descriptors if group else []
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                descriptors = [*joins, *([job.fileno()] if job else [])]
                holder.post({**header, "groups": len(joins)}, [*descriptors, theirs.fileno()])
                if group:
                    group.close_descriptors()
            ours.settimeout(TOOL_PATIENCE if job else 30)
            ready = wire.receive(ours).header
        except HolderGoneError as error:
            ours.close()
            if group:
                group.close_descriptors()
                group.remove()
            raise InfrastructureError(f"a sandbox could not be started: {error}") from error
        except (EOFError, OSError) as error:
            reason = NamespaceLife(holder, identifier, ours, group).end(gone=True)
            raise InfrastructureError(f"a sandbox could not be started: {reason}") from error
        life = NamespaceLife(holder, identifier, ours, group)
        if "error" in ready:
            life.end()
            raise InfrastructureError(f"a sandbox could not be started: {in_words(ready)}")
        return life, ready

    def _make_group(self, limits: Limits) -> cgroups.Group | None:
        if self.groups is None:
            return None
        # the writable layer and shared memory are memory, too
        memory = limits.memory + limits.disk + SHARED_MEMORY
        try:
            return self.groups.make(memory=memory, processes=limits.processes)
        except OSError as error:
            raise InfrastructureError(f"no control group could be made: {error}") from error

    # ---- layers

    def unpack(self, archive: Path, folder: Path) -> None:
        if folder.exists():
            raise InputError(f"{folder} exists already", "remove it first")
        work = self._new_folder(folder)
        try:
            with _opened(archive) as stream:
                self._run_tool(f"unpacking {archive}", {"do": "unpack", **layer_reference(work)}, [stream.fileno()])
            work.rename(folder)
        except BaseException:
            with contextlib.suppress(InfrastructureError):
                self.discard(work)
            raise

    def remove(self, folder: Path) -> None:
        if not os.path.lexists(folder):
            return
        # a name of its own first: a removal that is cut short must not leave half a layer that looks whole
        self.lease.note_folder(folder.parent)
        doomed = folder.with_name(f".{folder.name}.removed-{self.lease.id}-{os.urandom(6).hex()}")
        folder.rename(doomed)
        self.discard(doomed)

    def _new_folder(self, wanted: Path) -> Path:
        wanted.parent.mkdir(parents=True, exist_ok=True)
        self.lease.note_folder(wanted.parent)
        work = Path(tempfile.mkdtemp(dir=wanted.parent, prefix=f".{wanted.name}.partial-{self.lease.id}-"))
        work.chmod(0o755)
        if os.geteuid() == 0:
            os.chown(work, *self._identities.root)
        return work

    def discard(self, folder: Path) -> None:
        """Remove a folder of this driver's ids, whatever is in it."""
        self._run_tool(f"removing {folder}", {"do": "remove", **layer_reference(folder)}, [])
        folder.rmdir()

    def _run_tool(self, what: str, header: dict, descriptors: list[int]) -> None:
        try:
            answer = self._holder().request(header, descriptors, patience=TOOL_PATIENCE)
        except HolderGoneError as error:
            raise InfrastructureError(f"{what} was cut short: {error}") from error
        _check_tool(what, answer)

    # ---- set-ups

    def set_up(
        self,
        stack: LayerStack,
        script: str,
        archive: Path,
        *,
        timeout: float,
        limits: Limits = DEFAULT_LIMITS,
        mounts: Mapping[str, Path] | None = None,
        pretended_owners: bool = False,
    ) -> SetUpResult:
        begun = time.monotonic()
        files, environment = host_files()
        base = self._plan({**environment, **stack.environment}, limits)
        plan = base.changed(files={**files, SCRIPT: script}, network=True, pretended_owners=pretended_owners)
        job, theirs = socket.socketpair()
        with job:
            with theirs:
                holder, layers = self._place(stack)
                binds = {target: layer_reference(source) for target, source in (mounts or {}).items()}
                life, _ = self._create(holder, "create", plan, limits, layers, binds, theirs)
            try:
                argv = [SCRIPT] if script.startswith("#!") else ["/bin/sh", "-e", SCRIPT]
                outcome = Channel(life.channel).run({"argv": argv, "merge": True}, timeout=timeout, output=LOG_LIMIT)
                wire.send(job, {"do": "end"})
                full = wire.receive(job).header["full"]
                if outcome.exit_code == 0:
                    self._capture(job, archive)
            except (SandboxGoneError, EOFError, OSError) as error:
                reason = life.end(gone=True)
                if reason == "memory":
                    return SetUpResult(137, str(failure_of(reason, limits)), time.monotonic() - begun)
                raise InfrastructureError(f"a set-up was cut short: {reason}") from error
            finally:
                life.end()
        return SetUpResult(
            exit_code=outcome.exit_code,
            log=b"".join(outcome.outputs).decode("utf-8", "replace"),
            seconds=time.monotonic() - begun,
            timed_out=outcome.timed_out,
            disk_full=full and outcome.exit_code != 0,
        )

    def _capture(self, job: socket.socket, archive: Path) -> None:
        archive.parent.mkdir(parents=True, exist_ok=True)
        self.lease.note_folder(archive.parent)
        descriptor, name = tempfile.mkstemp(dir=archive.parent, prefix=f".{archive.name}.partial-{self.lease.id}-")
        try:
            with open(descriptor, "wb", closefd=True):
                wire.send(job, {"do": "capture"}, descriptors=[descriptor])
                _check_tool(f"capturing {archive}", wire.receive(job).header)
                os.fsync(descriptor)
            Path(name).chmod(0o644)
            Path(name).replace(archive)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _opened(archive: Path) -> IO[bytes]:
    try:
        return archive.open("rb")
    except OSError as error:
        raise InputError(f"archive {archive} cannot be read: {error.strerror}") from error


def _check_tool(what: str, answer: Mapping) -> None:
    complaints = answer.get("complaints") or answer.get("error") or ""
    if "error" not in answer and answer["exit_code"] == 0:
        return
    # the last lines of GNU tar only say that there was an earlier one
    first = complaints.splitlines()[0] if complaints else f"exit code {answer.get('exit_code')}"
    full = "No space left on device" in complaints or "Disk quota exceeded" in complaints
    hint = "free some space there, or use another folder" if full else ""
    raise InfrastructureError(f"{what} failed: {first}", hint, FailureClass.SPACE if full else FailureClass.RUNTIME)


def host_files() -> tuple[dict[str, str], dict[str, str]]:
    """What a set-up needs of the host to reach the network: files (path inside -> text) and variables."""
    files, environment = {}, {}
    with contextlib.suppress(OSError):
        files["/etc/resolv.conf"] = Path("/etc/resolv.conf").read_text(errors="replace")
    for candidate in _HOST_CERTIFICATES:
        with contextlib.suppress(OSError):
            files[CERTIFICATES] = Path(candidate).read_text(errors="replace")
            environment = dict.fromkeys(_CERTIFICATE_VARIABLES, CERTIFICATES)
            break
    return files, environment
