"""What the overlay takes from GitPython, which cannot be imported where there is no git."""

from leonardo.errors import InputError

try:
    from git import GitCommandError, InvalidGitRepositoryError, NoSuchPathError, Repo
except ImportError as error:
    raise InputError("git is not in PATH, and this needs it", "Install git, or load its module") from error

__all__ = ["GitCommandError", "InvalidGitRepositoryError", "NoSuchPathError", "Repo"]
