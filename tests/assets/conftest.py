"""A base with a small apt, dpkg-query and pip of its own, which install files and need no network."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from leonardo.site import Site, load_site
from leonardo.tasks.task import Task

MakeTask = Callable[..., Task]

# `apt-get install NAME` writes a file, an entry of dpkg and a line of a log; "needs-NAME" brings NAME, "rival" another
# package where python3 is there than where it is not, and "absent" is not to be had
APT = r"""#!/bin/bash
set -e
echo "apt-get $*"
simulate=
[ "$1" = -s ] && simulate=yes
case "$*" in
  update*) [ ! -e /run/leonardo-set-up/no-network ] || { echo 'W: Failed to fetch x  Could not resolve x'; }; exit 0 ;;
esac
if [ -e /run/leonardo-set-up/fail-once ]; then
  rm /run/leonardo-set-up/fail-once
  echo 'E: Failed to fetch x  Hash Sum mismatch'
  exit 100
fi
one() {
  grep -q "^Package: $1$" /var/lib/dpkg/status && return 0
  if [ "$simulate" ]; then echo "Inst $1 (1.0 x [all])"; return 0; fi
  mkdir -p /usr/share/packages /var/log/apt
  echo "$1" > "/usr/share/packages/$1"
  printf 'Package: %s\nStatus: install ok installed\nVersion: 1.0\n\n' "$1" >> /var/lib/dpkg/status
  echo "$(date) $1" >> /var/log/apt/history.log
}
for name in "$@"; do
  case "$name" in
    -*|install) ;;
    absent) echo 'E: Unable to locate package absent'; exit 100 ;;
    needs-*) one "${name#needs-}"; one "$name" ;;
    rival) if grep -q '^Package: python3$' /var/lib/dpkg/status; then one other; else one another; fi; one rival ;;
    *) one "$name" ;;
  esac
done
"""
DPKG_QUERY = """#!/bin/bash
while read -r key value; do
  case "$key" in Package:) name=$value ;; Version:) echo "$name=$value" ;; esac
done < /var/lib/dpkg/status
"""
PIP = """#!/bin/bash
set -e
echo "pip3 $*"
shift
mkdir -p /usr/lib/python
for name in "$@"; do echo "$name" > "/usr/lib/python/$name"; done
"""
STATUS = "Package: base\nStatus: install ok installed\nVersion: 1.0\n\n"


@pytest.fixture(scope="session")
def package_root_archive(tmp_path_factory: pytest.TempPathFactory, tiny_root_archive: Path) -> Path:
    """The tests' root file system with package managers."""
    target = tmp_path_factory.mktemp("package-root") / "package-root.tar"
    with tarfile.open(tiny_root_archive) as source, tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        for member in source:
            archive.addfile(member, source.extractfile(member) if member.isreg() else None)
        for folder in ("var/lib", "var/lib/dpkg"):
            member = tarfile.TarInfo(f"./{folder}")
            member.type, member.mode, member.mtime = tarfile.DIRTYPE, 0o755, 1_700_000_000
            archive.addfile(member)
        programs = {"apt-get": APT, "dpkg-query": DPKG_QUERY, "pip3": PIP}
        files = {f"usr/bin/{name}": (text, 0o755) for name, text in programs.items()}
        for name, (text, mode) in (files | {"var/lib/dpkg/status": (STATUS, 0o644)}).items():
            member = tarfile.TarInfo(f"./{name}")
            member.size, member.mode, member.mtime = len(text), mode, 1_700_000_000
            archive.addfile(member, io.BytesIO(text.encode()))
    return target


@pytest.fixture
def package_site(tmp_path: Path, package_root_archive: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site whose base image, ``tiny:1``, has package managers."""
    monkeypatch.delenv("LEONARDO_CACHE", raising=False)
    return package_site_in(tmp_path, package_root_archive)


def package_site_in(folder: Path, archive: Path) -> Site:
    """Write the site's file to a folder, which its cache is in, too."""
    path = folder / "package-site.yaml"
    path.write_text(
        f"name: test\ncache: {folder / 'cache'}\nbases:\n  tiny:1:\n    registry: false\n    substitute:\n"
        f"      {{kind: archive, path: {archive}, reason: a test}}\n"
    )
    return load_site(path)
