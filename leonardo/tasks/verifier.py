"""The verifier of a data-set row: the files that are put into ``/tests`` at submission, and nothing before.

``test.sh`` writes two files below ``/logs/verifier``: ``reward.txt`` (1 or 0, all that a reward is made of) and
``status.txt`` with one word more than a reward can say: ``passed``, ``failed``, or ``broken`` where the tests could not
be run at all (no Python, no pytest, an import that fails). A broken verifier is worth 0 to the policy, and a
:attr:`leonardo.errors.FailureClass.VERIFIER_BROKEN` to us.
"""

PYTEST_MODULE = "test_final_state.py"
SCRIPT = "test_final_state"

# The verdict is written before the test runs, so that a test that is killed or ends the shell leaves a 0 behind.
_FRAME = """\
#!/bin/bash
logs=/logs/verifier
mkdir -p "$logs"
verdict() {{ echo "$1" > "$logs/reward.txt"; echo "$2" > "$logs/status.txt"; }}
verdict 0 broken
cd /tests || exit 0
{run}
exit 0
"""

# pytest's exit codes: 0 all passed, 1 some failed; 2 interrupted (also: a module that cannot be imported), 3 internal
# error, 4 wrong usage, 5 no tests. `python3 -m pytest` without pytest ends with 1 too, so that is asked first.
_RUN_PYTEST = """\
if ! python3 -c 'import pytest'; then
  echo 'verifier: python3 with pytest is missing in this image' >&2
  exit 0
fi
python3 -m pytest -q -p no:cacheprovider test_final_state.py
case $? in
  0) verdict 1 passed ;;
  1) verdict 0 failed ;;
esac"""

# 126 and 127 say that the interpreter or a command of the script does not exist or may not be run.
_RUN_SCRIPT = """\
chmod +x ./test_final_state
./test_final_state
case $? in
  0) verdict 1 passed ;;
  126|127) ;;
  *) verdict 0 failed ;;
esac"""


def verifier_files(test_final_state: str) -> dict[str, bytes]:
    """The content of ``/tests`` for a row's ``test_final_state``.

    A text that begins with a shebang line is an executable whose exit code 0 means pass; any other is a pytest module.
    """
    if test_final_state.startswith("#!"):
        name, run = SCRIPT, _RUN_SCRIPT
    else:
        name, run = PYTEST_MODULE, _RUN_PYTEST
    return {"test.sh": _FRAME.format(run=run).encode(), name: test_final_state.encode()}
