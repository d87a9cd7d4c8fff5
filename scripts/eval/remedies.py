"""What each error needs, cheapest first: a line in the prompt, a rule, a tool, more data, or training.

- prompt: the model writes the wrong kind of thing, and often: something beside the object, the same fault of the
  format in at least SYSTEMATIC of the completions, keywords in another language than the catalogue's;
- rule: a rule of scripts/eval/plan_rules.py turns this plan into one without the error, and mends more plans of the set
  than it breaks;
- tool: something beside the model: JSON that the server enforces, or a few plans of which the search keeps one that
  finds something;
- training: another sample of the record is free of the error: the model can, and GRPO makes it do so more often;
- data: none of the samples is: there is nothing for GRPO to reinforce, rows that show it are missing (or the record is
  wrong: read the examples);
- untold: with one completion a record the last two cannot be told apart.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from scripts.eval.error_classes import ERROR_CLASSES
from scripts.eval.format_violations import violations
from scripts.eval.plan_rules import RULES, Plan, Rule, Said
from scripts.eval.summary import record_totals
from swift_plugin.cards import Card
from swift_plugin.reward_loader import Reward

PROMPT, RULE, TOOL, DATA, TRAINING, UNTOLD = KINDS = ("prompt", "rule", "tool", "data", "training", "untold")
CHEAPER = (PROMPT, RULE, TOOL, DATA)
# Errors that the plain reward does not see, and the gate that does: without it no training mends them.
UNSEEN = {"over_commitment": "overcommit", "exclusion_missed": "exclusion"}
SYSTEMATIC = 0.10  # of the parsed completions: more often than a slip
# Reasons of parse_plan that speak of what stands around the object; the rest is broken JSON.
AROUND = ("no_object", "list", "prose_brackets", "prose_think", "second_object", "second_fence")

Record = Mapping[str, Any]
Sample = Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """Where an error can occur, and when it has."""

    possible: Callable[[Record, Sample], bool]
    occurred: Callable[[Record, Sample], bool]


CLASSES: dict[str, Kind] = {
    "parse": Kind(ERROR_CLASSES["parse"].possible, ERROR_CLASSES["parse"].occurred),
    "format": Kind(
        lambda record, sample: sample["plan"] is not None, lambda record, sample: sample["breakdown"]["format"] < 1
    ),
    **{name: Kind(one.possible, one.occurred) for name, one in ERROR_CLASSES.items() if name != "parse"},
    "exclusion_missed": Kind(
        lambda record, sample: sample["plan"] is not None and record["golden"]["exclude_expected"],
        lambda record, sample: sample["breakdown"]["exclusion_missed"],
    ),
}


def errors_of(name: str, records: Sequence[Record]) -> tuple[list[tuple[Record, Sample]], int]:
    """The errors of a class, and the number of completions in which it can occur."""
    kind = CLASSES[name]
    possible = [(r, s) for r in records for s in r["samples"] if kind.possible(r, s)]
    return [(record, sample) for record, sample in possible if kind.occurred(record, sample)], len(possible)


# ------------------------------------------------------------------------------------------------ rules


def corrected(rule: Rule, record: Record, sample: Sample, cards: Sequence[Card], reward: Reward) -> Sample:
    """The sample with its plan corrected and scored again; the same object where the rule leaves the plan alone."""
    plan: Plan | None = sample["plan"]
    if plan is None:
        return sample
    after = rule.correct(plan, Said(record["text"], record["prior_context"], cards, reward))
    if after == plan:
        return sample
    parsed = Parsed(dict(after), tuple(sample["issues"]))
    breakdown = reward.compute_reward(
        parsed, record["golden"], record["text"], sample["titles"], weights=reward.DEFAULT_WEIGHTS, gates=()
    )
    return {**sample, "plan": after, "breakdown": breakdown.to_dict()}


class Parsed(NamedTuple):
    """A corrected plan with the issues its completion had: the shape that `compute_reward` reads."""

    plan: dict[str, Any]
    issues: tuple[str, ...]


@dataclass(frozen=True)
class RuleEffect:
    """What one rule does to the completions of a set, by its class: plans without the error now, and with it now.

    `change` is the mean change of the records' total, over all records.
    """

    mends: int
    breaks: int
    change: float
    mended: frozenset[int]  # ids of the sample objects

    @property
    def pays(self) -> bool:
        return self.mends > self.breaks and self.change >= 0


def rule_effect(rule: Rule, records: Sequence[Record], cards: Sequence[Card], reward: Reward) -> RuleEffect:
    """Apply the rule to every plan, right or wrong: in service nobody knows which is which."""
    kind = CLASSES[rule.error]
    after = with_rules([rule], records, cards, reward)
    mended, breaks = [], 0
    for record, changed in zip(records, after, strict=True):
        for sample, new in zip(record["samples"], changed["samples"], strict=True):
            was = kind.possible(record, sample) and kind.occurred(record, sample)
            is_now = kind.possible(record, new) and kind.occurred(record, new)
            if was and not is_now:
                mended.append(id(sample))
            breaks += is_now and not was
    totals = zip(record_totals(records), record_totals(after), strict=True)
    change = sum(new - old for old, new in totals) / len(records)
    return RuleEffect(len(mended), breaks, change, frozenset(mended))


def with_rules(
    rules: Sequence[Rule], records: Sequence[Record], cards: Sequence[Card], reward: Reward
) -> list[dict[str, Any]]:
    """The records with every plan corrected by the rules, one after the other."""
    found = []
    for record in records:
        samples = list(record["samples"])
        for rule in rules:
            samples = [corrected(rule, record, sample, cards, reward) for sample in samples]
        found.append({**record, "samples": samples})
    return found


# --------------------------------------------------------------------------------------- prompts and tools


def format_kinds(sample: Sample) -> list[str]:
    return violations(sample["plan"], sample["issues"])


def systematic_kinds(records: Sequence[Record]) -> dict[str, int]:
    """The kinds of format violations that stand in at least SYSTEMATIC of the parsed completions, with their counts."""
    samples = [s for record in records for s in record["samples"] if s["plan"] is not None]
    counts = Counter(kind for sample in samples for kind in set(format_kinds(sample)))
    return {kind: count for kind, count in counts.items() if count >= SYSTEMATIC * len(samples)}


def _around_the_object(sample: Sample) -> bool:
    return any(reason in AROUND for reason in sample["issues"])


def _other_language(sample: Sample) -> bool:
    """Whether most keywords hold letters that are not ASCII: the catalogue's language is English."""
    keywords = [word for word in sample["plan"].get("keywords") or [] if isinstance(word, str)]
    return 2 * sum(not word.isascii() for word in keywords) > len(keywords)


