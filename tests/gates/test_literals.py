import pytest

from leonardo.gates.literals import is_remote, read_verifier

VERIFIER = '''
"""About the answer, 4242424242."""
import json, os, socket, sqlite3, subprocess, urllib.request
REPORT = "/home/user/report.json"
URL = "https://api.server.org/v1"

def test_it():
    """Check the docstring-only-text."""
    assert os.path.exists(REPORT), "the-message-of-an-assertion"
    assert not os.path.exists("/home/user/old.txt")
    with open("/home/user/other.txt") as f:
        assert f.read() == "first expected line\\nsecond expected line", f"got {f}"
    assert json.load(open(REPORT)) == {"total": 105428800, "mean": -0.9888}
    sqlite3.connect("/home/user/data.db")
    socket.create_connection(("127.0.0.1", 9090))
    urllib.request.urlopen("http://localhost:8080/x")
'''


def test_what_a_verifier_expects() -> None:
    said = read_verifier(VERIFIER)
    assert {"first expected line", "second expected line", "105428800", "0.9888", "total"} <= said.expected
    assert not any("message" in text or "docstring" in text or "4242" in text for text in said.expected)


def test_which_paths_it_names_and_which_it_wants_to_exist() -> None:
    said = read_verifier(VERIFIER)
    assert {"/home/user/report.json", "/home/user/other.txt", "/home/user/old.txt"} <= said.paths
    assert said.required == {"/home/user/report.json"}


def test_which_services_it_connects_to() -> None:
    said = read_verifier(VERIFIER)
    assert said.ports == {9090, 8080}
    assert said.hosts == set()


@pytest.mark.parametrize(
    ("line", "host"),
    [
        ("import requests\nrequests.get('https://api.server.org/v1')", "api.server.org"),
        ("U = 'https://api.server.org/v1'\nurllib.request.urlopen(U)", "api.server.org"),
        ("socket.create_connection(('8.8.8.8', 53))", "8.8.8.8"),
        ("subprocess.run(['curl', '-s', 'https://server.org/x'])", "server.org"),
        ("subprocess.run('git clone https://user:x@server.org/x.git', shell=True)", "server.org"),
    ],
)
def test_which_other_machines_it_calls(line: str, host: str) -> None:
    assert read_verifier(line).hosts == {host}


@pytest.mark.parametrize(
    "line",
    [
        "assert open('/x/y').read() == 'see https://server.org/docs'",
        "requests.get('http://127.0.0.1:80/')",
        "d.get('https')",
        "subprocess.run(['grep', 'https://server.org', '/x/y'])",
        "requests.get('http://db.cloud.internal/')",
    ],
)
def test_an_address_that_is_only_text_is_no_call(line: str) -> None:
    assert read_verifier(line).hosts == set()


def test_a_shell_script_is_read_by_its_quoted_words() -> None:
    said = read_verifier(
        "#!/bin/bash\n# curl https://comment.org\ngrep -q 'the expected words' /x && curl https://a.org/y\n"
    )
    assert "the expected words" in said.expected
    assert said.hosts == {"a.org"}


def test_which_names_are_other_machines() -> None:
    assert [name for name in ("localhost", "127.0.0.1", "10.0.0.7", "a.org", "x.test", "word") if is_remote(name)] == [
        "10.0.0.7",
        "a.org",
    ]
