"""Mutation run over reward/planner_reward.py: does some table test notice each small change to the file?

Cosmic Ray supplies the mutants. They are applied in memory, each in a forked child of one pytest session that
has collected the table tests: nothing on disk changes, and a mutant takes a fraction of a second. The child
puts the mutated module's names where the test modules hold the original's, runs the tests in order and stops
at the first failure.

A mutant that no test notices survives. Each survivor is explained in one line of the file `survivors` beside
this one (operator, line, mutated line, reason; parted by tabs); one that is not explained fails the run.
"""

import argparse
import json
import os
import resource
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from _pytest.runner import runtestprotocol
from tqdm import tqdm

try:
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import MutationVisitor
    from cosmic_ray.plugins import get_operator, operator_names
except ImportError as error:
    print(f"{error}: pip install -e '.[dev]' brings cosmic-ray", file=sys.stderr)
    sys.exit(2)

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "reward" / "planner_reward.py"
TESTS = [ROOT / "tests" / f"test_{name}.py" for name in ("planner_reward", "term_hits", "parse_plan")]
SURVIVORS = Path(__file__).with_name("survivors")
REPORT = ROOT / "build" / "mutation.json"
# Tests of the file on disk, which no mutant touches, and of time, which a busy machine decides as well.
NOT_RUN = ("bare_interpreter", "loads_quickly", "another_copy", "standard_library", "_time", "under_a_second")
LEFT_OUT = (
    "ExceptionReplacer", "RemoveDecorator", "VariableReplacer", "VariableInserter",
)  # fmt: skip
# Of the binary operators, those that a slip of the pen would put there; shifts of a float fail by themselves.
ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Pow")
LIMIT_S = 20  # of processor time, for one mutant; one that loops for ever is noticed


class Mutant(NamedTuple):
    operator: str
    occurrence: int
    line: int


class Outcome(NamedTuple):
    operator: str
    line: int
    before: str
    after: str
    result: str  # killed, survived or timeout

    def key(self) -> str:
        return "\t".join((self.operator, self.before, self.after))


def chosen(name: str) -> bool:
    """Whether the operator changes arithmetic, a threshold or a condition."""
    short = name.partition("/")[2]
    kind, _, change = short.partition("_")
    was, _, becomes = change.partition("_")
    if kind == "ReplaceBinaryOperator":
        return {was, becomes} <= set(ARITHMETIC) or {was, becomes} == {"BitAnd", "BitOr"}
    if kind == "ReplaceComparisonOperator":  # `is` for == only asks whether Python shares a constant
        return was.startswith("Is") or not becomes.startswith("Is")
    return short not in LEFT_OUT


def all_mutants(tree: Any) -> list[Mutant]:
    nodes = list(ast_nodes(tree))
    mutants = []
    for name in filter(chosen, operator_names()):
        operator = get_operator(name)()
        positions = [position for node in nodes for position in operator.mutation_positions(node)]
        mutants += [Mutant(name, occurrence, start[0]) for occurrence, (start, _) in enumerate(positions)]
    return sorted(mutants, key=lambda mutant: mutant.line)


def first_change(before: str, after: str) -> tuple[str, str]:
    for old, new in zip(before.splitlines(), after.splitlines(), strict=False):
        if old != new:
            return old.strip(), new.strip()
    return "", ""


def put_in_place(original: types.ModuleType, source: str, test_modules: set[types.ModuleType]) -> None:
    """Run `source` as a new module and put its names where the test modules hold the original's."""
    mutated = types.ModuleType(original.__name__)
    mutated.__file__ = original.__file__
    sys.modules[original.__name__] = mutated
    exec(compile(source, str(TARGET), "exec"), vars(mutated))
    held = vars(original)
    for module in test_modules:
        for name, value in list(vars(module).items()):
            if value is original:
                setattr(module, name, mutated)
            elif name in held and held[name] is value and hasattr(mutated, name):
                setattr(module, name, getattr(mutated, name))


def first_failure(items: list[pytest.Item], original: types.ModuleType, source: str) -> pytest.Item | None:
    put_in_place(original, source, {item.module for item in items})  # type: ignore[attr-defined]
    for item in items:
        if any(report.failed for report in runtestprotocol(item, log=False)):
            return item
    return None


