"""What rules lend to a set-up that runs: programs and settings in a folder that it sees and that is not captured."""

from collections.abc import Mapping
from pathlib import Path

from leonardo.assets.compat.adapt import Adaptation
from leonardo.sandbox.served import DEFAULT_ENVIRONMENT

INSIDE = "/run/leonardo-compat"
"""Where a set-up sees the folder."""


def lend(adaptation: Adaptation, folder: Path, environment: dict[str, str]) -> dict[str, str]:
    """Fill ``folder``, which is new and the host's, for a set-up with ``environment``. Returns its environment.

    The image's own programs come before shims, and after overriding shims. apt's settings are read after those that
    ``APT_CONFIG`` names in ``environment``.
    """
    folder.chmod(0o755)
    environment = {**environment, **adaptation.set_up_environment}
    search = environment.get("PATH", DEFAULT_ENVIRONMENT["PATH"]).split(":")
    if adaptation.shims:
        _write_programs(folder / "bin", adaptation.shims)
        search = [*search, f"{INSIDE}/bin"]
    if adaptation.overriding_shims:
        _write_programs(folder / "first", adaptation.overriding_shims)
        search = [f"{INSIDE}/first", *search]
    if adaptation.apt:
        known = environment.get("APT_CONFIG")
        lines = [*([f'#include "{known}";'] if known else []), *adaptation.apt]
        (folder / "apt.conf").write_text("\n".join(lines) + "\n")
        environment["APT_CONFIG"] = f"{INSIDE}/apt.conf"
    environment["PATH"] = ":".join(search)
    return environment


def _write_programs(folder: Path, programs: Mapping[str, str]) -> None:
    folder.mkdir(mode=0o755)
    for name, script in programs.items():
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
