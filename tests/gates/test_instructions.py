import pytest

from leonardo.gates.instructions import names, outputs


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("Save the results as JSON to `/home/user/report.json`.", {"/home/user/report.json"}),
        ("Write a Python script at /home/user/a.py that reads /home/user/in.csv.", {"/home/user/a.py"}),
        ("Generate a file named '/out/list.txt' with the names.", {"/out/list.txt"}),
        ("The data is in `/home/user/in.csv`.", set()),
        ("Write down what you read from /home/user/in.csv.", set()),
        ("Create a fix for the existing script located at /home/user/a.py.", set()),
        ("Create users. Read `/home/user/in.csv`.", set()),
    ],
)
def test_what_the_agent_is_to_make(sentence: str, expected: set[str]) -> None:
    assert outputs(sentence) == expected


def test_what_an_instruction_names() -> None:
    text = "Look at /home/user/logs and fix `server.py`; everything is in /home/user."
    assert names(text, "/home/user/logs/a.log")
    assert names(text, "/opt/server.py")
    assert not names(text, "/home/user/other.txt"), "everything lies in a home"
    assert not names(text, "/home/user/logs/.answer"), "a hidden file is named itself or not at all"
    assert not names(text, "/home/user/logs-old/a.log")
