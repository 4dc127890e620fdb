"""One process at a time in a run folder."""

import subprocess
import sys
from pathlib import Path

import pytest

from leonardo.errors import InputError
from leonardo.holding import alone_in
from tests.processes import running

_HOLD = """
import sys, time
from pathlib import Path
from leonardo.holding import alone_in
with alone_in(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_another_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    """With its process named; one that was killed holds nothing."""
    with running([sys.executable, "-c", _HOLD, tmp_path / "run"], stdout=subprocess.PIPE) as first:
        assert first.stdout is not None and first.stdout.readline() == "held\n"
        words = rf"another process works there \(pid {first.pid} on "
        with pytest.raises(InputError, match=words) as caught, alone_in(tmp_path / "run"):
            pass
        assert "\n" not in str(caught.value) and caught.value.exit_code == 2
    for _ in range(2):
        with alone_in(tmp_path / "run"):
            pass