def _another_finds(record: Record) -> bool:
    return any((sample["breakdown"]["retrieval"] or 0) > 0 for sample in record["samples"])


@dataclass(frozen=True)
class Advice:
    """A remedy that is no rule: `mends(record, sample, systematic kinds)` of an error of this class."""

    error: str
    kind: str
    says: str
    mends: Callable[[Record, Sample, Mapping[str, int]], bool]


ADVICE: tuple[Advice, ...] = (
    Advice(
        "parse",
        PROMPT,
        "say in the prompt: one JSON object and nothing else",
        lambda record, sample, systematic: _around_the_object(sample),
    ),
    Advice(
        "parse",
        TOOL,
        "let the server enforce the JSON (structured output), and raise the token limit where it was cut",
        lambda record, sample, systematic: not _around_the_object(sample),
    ),
    Advice(
        "format",
        PROMPT,
        "say in the prompt what is wrong so often (types, keys, domains)",
        lambda record, sample, systematic: set(format_kinds(sample)) <= set(systematic),
    ),
    Advice(
        "format",
        TOOL,
        "let the server enforce a JSON schema: keys, types, the closed list of domains",
        lambda record, sample, systematic: True,
    ),
    Advice(
        "no_keywords",
        PROMPT,
        "say in the prompt: two to six keywords whenever something can be searched",
        lambda record, sample, systematic: False not in [_empty(one) for one in record["samples"]],
    ),
    Advice(
        "copied_sentence",
        PROMPT,
        "say in the prompt: keywords in the catalogue's language, short",
        lambda record, sample, systematic: _other_language(sample),
    ),
    Advice(
        "keywords_find_nothing",
        TOOL,
        "sample a few plans, search each, and keep one that finds something",
        lambda record, sample, systematic: _another_finds(record),
    ),
)


