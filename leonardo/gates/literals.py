"""What a verifier's text says: the literals it expects, the paths and ports it asks for, the hosts it calls.

Read from the syntax tree where it is Python, else from quoted words. Messages, docstrings and the like say nothing
about what is expected, and are left out.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_MESSAGES = frozenset(("fail", "skip", "print", "xfail", "debug", "info", "warning", "error", "warns"))
_CONNECTS = frozenset(("create_connection", "connect", "connect_ex", "gethostbyname"))
_REQUESTS = frozenset(("urlopen", "Request", "urlretrieve", "get", "post", "put", "head", "delete", "request"))
_EXISTS = frozenset(("exists", "isfile", "isdir", "islink", "lexists"))
_RUNS_PROGRAMS = frozenset(("run", "call", "check_call", "check_output", "Popen", "system", "popen", "getoutput"))
_FETCHERS = re.compile(r"\b(?:curl|wget|git clone|pip3? install|apt(?:-get)? install|npm (?:i|install))\b")
_URL = re.compile(r"\b(?:https?|ftp|git|ssh)://(?:[^\s/@'\"]+@)?(\[[0-9a-fA-F:]+\]|[\w.-]+)")
_PORT = re.compile(r"(?:127\.0\.0\.1|localhost|0\.0\.0\.0|\[::1\]):(\d{2,5})\b")
_PATH = re.compile(r"/[\w.@+-]+(?:/[\w.@+-]+)+/?")
_QUOTED = re.compile(r"'([^'\n]*)'|\"([^\"\n]*)\"")
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")
_LOCAL = re.compile(
    r"localhost|.*\.localhost|.*\.(?:local|internal|test|invalid|example)|127\..*|0\.0\.0\.0|\[::1?\]|::1"
)


@dataclass
class VerifierText:
    """What a verifier's text says.

    Attributes:
        expected: texts and numbers, as they would stand in a file.
        paths: absolute paths that it names.
        required: those of them that it asserts to exist.
        ports: of services on this machine that it connects to.
        hosts: other machines that it calls, or lets a program call.
    """

    expected: set[str] = field(default_factory=set)
    paths: set[str] = field(default_factory=set)
    required: set[str] = field(default_factory=set)
    ports: set[int] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)


def read_verifier(source: str) -> VerifierText:
    """Read a verifier."""
    said = VerifierText()
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError):
        values: list[object] = [single or double for single, double in _QUOTED.findall(source)]
        for line in source.splitlines():
            if _FETCHERS.search(line) and not line.lstrip().startswith("#"):
                said.hosts |= set(remote_hosts(line))
    else:
        constants = _assigned(module)
        values = [node.value for node in _telling(module)]
        for node in ast.walk(module):
            if isinstance(node, ast.Call):
                _read_call(node, constants, said)
            elif isinstance(node, ast.Assert):
                said.required |= set(_asserted(node.test, constants))
    for value in values:
        _read_value(value, said)
    return said


def remote_hosts(text: str) -> Iterator[str]:
    """The hosts of the addresses in ``text`` that are not this machine, and not names that no machine has."""
    for host in _URL.findall(text):
        if is_remote(host):
            yield host


def is_remote(host: str) -> bool:
    """Whether a name or number is another machine's."""
    if _LOCAL.fullmatch(host.lower()):
        return False
    return bool(_ADDRESS.fullmatch(host)) or "." in host


def _read_value(value: object, said: VerifierText) -> None:
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int | float):
        said.expected.add(repr(value))
    elif isinstance(value, str):
        said.ports |= {int(port) for port in _PORT.findall(value)}
        if _PATH.fullmatch(value):
            said.paths.add(value.rstrip("/"))
        else:
            said.expected |= {line.strip() for line in value.splitlines() if line.strip()}


def _telling(node: ast.AST) -> Iterator[ast.Constant]:
    """The constants below ``node`` that are no messages."""
    if isinstance(node, ast.Constant):
        yield node
        return
    for name, value in ast.iter_fields(node):
        if isinstance(node, ast.Assert) and name == "msg":
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST):
                continue
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                continue  # a docstring
            if isinstance(child, ast.Call) and _called(child) in _MESSAGES:
                continue
            yield from _telling(child)


def _read_call(call: ast.Call, constants: dict[str, list[str]], said: VerifierText) -> None:
    name = _called(call)
    texts = [text for argument in call.args for text in _texts(argument, constants)]
    if name in _RUNS_PROGRAMS and _FETCHERS.search(" ".join(texts)):
        said.hosts |= set(remote_hosts(" ".join(texts)))
    elif name in _REQUESTS:
        said.hosts |= {host for text in texts for host in remote_hosts(text)}
    elif name in _CONNECTS:
        # sqlite3.connect takes a path
        said.hosts |= {text for text in texts if "/" not in text and ":" not in text and is_remote(text)}
        for argument in call.args:
            match argument:
                case ast.Tuple(elts=[ast.Constant(value=str(host)), ast.Constant(value=int(port)), *_]):
                    if not is_remote(host):
                        said.ports.add(port)


def _asserted(test: ast.AST, constants: dict[str, list[str]]) -> Iterator[str]:
    """The whole paths of which an assertion says that they exist."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return
    if isinstance(test, ast.Call) and _called(test) in _EXISTS and test.args:
        argument = test.args[0]
        if isinstance(argument, ast.Constant | ast.Name):
            yield from (text.rstrip("/") for text in _texts(argument, constants) if _PATH.fullmatch(text))
    elif isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        for part in test.values:
            yield from _asserted(part, constants)


def _called(call: ast.Call) -> str:
    function = call.func
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )


def _texts(node: ast.AST, constants: dict[str, list[str]]) -> list[str]:
    """The texts in an expression, those of names it uses among them."""
    found = []
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            found.append(part.value)
        elif isinstance(part, ast.Name):
            found += constants.get(part.id, [])
    return found


def _assigned(module: ast.Module) -> dict[str, list[str]]:
    """Name -> texts that are assigned to it, anywhere."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Assign):
            texts = _texts(node.value, {})
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).extend(texts)
    return found
