"""Upstream's tree: a git repository, driven by git's own commands with settings that do not depend on the user's."""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from leonardo.errors import InfrastructureError, InputError
from leonardo.overlay.entries import NO_FILE, Entry
from leonardo.overlay.gitpython import GitCommandError, InvalidGitRepositoryError, NoSuchPathError, Repo

PIN_COMMAND = "git update-index --cacheinfo 160000,{},upstream"
"""How the project's submodule is moved; ``git add`` would take the commit with the patches."""

_SETTINGS_WORDS = (
    "core.autocrlf=false core.safecrlf=false core.quotePath=true core.hooksPath=/dev/null core.fsmonitor=false "
    "diff.noprefix=false diff.mnemonicPrefix=false diff.renames=false diff.algorithm=myers diff.indentHeuristic=true "
    "diff.interHunkContext=0 diff.suppressBlankEmpty=false apply.ignoreWhitespace=no apply.whitespace=nowarn "
    "merge.conflictStyle=merge merge.renames=true rerere.enabled=false commit.gpgSign=false i18n.commitEncoding=utf-8 "
    "i18n.logOutputEncoding=utf-8 color.ui=false advice.detachedHead=false gc.auto=0 format.signature= "
    "format.useAutoBase=false submodule.recurse=false"
)
_SETTINGS = tuple(_SETTINGS_WORDS.split())

_SCRUBBED = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX", "GIT_EXTERNAL_DIFF")


class Tree:
    """A checkout of upstream.

    Args:
        path: its folder.
        held: file descriptors that git's processes keep open, so that a lock on them lasts as long as they do.

    Raises:
        InputError: there is no checkout; says how to get one.
    """

    def __init__(self, path: Path, held: Sequence[int] = ()) -> None:
        try:
            self._repo = Repo(path)
        except (InvalidGitRepositoryError, NoSuchPathError):
            raise InputError(
                f"{path} holds no checkout of upstream", "Fetch it: make upstream [UPSTREAM=dir]"
            ) from None
        if self._repo.bare or Path(self._repo.working_dir).resolve() != path.resolve():
            raise InputError(f"{path} holds no checkout of upstream", "Fetch it: make upstream [UPSTREAM=dir]")
        self.path = path
        self.git_folder = Path(self._repo.git_dir)
        self._held = tuple(held)

    def git(self, *arguments: str, data: bytes | None = None, environment: Mapping[str, str] | None = None) -> str:
        """Run ``git`` and return its output, undecodable bytes kept as surrogates. Raises GitCommandError."""
        return os.fsdecode(self.git_bytes(*arguments, data=data, environment=environment)).rstrip("\n")

    def git_bytes(
        self, *arguments: str, data: bytes | None = None, environment: Mapping[str, str] | None = None
    ) -> bytes:
        """Like :meth:`git`, as bytes and whole."""
        command = ["git", *(word for setting in _SETTINGS for word in ("-c", setting)), *arguments]
        # set where we are called from a git hook, and would lead git to another repository
        inherited = [name for name in _SCRUBBED if name in os.environ]
        command = ["env", *(f"--unset={name}" for name in inherited), *_assigned(environment or {}), *command]
        with tempfile.TemporaryFile() as stdin:
            stdin.write(data or b"")
            stdin.seek(0)
            output = self._repo.git.execute(
                command,
                istream=stdin,
                env={"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"},
                stdout_as_string=False,
                strip_newline_in_stdout=False,
                pass_fds=self._held,
            )
        assert isinstance(output, bytes)
        return output

    def resolve(self, revision: str) -> str:
        """The commit that ``revision`` names. Raises InputError."""
        try:
            return self.git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        except GitCommandError:
            raise InputError(f"{self.path} has no commit {revision}", "Fetch it there first") from None

    def has(self, revision: str) -> bool:
        """Whether there is such a commit."""
        try:
            self.resolve(revision)
        except InputError:
            return False
        return True

    def fetch(self, revision: str) -> str:
        """The commit that ``revision`` names, got from the checkout's origin where it is not here yet."""
        if not self.has(revision):
            try:
                self.git("fetch", "--quiet", "--depth", "1", "--filter=blob:none", "origin", revision)
                return self.resolve("FETCH_HEAD")
            except GitCommandError as error:
                raise InputError(
                    f"{self.path} has no commit {revision}, and its origin did not give it ({reason(error)})",
                    "Name a commit or tag of upstream",
                ) from error
        return self.resolve(revision)

    @property
    def head(self) -> str:
        """The commit that is checked out."""
        return self.resolve("HEAD")

    def entry(self, commit: str, path: str) -> Entry:
        """The file at ``path`` in ``commit``; :data:`NO_FILE` where there is none."""
        line = self.git("ls-tree", "--full-tree", commit, "--", path)
        if not line:
            return NO_FILE
        mode, _, blob = line.partition("\t")[0].split()
        return Entry(mode, blob)

    def changes(self) -> list[str]:
        """Files that differ from HEAD, untracked ones too (ignored ones not), sorted."""
        output = self.git("status", "--porcelain", "-z", "--untracked-files=all", "--no-renames")
        return sorted(item[3:] for item in output.split("\0") if item)

    @contextmanager
    def index(self, source: str | None = None) -> Iterator[dict[str, str]]:
        """Environment with an index of its own, holding ``source`` (a tree) or a copy of the checkout's index."""
        with tempfile.TemporaryDirectory(prefix="leonardo-index-") as folder:
            environment = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
            if source is None:
                (Path(folder) / "index").write_bytes((self.git_folder / "index").read_bytes())
            else:
                self.git("read-tree", source, environment=environment)
            yield environment

    def work_tree(self) -> str:
        """Tree id of what is in the folder now: HEAD with its edits, new files included."""
        with self.index() as environment:
            self.git("add", "--all", "--", ".", environment=environment)
            return self.git("write-tree", "--missing-ok", environment=environment)


def gitlink(project: Path) -> str:
    """The commit that the project's index has for its submodule; ``""`` where the project is no repository."""
    try:
        repository = Repo(project)
    except (InvalidGitRepositoryError, NoSuchPathError):
        return ""
    words = repository.git.ls_files("--stage", "upstream").split()
    return words[1] if words[:1] == ["160000"] else ""


def _assigned(environment: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in environment.items()]


def reason(error: GitCommandError) -> str:
    """What git said, in one line."""
    text = error.stderr.strip().removeprefix("stderr:").strip(" '\n")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("hint:")]
    return " ".join(lines[-1].split())[:300] if lines else f"exit code {error.status}"


def git_failed(doing: str, error: GitCommandError) -> InfrastructureError:
    """The error to raise where git fails and nothing else is to be said."""
    return InfrastructureError(f"git could not {doing}: {reason(error)}")