def _empty(sample: Sample) -> bool:
    return sample["plan"] is None or bool(sample["breakdown"]["empty_keywords"])


# ---------------------------------------------------------------------------------------------- the counts


@dataclass(frozen=True)
class ClassCounts:
    """One error class: its errors by what they need (KINDS), how, and an example id for each way."""

    errors: int
    of: int
    by_kind: Mapping[str, int]
    ways: Sequence[Mapping[str, Any]]

    @property
    def first(self) -> str | None:
        """What most of its errors need; the cheaper of two that need the same; None without errors."""
        return max(KINDS, key=lambda kind: (self.by_kind[kind], -KINDS.index(kind))) if self.errors else None


def class_counts(name: str, records: Sequence[Record], effects: Mapping[str, RuleEffect]) -> ClassCounts:
    """Every error of one class given to the cheapest remedy that mends it, in the order of KINDS.

    Args:
        effects: of every rule in RULES (`rule_effect`).
    """
    errors, of = errors_of(name, records)
    systematic = systematic_kinds(records) if name == "format" else {}
    ways: dict[tuple[str, str], list[str]] = {}
    for record, sample in errors:
        ways.setdefault(_remedy(name, record, sample, effects, systematic), []).append(record["id"])
    by_kind = Counter({kind: 0 for kind in KINDS})
    for (kind, _), ids in ways.items():
        by_kind[kind] += len(ids)
    listed = [
        {"kind": kind, "how": how, "errors": len(ids), "examples": list(dict.fromkeys(ids))[:3]}
        for (kind, how), ids in sorted(ways.items(), key=lambda way: (KINDS.index(way[0][0]), -len(way[1])))
    ]
    return ClassCounts(len(errors), of, dict(by_kind), listed)


def _remedy(
    name: str, record: Record, sample: Sample, effects: Mapping[str, RuleEffect], systematic: Mapping[str, int]
) -> tuple[str, str]:
    """Kind and way of the cheapest remedy of one error."""
    advised = [one for one in ADVICE if one.error == name and one.mends(record, sample, systematic)]
    ruled = [rule for label, rule in RULES.items() if rule.error == name and _mends(effects[label], sample)]
    ways = [
        *((PROMPT, one.says) for one in advised if one.kind == PROMPT),
        *((RULE, rule.says) for rule in ruled),
        *((TOOL, one.says) for one in advised if one.kind == TOOL),
    ]
    if ways:
        return ways[0]
    if len(record["samples"]) == 1:
        return UNTOLD, "one completion a record: evaluate with --samples 8"
    kind_of = CLASSES[name]
    gate = f", with the gate {UNSEEN[name]}: the plain reward does not see it" if name in UNSEEN else ""
    if any(kind_of.possible(record, s) and not kind_of.occurred(record, s) for s in record["samples"]):
        return TRAINING, f"other samples of the record are right: GRPO can make them more frequent{gate}"
    return DATA, f"no sample is right: add rows that show it, or mend the record; then GRPO{gate}"


def _mends(effect: RuleEffect, sample: Sample) -> bool:
    return effect.pays and id(sample) in effect.mended
