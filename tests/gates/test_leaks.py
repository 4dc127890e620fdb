import base64

import pytest

from leonardo.gates.leaks import LeakSearch
from leonardo.tasks.task import Task
from leonardo.tasks.verifier import verifier_files

VERIFIER = """\
import json
import os

REPORT = "/home/user/report.json"

def test_report_has_the_right_totals():
    assert os.path.isfile(REPORT), "there is no report"
    with open(REPORT) as stream:
        report = json.load(stream)
    assert report["largest_region"] == "eu-central-station"
    assert report["total_size_in_bytes"] == 105428800

def test_report_is_in_the_right_order():
    entries = json.load(open(REPORT))["entries"]
    assert entries == sorted(entries, key=lambda entry: entry["size"])
"""
SOLUTION = """\
#!/bin/bash
set -e
python3 - << 'EOP'
import json
rows = [json.loads(line) for line in open('/home/user/rows.jsonl')]
total = sum(row['size_bytes'] for row in rows if row['status'] == 'done')
json.dump({'total_size_in_bytes': total}, open('/home/user/report.json', 'w'))
EOP
"""
INSTRUCTION = (
    "Sum up `/home/user/rows.jsonl` in a report at /home/user/report.json. The old tool is /home/user/tool.py."
)
KEY = b'{"largest_region": "eu-central-station", "total_size_in_bytes": 105428800}\n'
DATA = (
    b'{"region": "eu-central-station", "size_bytes": 1, "status": "done"}\n'
    + b'{"region": "here", "status": "x"}\n' * 40
)


@pytest.fixture
def search() -> LeakSearch:
    task = Task("t", INSTRUCTION, "", verifier_files(VERIFIER), reference_solution=SOLUTION)
    return LeakSearch(task)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (VERIFIER.encode(), "lines of the verifier"),
        (
            b"# notes\n\n" + b"\n".join(b"    " + line for line in VERIFIER.encode().splitlines()),
            "lines of the verifier",
        ),
        (SOLUTION.encode(), "lines of the reference solution"),
        (b"x=" + base64.b64encode(SOLUTION.encode()), "reference solution, in base64"),
        (base64.encodebytes(VERIFIER.encode()), "the verifier, in base64"),
        (KEY, "literals that the verifier expects"),
        (b"\0\1\2" + KEY, "literals that the verifier expects"),
    ],
)
def test_planted_leaks_are_found(search: LeakSearch, content: bytes, what: str) -> None:
    leaks, _ = search.search("/opt/.cache/note", content)
    assert any(what in leak.what for leak in leaks), leaks
    assert all(leak.path == "/opt/.cache/note" and leak.fragment for leak in leaks)


@pytest.mark.parametrize("name", ["test_final_state.py", "solution.sh", "test_outputs.py"])
def test_a_name_is_enough(search: LeakSearch, name: str) -> None:
    assert search.search(f"/opt/{name}", b"")[0]


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/home/user/rows.jsonl", DATA),
        ("/home/user/rows.jsonl", KEY),
        ("/home/user/tool.py", "\n".join(SOLUTION.splitlines()[:-3]).encode()),
        ("/opt/app.py", b"import json\nimport os\nfrom http.server import BaseHTTPRequestHandler, HTTPServer\n"),
        ("/opt/app.py", b"with open(REPORT) as stream:\n    report = json.load(stream)\n"),
        ("/etc/passwd", b"user:x:1000:1000::/home/user:/bin/bash\n"),
        ("/opt/report.json", b""),
        ("/opt/blob", bytes(range(256)) * 100),
    ],
)
def test_what_is_given_or_common_is_no_leak(search: LeakSearch, path: str, content: bytes) -> None:
    assert search.search(path, content)[0] == []


def test_a_literal_in_data_is_listed(search: LeakSearch) -> None:
    leaks, listed = search.search("/opt/data.jsonl", DATA)
    assert leaks == []
    assert [leak.fragment for leak in listed] == ["eu-central-station"]


def test_what_the_instruction_says_is_no_secret() -> None:
    task = Task("t", "The largest region is eu-central-station.", "", verifier_files(VERIFIER))
    assert LeakSearch(task).search("/opt/data", b"eu-central-station\n") == ([], [])
