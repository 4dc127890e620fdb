"""Print the versions in upstream's uv.lock as requirements: where a new lock starts from, so that it stays close."""

import sys
import tomllib
from pathlib import Path

newest: dict[str, str] = {}
for package in tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["package"]:
    if "version" in package and "+" not in package["version"] and "registry" in package["source"]:
        newest[package["name"]] = package["version"]  # the lock lists a package's versions in ascending order
for name, version in sorted(newest.items()):
    print(f"{name}=={version}")
