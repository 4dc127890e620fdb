"""The process that imports ``bfcl-eval``, and nothing of ours: rows, calls of its simulated services, its checkers.

Run as ``python -I -S worker.py FOLDER SCRATCH``: of packages it sees only those in FOLDER. It reads a request a line
from standard input and writes an answer a line, both JSON objects; an answer has ``value`` or ``error``. It ends with
its input, and SCRATCH, which the package fills with empty folders, with it. It may neither fill files nor take more
memory or time than :func:`limit` says.

The package's table of models is what its checkers ask whether dots in function names were replaced by underscores; its
module imports every provider's client, so that it is stood for by a table with the one model that is judged here, whose
names are left alone. Nothing else of the package is replaced.
"""

import json
import os
import resource
import shutil
import sys
import types
from collections.abc import Callable
from typing import Any

MODEL = "leonardo"
_TABLE = "bfcl_eval.constants.model_config"

Row = dict[str, Any]
Call = dict[str, Any]  # {"name": ..., "arguments": {...}}


def main(folder: str, scratch: str) -> None:
    """Serve until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the package prints now and then
    os.environ["BFCL_PROJECT_ROOT"] = scratch
    sys.path.insert(0, folder)
    table = types.ModuleType(_TABLE)
    table.__dict__["MODEL_CONFIG_MAPPING"] = {MODEL: types.SimpleNamespace(underscore_to_dot=False)}
    sys.modules[_TABLE] = table
    try:
        package = Package()
        handlers: dict[str, Callable[..., Any]] = {
            "rows": package.rows,
            "check": package.check,
            "execute": package.execute,
            "judge": package.judge,
        }
        limit()
        for line in sys.stdin:
            request = json.loads(line)
            try:
                answer = {"value": handlers[request.pop("do")](**request)}
            except Exception as error:  # noqa: BLE001 - whatever a checker raises is an answer, and the caller judges it
                answer = {"error": f"{type(error).__name__}: {error}"[:500]}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def limit(memory: int = 2 << 30, seconds: int = 600) -> None:
    """No filled file, at most ``memory`` bytes and ``seconds`` of processor time."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


class Package:
    """What is used of ``bfcl-eval``."""

    def __init__(self) -> None:
        from bfcl_eval import utils
        from bfcl_eval.constants.default_prompts import (
            DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC as MORE_FUNCTIONS,
        )
        from bfcl_eval.constants.enums import Language
        from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker
        from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils
        from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

        self._utils, self._services = utils, multi_turn_utils
        self._ast_checker, self._multi_turn_checker = ast_checker, multi_turn_checker
        self._languages, self._more_functions = Language, MORE_FUNCTIONS

    def rows(self, category: str) -> list[Row]:
        """Rows as the package loads them, with ``shown`` (its functions as a model is shown them) and ``answer``."""
        utils = self._utils
        plain = utils.load_dataset_entry(category, include_language_specific_hint=False)
        shown = utils.load_dataset_entry(category)
        answers = {}
        if not utils.is_relevance_or_irrelevance(category):
            answers = {row["id"]: row["ground_truth"] for row in utils.load_ground_truth_entry(category)}
        return [
            {
                **row,
                "category": category,
                "shown": more["function"],
                "answer": answers.get(row["id"], []),
                "more_functions": self._more_functions,
            }
            for row, more in zip(plain, shown, strict=True)
        ]

    def check(self, row: Row, calls: list[Call]) -> dict[str, Any]:
        """A single turn's verdict: ``valid``, and ``why`` not."""
        decoded = [{call["name"]: call["arguments"]} for call in calls]
        category = row["category"]
        if self._utils.is_relevance_or_irrelevance(category):
            called = not self._utils.is_empty_output(decoded)
            valid = called != ("irrelevance" in category)
            return {"valid": valid, "why": "" if valid else "a call" if called else "no call"}
        language = {"simple_java": "JAVA", "simple_javascript": "JAVASCRIPT"}.get(category, "PYTHON")
        found = self._ast_checker(row["function"], decoded, row["answer"], self._languages[language], category, MODEL)
        return _verdict(found)

    def execute(self, row: Row, calls: list[Call], episode: str, last: bool = False) -> list[str]:
        """Call the row's simulated services. What each call returned.

        They live on under the name ``episode``, an identifier, until the ``last`` calls or the verdict.
        """
        results, _ = self._services.execute_multi_turn_func_call(
            _sources(row, calls),
            row["initial_config"],
            row["involved_classes"],
            episode,
            row["id"],
            long_context="long_context" in row["category"],
        )
        if last:
            self._forget(episode)
        return results

    def judge(self, row: Row, turns: list[list[list[Call]]], episode: str) -> dict[str, Any]:
        """The verdict on all steps of all turns, which are executed again on fresh services."""
        steps = [[_sources(row, calls) for calls in turn] for turn in turns]
        if len(steps) != len(row["answer"]):
            return {"valid": False, "why": f"{len(steps)} of {len(row['answer'])} turns were taken"}
        try:
            return _verdict(self._multi_turn_checker(steps, row["answer"], row, row["category"], episode))
        finally:
            self._forget(episode)

    def _forget(self, episode: str) -> None:
        # the package keeps its services among its module's globals, under names that begin so
        names = [name for name in vars(self._services) if name.startswith(f"{episode}_")]
        for name in names:
            delattr(self._services, name)


def _verdict(found: dict[str, Any]) -> dict[str, Any]:
    why = found.get("error_message") or found.get("error") or ""
    return {"valid": bool(found["valid"]), "why": "" if found["valid"] else str(why)[:500]}


def _sources(row: Row, calls: list[Call]) -> list[str]:
    """Calls as the package executes them: by ``eval``.

    Only functions of the row are let through, and names that are names. Arguments are JSON values, so that their
    ``repr`` is a literal.
    """
    missed = [function for functions in row.get("missed_function", {}).values() for function in functions]
    known = {function["name"] for function in [*row.get("function", []), *missed]}
    for call in calls:
        if call["name"] not in known or not all(name.isidentifier() for name in [call["name"], *call["arguments"]]):
            raise ValueError(f"no function is called so: {call['name']}({', '.join(call['arguments'])})")
    return [
        f"{call['name']}({','.join(f'{name}={value!r}' for name, value in call['arguments'].items())})"
        for call in calls
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
