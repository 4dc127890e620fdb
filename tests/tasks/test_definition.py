import pytest

from leonardo.errors import FailureClass, InputError
from leonardo.tasks.definition import UNSUPPORTED, Definition, UnsupportedDefinition, parse_definition

HEADER = "Bootstrap: docker\nFrom: ubuntu:22.04\n\n"

TRAPS = {
    "indentation and blank lines": "\n    cat << 'EOF' > /a.py\ndef f():\n\n        return 1\nEOF\n\n\n",
    "a comment first": "    # first\n    true\n",
    "the same comment twice": "# a\ntrue\n# a\n",
    "a shebang line": "#!/bin/bash\nset -o pipefail\n",
    "from: in a script": "echo 'From: me'\n   from: x\n",
    "from: first": "From: me\n",
    "an indented bootstrap: in a here-document": "cat <<E\n  bootstrap: true\nE\n",
    "bootstrap in a word": "pip install bootstrap\nnpm install bootstrap: x\n",
    "stage: in a script": "stage: one\necho stage: two\n",
    "a percent sign inside a line": "date +%s\nprintf '%s' a\n",
    "cd and export": "cd /tmp\nexport A=1\n",
    "trailing spaces and tabs": "\techo a  \n \n\t\techo b\t\n",
    "carriage returns": "echo a\r\necho b\r\n",
    "a form feed": "echo 'a\x0c%b'\necho '\x85 \u2028 %c'\n",
    "no newline at the end": "echo a",
    "something that looks like a stand-in": "line-3=\nline-4=5\n",
}


@pytest.mark.parametrize("post", TRAPS.values(), ids=TRAPS.keys())
def test_the_script_comes_out_byte_for_byte(post: str) -> None:
    assert parse_definition(f"{HEADER}%post\n{post}").post == post


@pytest.mark.parametrize("post", TRAPS.values(), ids=TRAPS.keys())
def test_other_sections_around_do_not_change_it(post: str) -> None:
    post = post if post.endswith("\n") else post + "\n"
    text = f"{HEADER}%labels\n    Author me\n%post\n{post}%runscript\n    echo run\n    echo more\n%test\n    true\n"
    definition = parse_definition(text)
    assert definition.post == post
    assert definition.labels == {"Author": "me"}


def test_header_environment_and_labels() -> None:
    text = (
        "# comment\nbootstrap: docker\nfrom: Some/Image:Tag-A  # which\n"
        "%environment\n    export A='b c'\n    # no\n    B=2\n\n    C=\n%labels\n  Version 1.0 beta\n%help\n  A=3\n"
    )
    assert parse_definition(text) == Definition(
        "docker", "Some/Image:Tag-A", "", {"A": "b c", "B": "2", "C": ""}, {"Version": "1.0 beta"}
    )


def test_two_scripts_follow_each_other() -> None:
    assert parse_definition(f"{HEADER}%post\na\n%help\nx\n%post\nb\n").post == "a\nb\n"


def test_an_interpreter_of_its_own() -> None:
    assert parse_definition(f"{HEADER}%post -c /bin/bash -e\necho a\n").post == "#!/bin/bash -e\necho a\n"


@pytest.mark.parametrize("section", UNSUPPORTED)
def test_a_section_that_is_not_honoured_is_named(section: str) -> None:
    with pytest.raises(UnsupportedDefinition, match=f"line 4: section %{section} ") as caught:
        parse_definition(f"{HEADER}%{section}\n  a b\n")
    assert caught.value.failure is FailureClass.UNSUPPORTED
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("Bootstrap: library\nFrom: a/b\n%post\ntrue\n", "Bootstrap: library"),
        (f"{HEADER}%post\ntrue\n\nBootstrap: docker\nFrom: x\n%post\ntrue\n", "more than one stage"),
        ("Bootstrap: docker\nFrom: a\nStage: build\nBootstrap: docker\nFrom: b\n", "more than one stage"),
        ("Bootstrap: docker\nFrom: a\nInclude: x\n", "header Include:"),
        (f"{HEADER}%environment\nexport PATH=/x:$PATH\n", "%environment line 'export PATH=/x:\\$PATH'"),
        (f"{HEADER}%environment\nif true; then A=1; fi\n", "%environment line 'if true"),
        (f"{HEADER}%environment\n. /etc/profile\n", "%environment line"),
        (f"{HEADER}%post --flag\ntrue\n", "%post --flag"),
        (f"{HEADER}%arguments\nA=1\n%post\necho {{{{ A }}}}\n", "template variable {{ A }}"),
    ],
)
def test_what_else_is_not_honoured(text: str, complaint: str) -> None:
    with pytest.raises(UnsupportedDefinition, match=complaint):
        parse_definition(text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no Bootstrap: line"),
        ("Bootstrap: docker\n%post\ntrue\n", "no From: line"),
        ("From: a\n%post\ntrue\n", "no Bootstrap: line"),
        ("FROM ubuntu:22.04\nRUN true\n", "line 1: 'FROM ubuntu:22.04' is no header line"),
        ("Bootstrap:\nFrom: a\n", "line 1: 'Bootstrap:' is no header line"),
        (f"{HEADER}%post\n   \n", "%post without content"),
        (f"{HEADER}%psot\ntrue\n", "line 4: unknown section '%psot'"),
        (f"{HEADER}%post\ncat <<E\n%s\nE\n", "line 6: unknown section '%s'"),
    ],
)
def test_a_syntax_error_is_one_line_that_names_the_line(text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint) as caught:
        parse_definition(text)
    assert not isinstance(caught.value, UnsupportedDefinition)
    assert "\n" not in str(caught.value)
