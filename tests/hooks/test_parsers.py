import json
from types import SimpleNamespace

import pytest

from leonardo.hooks.parsers import VARIABLE, more_parsers


def test_the_files_parsers_are_made_by_upstreams_class(tmp_path, monkeypatch):
    path = tmp_path / "parsers.json"
    path.write_text(json.dumps({"desk": {"import_path": "module:Class", "output_prefix": "\n"}}))
    monkeypatch.setenv(VARIABLE, str(path))

    made = more_parsers(SimpleNamespace)

    assert made == {"desk": SimpleNamespace(import_path="module:Class", output_prefix="\n")}


def test_without_a_file_there_are_none(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert more_parsers(SimpleNamespace) == {}


def test_a_field_that_upstreams_class_has_not_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "parsers.json"
    path.write_text(json.dumps({"desk": {"import_pat": "module:Class"}}))
    monkeypatch.setenv(VARIABLE, str(path))

    def make(*, import_path: str) -> str:
        return import_path

    with pytest.raises(TypeError, match="import_pat"):
        more_parsers(make)
