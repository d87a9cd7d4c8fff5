"""What goes wrong, by class: how often, of how many completions in which it could, and examples to read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scripts.eval.summary import abstains_on_category, needs_keywords, share

EXAMPLES = 3

Record = Mapping[str, Any]
Sample = Mapping[str, Any]


@dataclass(frozen=True)
class ErrorClass:
    """One class: where it can occur, when it has, and what an example shows of golden record and completion."""

    possible: Callable[[Record, Sample], bool]
    occurred: Callable[[Record, Sample], bool]
    golden: Callable[[Record], Any]
    given: Callable[[Sample], Any]


def _parsed(record: Record, sample: Sample) -> bool:
    return sample["plan"] is not None


def _part(part: str, keys: Sequence[str]) -> ErrorClass:
    """A field part that took part and is not full: the golden record's and the plan's values of `keys`."""
    return ErrorClass(
        possible=lambda record, sample: sample["breakdown"][part] is not None,
        occurred=lambda record, sample: sample["breakdown"][part] < 1,
        golden=lambda record: {key: record["golden"][key] for key in keys},
        given=lambda sample: {key: sample["plan"].get(key) for key in keys},
    )


def _wants_search(record: Record, sample: Sample) -> bool:
    return sample["plan"] is not None and needs_keywords(record["golden"])


def _searched(record: Record, sample: Sample) -> bool:
    flags = sample["breakdown"]
    return _wants_search(record, sample) and not flags["empty_keywords"] and flags["retrieval"] is not None


def _wanted(record: Record) -> dict[str, Any]:
    return {key: record["golden"][key] for key in ("must_have", "category_anchor")}


def _keywords(sample: Sample) -> Any:
    return sample["plan"].get("keywords")


ERROR_CLASSES: dict[str, ErrorClass] = {
    "parse": ErrorClass(
        possible=lambda record, sample: True,
        occurred=lambda record, sample: sample["plan"] is None,
        golden=lambda record: None,
        given=lambda sample: sample["issues"],
    ),
    "category": _part("category", ("category",)),
    "domain": _part("domains_f1", ("domains",)),
    "budget": _part("budget", ("budget_amount", "clear_budget")),
    "no_keywords": ErrorClass(
        possible=_wants_search,
        occurred=lambda record, sample: sample["breakdown"]["empty_keywords"],
        golden=_wanted,
        given=_keywords,
    ),
    # A vector store always answers something: nothing is found when no title is a hit or of the category.
    "keywords_find_nothing": ErrorClass(
        possible=_searched,
        occurred=lambda record, sample: sample["breakdown"]["retrieval"] == 0,
        golden=_wanted,
        given=lambda sample: {"keywords": _keywords(sample), "titles": (sample["titles"] or [])[:EXAMPLES]},
    ),
    "copied_sentence": ErrorClass(
        possible=_parsed,
        occurred=lambda record, sample: sample["breakdown"]["copycat"],
        golden=_wanted,
        given=_keywords,
    ),
    "invented_evidence": ErrorClass(
        possible=lambda record, sample: _parsed(record, sample) and bool(sample["plan"].get("exclude_terms")),
        occurred=lambda record, sample: sample["breakdown"]["evidence_faked"],
        golden=lambda record: {"exclude_expected": record["golden"]["exclude_expected"]},
        given=lambda sample: sample["plan"].get("exclude_terms"),
    ),
    "over_commitment": ErrorClass(
        possible=lambda record, sample: _parsed(record, sample) and abstains_on_category(record["golden"]),
        occurred=lambda record, sample: sample["breakdown"]["overcommit"],
        golden=lambda record: {"category": record["golden"]["category"]},
        given=lambda sample: {"category": sample["plan"].get("category")},
    ),
}


def error_classes(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Per class of ERROR_CLASSES `count`, `of` (completions in which it can occur), `share`, and up to 3 `examples`.

    One completion may stand in several classes. Examples come from different records, worst total first; each holds
    `id`, `text`, `prior_context`, `golden` and `given` (what the class compares), `completion` and `total`.
    """
    found = {}
    for name, kind in ERROR_CLASSES.items():
        of, wrong = 0, []
        for record in records:
            possible = [sample for sample in record["samples"] if kind.possible(record, sample)]
            of += len(possible)
            wrong += [(record, sample) for sample in possible if kind.occurred(record, sample)]
        wrong.sort(key=lambda pair: pair[1]["breakdown"]["total"])  # stable: ties stay in the set's order
        found[name] = {**share(len(wrong), of), "examples": _examples(kind, wrong)}
    return found


def _examples(kind: ErrorClass, wrong: Sequence[tuple[Record, Sample]]) -> list[dict[str, Any]]:
    worst: dict[str, tuple[Record, Sample]] = {}
    for record, sample in wrong:
        worst.setdefault(record["id"], (record, sample))
    return [
        {
            "id": record["id"],
            "text": record["text"],
            "prior_context": record["prior_context"],
            "golden": kind.golden(record),
            "given": kind.given(sample),
            "completion": sample["completion"],
            "total": sample["breakdown"]["total"],
        }
        for record, sample in list(worst.values())[:EXAMPLES]
    ]
