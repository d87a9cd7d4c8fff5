"""What is cheaper than training: every error class with its remedies, rules that are run, and the verdict."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from built_evaluations import write
from commands import run
from small_world import REWARD_FILE, TEXT, golden, plan, reward

from reward.planner_reward import parse_plan
from scripts.eval.error_classes import ERROR_CLASSES
from scripts.eval.plan_rules import RULES, Said, named_card
from scripts.eval.remedies import CLASSES, KINDS, class_counts, rule_effect, systematic_kinds
from scripts.eval.should_i_train import analyse, verdict
from swift_plugin.cards import DEFAULT_CARDS, load_cards

SCRIPT = "scripts/eval/should_i_train.py"
CARDS = load_cards(DEFAULT_CARDS)
TITLES = ["Nordvik Waterproof Running Shoes", "Alpra Running Socks"]
GOOD = plan("waterproof running shoes", "waterproof trainers")


def sample(completion: str, record: dict[str, Any], text: str, titles: list[str] | None = None) -> dict[str, Any]:
    parsed = parse_plan(completion)
    found = TITLES if titles is None else titles
    scores = reward().compute_reward(parsed, record, text, found, weights=reward().DEFAULT_WEIGHTS, gates=())
    return {
        "completion": completion, "plan": parsed.plan, "issues": list(parsed.issues), "search": None,
        "titles": found, "breakdown": scores.to_dict(),
    }  # fmt: skip


def record(name: str, *completions: str, text: str = TEXT, made: str = "", **more: Any) -> dict[str, Any]:
    parsed = reward().parse_golden(made or golden())
    titles = more.pop("titles", None)
    samples = [sample(one, parsed, text, titles) for one in completions]
    base = {"id": name, "family": "attribute", "text": text, "prior_context": [], "context_rendered": False}
    return {**base, "golden": parsed, "samples": samples, **more}


def counts(name: str, *records: dict[str, Any]) -> dict[str, int]:
    """The errors of one class by what they need; kinds without any are left out."""
    effects = {label: rule_effect(rule, records, CARDS, reward()) for label, rule in RULES.items()}
    found = class_counts(name, records, effects)
    assert sum(found.by_kind.values()) == found.errors == sum(way["errors"] for way in found.ways)
    return {kind: count for kind, count in found.by_kind.items() if count}


def test_every_error_class_is_judged() -> None:
    assert set(ERROR_CLASSES) < set(CLASSES) and {rule.error for rule in RULES.values()} <= set(CLASSES)


UNKNOWN = golden(category=None, domains=None, must_have=[], category_anchor="", status="context_missing")


@pytest.mark.parametrize(
    ("name", "records", "expected"),
    [
        ("parse", [record("a", "sure!", "sure!")], {"prompt": 2}),  # no object at all
        ("parse", [record("a", GOOD + GOOD)], {"prompt": 1}),  # two objects
        ("parse", [record("a", GOOD[:-4], '{"a": 1, "a": 2}')], {"tool": 2}),  # broken JSON
        ("format", [record("a", *[plan("shoes", budget_amount="300")] * 8)], {"prompt": 8}),  # always the same fault
        ("format", [record("a", plan("shoes", budget_amount="300"), *[GOOD] * 19)], {"tool": 1}),  # a slip
        ("category", [record("a", plan("shoes", category="台灯"), plan("shoes", category="鞋架"))], {"rule": 2}),
        ("category", [record("a", plan("shoes", category="台灯"), GOOD, text="防水的")], {"training": 1}),
        ("category", [record("a", *[plan("shoes", category="台灯")] * 2, text="防水的")], {"data": 2}),
        ("category", [record("a", plan("shoes", category="台灯"), text="防水的")], {"untold": 1}),
        ("domain", [record("a", plan("shoes", domains=["pet"]), GOOD, text="防水的")], {"rule": 1}),  # by the category
        ("domain", [record("a", plan("shoes", domains=["pet"], category="无名"), GOOD)], {"rule": 1}),  # by the turn
        ("domain", [record("a", plan("x", domains=[], category="无名"), GOOD, text="防水的")], {"training": 1}),
        (
            "budget",
            [record("a", GOOD, GOOD, text="三百以内的跑鞋", made=golden(budget_amount=300))],
            {"rule": 2},
        ),
        ("budget", [record("a", GOOD, GOOD, made=golden(budget_amount=300))], {"data": 2}),  # not said: no rule knows
        ("no_keywords", [record("a", plan(), plan())], {"prompt": 2}),  # never any
        ("no_keywords", [record("a", plan(), GOOD)], {"training": 1}),
        ("keywords_find_nothing", [record("a", GOOD, GOOD, titles=["Desk Lamp"])], {"data": 2}),
        ("copied_sentence", [record("a", plan(TEXT), GOOD)], {"prompt": 1}),  # in the shopper's language
        (
            "invented_evidence",
            [record("a", plan("shoes", exclude_terms=[{"word": "mesh", "evidence": "不要网面"}]), GOOD)],
            {"rule": 1},
        ),
        (
            "over_commitment",
            [record("a", GOOD, plan(category=""), text="有没有便宜点的", made=UNKNOWN)],
            {"rule": 1},
        ),
        ("over_commitment", [record("a", GOOD, plan(category=""), text="送人的", made=UNKNOWN)], {"training": 1}),
        ("exclusion_missed", [record("a", GOOD, GOOD, made=golden(exclude_expected=True))], {"data": 2}),
    ],
)
def test_the_cheapest_remedy(name: str, records: list[dict[str, Any]], expected: dict[str, int]) -> None:
    assert counts(name, *records) == expected


def test_the_search_keeps_a_plan_that_finds_something() -> None:
    one = record("a", GOOD, GOOD)
    one["samples"][0] = sample(GOOD, one["golden"], TEXT, ["Desk Lamp"])
    assert counts("keywords_find_nothing", one) == {"tool": 1}


def test_a_rule_that_breaks_more_than_it_mends_is_not_counted() -> None:
    # The shopper names one card and wants another thing: the rule by name is wrong there.
    wrong = record("mended", plan("shoes", category="台灯"))
    misled = [record(f"broken-{n}", plan("socks", category="袜子"), made=golden(category="袜子")) for n in range(2)]
    alone = rule_effect(RULES["category by name"], [wrong], CARDS, reward())
    assert (alone.mends, alone.breaks, alone.pays) == (1, 0, True) and alone.change > 0
    both = rule_effect(RULES["category by name"], [wrong, *misled], CARDS, reward())
    assert (both.mends, both.breaks, both.pays) == (1, 2, False) and both.change < 0
    assert counts("category", wrong, *misled) == {"untold": 1}


def test_a_rules_gain_is_the_rewards_own() -> None:
    faked = plan("waterproof running shoes", "trainers", exclude_terms=[{"word": "mesh", "evidence": "不要网面"}])
    one = record("a", faked, faked)
    honest = record("a", plan("waterproof running shoes", "trainers"))
    effect = rule_effect(RULES["said evidence only"], [one], CARDS, reward())
    gain = honest["samples"][0]["breakdown"]["total"] - one["samples"][0]["breakdown"]["total"]
    assert effect.change == pytest.approx(gain) and gain > 0.1


@pytest.mark.parametrize(
    ("label", "given", "text", "prior", "changed"),
    [
        ("category by name", {"category": "台灯"}, "想买跑鞋", [], {"category": "跑鞋"}),
        ("category by name", {"category": "台灯"}, "跑鞋和台灯都要", [], {}),  # two cards
        ("category by name", {"category": "台灯"}, "要防水的", ["想买跑鞋"], {}),  # only this turn
        ("budget by rule", {"budget_amount": 5}, "三百以内", [], {"budget_amount": 300, "clear_budget": False}),
        ("budget by rule", {"budget_amount": 5}, "十五六块", [], {}),
        ("domains by card", {"category": "跑鞋", "domains": []}, "x", [], {"domains": ["footwear"]}),
        ("domains by card", {"category": "台灯", "domains": []}, "想买跑鞋", [], {"domains": ["footwear"]}),
        ("domains by card", {"category": None}, "x", [], {}),
        ("domains by card", {"category": 7}, "x", [], {}),  # a model writes anything
        ("said evidence only", {"exclude_terms": [{"word": "a", "evidence": "不要"}]}, "不要a", [], {}),
        ("said evidence only", {"exclude_terms": [{"word": "a", "evidence": "没说"}]}, "b", [], {"exclude_terms": []}),
        ("said evidence only", {"exclude_terms": ["mesh", None]}, "b", [], {}),
        ("said evidence only", {"exclude_terms": "mesh"}, "b", [], {}),
        ("fragments abstain", {"category": "跑鞋"}, "有没有便宜点的", [], {"category": None}),
        ("fragments abstain", {"category": "跑鞋"}, "有没有便宜点的", ["想买跑鞋"], {}),
    ],
)
def test_rules(label: str, given: dict[str, Any], text: str, prior: list[str], changed: dict[str, Any]) -> None:
    after = RULES[label].correct(given, Said(text, prior, CARDS, reward()))
    assert after == {**given, **changed}


def test_the_longer_name_counts() -> None:
    for card in CARDS:
        inner = [other for other in CARDS if other is not card and any(name in card.zh for name in other.names)]
        if inner and card.zh not in card.ambiguous:
            found = named_card(f"想买{card.zh}", CARDS)
            assert found is not None and found.id == card.id
            return
    pytest.fail("no card's name stands inside another's: the test has nothing to show")


def test_systematic_faults_are_counted_over_parsed_completions() -> None:
    one = record("a", *[plan("shoes", budget_amount="300")] * 2, *[GOOD] * 18, *["no plan"] * 30)
    assert systematic_kinds([one]) == {"type: budget_amount": 2}
    one["samples"].append(sample(GOOD, one["golden"], TEXT))
    assert systematic_kinds([one]) == {}


@pytest.mark.parametrize(
    ("errors", "cheaper", "untold", "train", "words"),
    [
        (0, 0, 0, True, "nothing here is cheaper"),
        (10, 5, 0, False, "not yet: 5 of 10"),
        (10, 4, 0, True, "train: 4 of 10"),
        (10, 3, 1, True, "6 are left for training, 1 cannot be told apart without --samples"),
        (10, 4, 1, False, "cannot say without --samples: 4 of 10"),  # 5 left: what is untold may tip it
        (48, 17, 31, False, "0 are left for training, 31 cannot be told apart"),
    ],
)
def test_the_verdict(errors: int, cheaper: int, untold: int, train: bool, words: str) -> None:
    found = verdict(errors, cheaper, untold)
    assert found["train_now"] is train and words in found["words"]


# ------------------------------------------------------------------------------------------------- the command


def evaluation(folder: Path, *records: dict[str, Any], **changes: Any) -> str:
    facts = {"reward_sha256": reward().sha256, **changes}
    return write(folder / "e", {"greedy": [{**one, "samples": one["samples"][:1]} for one in records],
                                "samples": list(records)}, **facts)  # fmt: skip


def test_the_command(tmp_path: Path) -> None:
    budgets = [
        record(f"b{n}", GOOD, GOOD, text="三百以内的跑鞋", made=golden(budget_amount=300)) for n in range(3)
    ]
    shaky = record("s", plan("shoes", category="台灯"), GOOD, text="防水的")
    prefix = evaluation(tmp_path, *budgets, shaky)
    printed = run([sys.executable, SCRIPT, prefix], {}, code=1)
    made = json.loads(Path(f"{prefix}.remedies.json").read_text(encoding="utf-8"))
    assert made["mode"] == "samples"
    assert made["classes"]["budget"]["by_kind"]["rule"] == 6 and made["classes"]["budget"]["first"] == "rule"
    assert made["rules"]["budget by rule"]["mends"] == 6 and made["rules"]["budget by rule"]["breaks"] == 0
    assert made["rules_together"]["change"]["mean"] > 0
    assert set(made["classes"]["category"]["by_kind"]) == set(KINDS)
    assert "not yet:" in printed and "read the money with reward/budget.py" in printed
    other = evaluation(tmp_path / "train", shaky)
    again = run([sys.executable, SCRIPT, other, "--json", f"{tmp_path}/x.json"], {})
    assert "train: 0 of 1 errors" in again and (tmp_path / "x.json").exists()


def test_one_greedy_answer_a_record_cannot_say(tmp_path: Path) -> None:
    untold = record("a", plan("shoes", category="台灯"), text="防水的")
    prefix = write(tmp_path / "e", {"greedy": [untold]}, reward_sha256=reward().sha256)
    assert "cannot say without --samples: 0 of 1 errors" in run([sys.executable, SCRIPT, prefix], {}, code=1)


def test_an_evaluation_of_another_reward_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(REWARD_FILE.read_text(encoding="utf-8") + "\n# another\n", encoding="utf-8")
    prefix = evaluation(tmp_path, record("a", GOOD))
    said = run([sys.executable, SCRIPT, prefix], {"PLANNER_REWARD_FILE": str(other)}, code=2)
    assert "was scored by the reward" in said and "Traceback" not in said
    assert "no answer:" in run([sys.executable, SCRIPT, f"{tmp_path}/none"], {}, code=2)
    assert "example:\n  python scripts/eval/should_i_train.py" in run([sys.executable, SCRIPT, "--help"], {})


def test_a_perfect_evaluation_has_nothing_to_mend() -> None:
    made = analyse([record("a", plan("waterproof running shoes", "waterproof trainers"))], CARDS, reward())
    assert {name: one["errors"] for name, one in made["classes"].items()} == dict.fromkeys(CLASSES, 0)
    assert made["verdict"]["train_now"]
