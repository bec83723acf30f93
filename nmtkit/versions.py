"""Versions of nmtkit and of the packages that results depend on."""

import importlib.metadata
import os
import platform
from functools import cache
from pathlib import Path


def release(package: str = "nmtkit") -> str:
    """Return the number of a release, or "unknown" where it is not installed but used through PYTHONPATH."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


@cache
def nmtkit_version(root: Path = Path(__file__).parent.parent) -> str:
    """Return nmtkit's version, such as ``0.1.0``, or ``0.1.0+g1a2b3c4.dirty`` in a git checkout with changed files."""
    import subprocess

    number, project = release(), root / "pyproject.toml"
    # A package that is installed inside another repository must not report the version of that repository.
    if not (root / ".git").exists() or not project.is_file() or b'\nname = "nmtkit"\n' not in project.read_bytes():
        return number
    # GIT_DIR and similar variables, which git sets for hooks, may name another repository.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "-C", str(root), "describe", "--always", "--dirty=.dirty", "--exclude=*", "--abbrev=7"]
    try:
        described = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):  # git is not installed, or does not trust the folder's owner
        return number
    return f"{number}+g{described.stdout.strip()}"


package_version = cache(importlib.metadata.version)  # each reads a file, and every checkpoint names all


def versions() -> dict[str, str]:
    """Return the versions that results depend on."""
    packages = ("torch", "sentencepiece", "sacremoses", "accelerate", "sacrebleu")
    others = {name: package_version(name) for name in packages}
    return {"python": platform.python_version(), "nmtkit": nmtkit_version(), **others}