def in_child(work: Callable[[Callable[[str], object]], bool]) -> tuple[str, list[str]]:
    """(result, lines said) of `work(say)` in a forked child; True or an exception means noticed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))  # ends the child by a signal
        noticed = True
        try:
            noticed = work(lambda line: os.write(writing, f"{line}\n".encode()))
        finally:
            os._exit(noticed)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        lines = pipe.read().split("\n")[:-1]
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return "timeout", lines
    return ("killed" if os.WEXITSTATUS(status) else "survived"), lines


class MutationSession:
    """A pytest plugin whose test loop runs the collected tests once for each mutant."""

    def __init__(self, only: str) -> None:
        self.only = only
        self.outcomes: list[Outcome] = []
        self.problem = "pytest did not reach the tests"

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        import reward.planner_reward as original

        if Path(str(original.__file__)).resolve() != TARGET:
            self.problem = f"the tests import {original.__file__}, not {TARGET}"
            return True
        items = [item for item in session.items if not any(part in item.name for part in NOT_RUN)]
        source = TARGET.read_text(encoding="utf-8")
        tree = get_ast(source)
        if in_child(lambda say: first_failure(items, original, source) is not None)[0] != "survived":
            self.problem = "the tests fail on the unchanged file: run pytest first"
            return True
        self.problem = ""
        for mutant in tqdm([m for m in all_mutants(tree) if self.only in m.operator], unit="mutant"):

            def work(say: Callable[[str], object], mutant: Mutant = mutant) -> bool:
                operator = get_operator(mutant.operator)()
                code = MutationVisitor(mutant.occurrence, operator).walk(tree).get_code()
                for line in first_change(source, code):
                    say(line)
                failed = first_failure(items, original, code)
                if failed is not None:
                    say(str(items.index(failed)))
                return failed is not None

            result, said = in_child(work)
            name = mutant.operator.partition("/")[2]
            self.outcomes.append(Outcome(name, mutant.line, said[0], said[1], result))
            if len(said) == 3:  # the test that noticed this one probably notices the next one as well
                items.insert(0, items.pop(int(said[2])))
        return True


def explained() -> dict[str, str]:
    """Key -> reason of every survivor that is explained."""
    reasons = {}
    for number, line in enumerate(SURVIVORS.read_text(encoding="utf-8").splitlines(), 1):
        if line and not line.startswith("#"):
            key, tab, reason = line.rpartition("\t")
            if key.count("\t") != 2 or not reason.strip():
                raise ValueError(
                    f"{SURVIVORS}:{number}: operator, line, mutated line, reason, parted by tabs"
                )
            reasons[key] = reason
    return reasons


def write_report(report: dict[str, Any]) -> None:
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    draft = REPORT.with_suffix(".tmp")
    draft.write_text(json.dumps(report, ensure_ascii=False, indent=1), encoding="utf-8")
    os.replace(draft, REPORT)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Mutation run over reward/planner_reward.py, one process, some minutes.",
        epilog="example: python tests/mutation/run_mutation.py --only NumberReplacer",
    )
    parser.add_argument(
        "--only", default="", help="only operators whose name holds this (default: all chosen)"
    )
    only = parser.parse_args().only
    begin = time.monotonic()
    reasons = explained()
    run = MutationSession(only)
    sys.path.insert(0, str(ROOT))  # before any installed copy
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # the table tests need none, and each costs time
    pytest.main(["-s", "-q", "-p", "no:cacheprovider", *map(str, TESTS)], plugins=[run])
    if run.problem or not run.outcomes:
        print(run.problem or f"no operator's name holds {only!r}", file=sys.stderr)
        return 2
    survived = [outcome for outcome in run.outcomes if outcome.result == "survived"]
    unexplained = [outcome for outcome in survived if outcome.key() not in reasons]
    stale = [] if only else sorted(reasons.keys() - {outcome.key() for outcome in survived})
    results = [outcome.result for outcome in run.outcomes]
    counts = {result: results.count(result) for result in ("killed", "timeout", "survived")}
    write_report(
        {
            "mutants": len(run.outcomes),
            **counts,
            "unexplained": [outcome._asdict() for outcome in unexplained],
            "explained": {o.key(): reasons[o.key()] for o in survived if o.key() in reasons},
            "stale": stale,
            "seconds": round(time.monotonic() - begin),
        }
    )
    print(f"{len(run.outcomes)} mutants: " + ", ".join(f"{number} {name}" for name, number in counts.items()))
    for outcome in unexplained:
        print(f"NOT EXPLAINED (line {outcome.line}): {outcome.key()}")
    for key in stale:
        print(f"stale, no longer survives: {key}")
    print(f"{len(unexplained)} survivors without an explanation in {SURVIVORS.name}; report: {REPORT}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
