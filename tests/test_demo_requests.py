"""The demo's request sets: what the issue asks of dev92, goldens by construction, and no leak into training."""

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from reward.planner_reward import DOMAINS, compute_reward, parse_golden, parse_plan, term_hits
from scripts.data.anchor_filter import keep
from scripts.data.build_demo_requests import DATA, ROOT, draw, load_unwanted, make_sets, sessions_of, shares
from scripts.data.demo_cards import DEMO_CARDS, write_demo_cards
from scripts.data.demo_money import chinese_numeral, short_numeral, written_amount, written_range, written_vague
from scripts.data.demo_requests import FAMILIES, Facts, Shopper
from scripts.data.demo_targets import described
from scripts.data.demo_templates import SECTIONS, WITH_EVIDENCE, fill, load_templates
from scripts.data.dev_from_anchors import load_dev
from scripts.data.near_duplicates import (
    CONTAINMENT_LIMIT,
    JACCARD_LIMIT,
    HeldTexts,
    closeness,
    normalised,
    pairs,
)
from scripts.data.sessions import read_sessions, session_faults, turn_texts
from swift_plugin.cards import DEFAULT_CARDS, Card, load_cards
from swift_plugin.prompts import build_messages

STYLE = "short"
SFT_ROWS, GRPO_ROWS = 6000, 1500
DEV_FILE = DATA / "anchors.jsonl"
TEMPLATE_FILES = {name: DATA / "demo" / f"templates_{name}.json" for name in ("train", "watch", "test")}
USABLE_DOMAINS = set(DOMAINS) - {"global", "other"}
REFUSALS = ("不要", "别", "不考虑", "不喝", "不吃", "pass", "去掉", "剔")  # how dev92 states a hard exclusion

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def card_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cards") / "cards.jsonl"
    write_demo_cards(DEFAULT_CARDS, path)
    return path


@pytest.fixture(scope="module")
def cards(card_file: Path) -> tuple[Card, ...]:
    return load_cards(card_file)


@pytest.fixture(scope="module")
def dev_source() -> Rows:
    """The last turns of the anchors that are kept, with what was written by hand for them."""
    return [
        {
            **{key: session[key] for key in ("id", "source", "family")},
            "text": turn_texts(session)[-1],
            "prior_context": turn_texts(session)[:-1],
            "golden": session["turns"][-1]["golden"],
        }
        for session in keep(read_sessions(DEV_FILE))[0]
    ]


def build(cards: tuple[Card, ...], seed: int = 7, rows: tuple[int, int] = (SFT_ROWS, GRPO_ROWS)) -> dict[str, Rows]:
    unwanted = load_unwanted(DATA / "demo" / "exclusions.jsonl")
    return make_sets(cards, unwanted, load_dev(DEV_FILE, cards, STYLE), seed, rows, STYLE)


@pytest.fixture(scope="module")
def sets(cards: tuple[Card, ...]) -> dict[str, Rows]:
    return build(cards)


@pytest.fixture(scope="module")
def training(sets: dict[str, Rows]) -> Rows:
    return sets["sft"] + sets["grpo"]


def golden_of(row: dict[str, Any]) -> dict[str, Any]:
    return parse_golden(row["golden_json"], row["id"])


def turns_of(row: dict[str, Any]) -> list[str]:
    return [*row["prior_context"], row["text"]]


# --------------------------------------------------------------------------------------------- dev92


def test_dev92_holds_what_the_issue_asks_for(dev_source: Rows) -> None:
    goldens = [parse_golden(row["golden"], row["id"]) for row in dev_source]
    domains = Counter(domain for golden in goldens for domain in golden["domains"] or ())
    assert len(goldens) == 92
    assert sum(golden["category"] is None for golden in goldens) >= 24
    assert sum(golden["budget_uncertain"] for golden in goldens) >= 10
    assert sum(golden["exclude_expected"] for golden in goldens) >= 20
    assert {domain for domain, count in domains.items() if count >= 2} == USABLE_DOMAINS
    assert sum(bool(row["prior_context"]) for row in dev_source) >= 10
    assert 50 <= sum(bool(golden["must_have"] and golden["category_anchor"]) for golden in goldens) <= 60


def test_dev92_records_are_written_by_hand_and_distinct(dev_source: Rows) -> None:
    assert {row["source"] for row in dev_source} == {"handwritten"}
    assert len({row["id"] for row in dev_source}) == len({normalised(row["text"]) for row in dev_source}) == 92


def test_dev92_goldens_repeat_their_card(dev_source: Rows, cards: tuple[Card, ...]) -> None:
    by_anchor = {card.anchor: card for card in cards}
    for row in dev_source:
        golden = row["golden"]
        if golden["category"] is None:
            # Without a category nothing can be judged but budget and exclusion.
            assert (golden["domains"], golden["must_have"]) == (None, []), row["id"]
            assert golden["category_anchor"] == "", row["id"]
            continue
        card = by_anchor[golden["category_anchor"]]
        assert golden["category"] == card.zh, row["id"]
        assert golden["domains"] == list(card.domains), row["id"]


def test_dev92_asks_for_attributes_that_training_never_saw_on_that_card(
    dev_source: Rows, cards: tuple[Card, ...]
) -> None:
    by_anchor = {card.anchor: card for card in cards}
    for row in dev_source:
        golden = row["golden"]
        if not golden["must_have"]:
            continue
        asked = [
            attribute
            for attribute in by_anchor[golden["category_anchor"]].attributes
            if set(attribute.must_have) <= set(golden["must_have"])
        ]
        assert {term for one in asked for term in one.must_have} == set(golden["must_have"]), row["id"]
        assert any(attribute.held_out for attribute in asked), row["id"]


def test_dev92_names_the_category_where_it_can_be_known(dev_source: Rows, cards: tuple[Card, ...]) -> None:
    by_anchor = {card.anchor: card for card in cards}
    for row in dev_source:
        golden = row["golden"]
        if golden["category"]:
            card = by_anchor[golden["category_anchor"]]
            assert any(name in turn for name in card.names for turn in turns_of(row)), row["id"]


def test_dev92_fragments_and_budgets_are_consistent(dev_source: Rows) -> None:
    for row in dev_source:
        golden = row["golden"]
        fragment = row["family"] == "follow_up_no_context"
        assert (golden["status"] == "context_missing") == fragment, row["id"]
        assert not (fragment and row["prior_context"]), row["id"]
        assert not (golden["budget_uncertain"] and golden["budget_amount"] is not None), row["id"]
        assert golden["exclude_expected"] <= any(refusal in row["text"] for refusal in REFUSALS), row["id"]
        if row["family"] == "budget_lower_bound":
            assert golden["budget_amount"] is None, row["id"]  # a lower bound alone is no budget


# ------------------------------------------------------------------------------------- no leak into training


def test_no_dev_text_or_near_duplicate_is_in_training(training: Rows, dev_source: Rows) -> None:
    trained = {turn: pairs(turn) for row in training for turn in turns_of(row)}
    plain = {normalised(turn) for turn in trained}
    highest_jaccard, highest_containment = (0.0, "", ""), (0.0, "", "")
    for row in dev_source:
        held = pairs(row["text"])
        assert normalised(row["text"]) not in plain, row["id"]
        for turn, turn_pairs in trained.items():
            shared = len(held & turn_pairs)
            if shared > highest_containment[0] * len(held):
                highest_containment = (shared / len(held), row["text"], turn)
            if shared > highest_jaccard[0] * (len(held) + len(turn_pairs) - shared):
                highest_jaccard = (shared / (len(held) + len(turn_pairs) - shared), row["text"], turn)
    print(f"highest Jaccard {highest_jaccard}, highest containment {highest_containment}")
    assert highest_jaccard[0] < JACCARD_LIMIT, highest_jaccard
    assert highest_containment[0] < CONTAINMENT_LIMIT, highest_containment


def test_templates_of_the_splits_are_disjoint() -> None:
    found = {}
    for name, path in TEMPLATE_FILES.items():
        templates = load_templates(path)
        found[name] = {normalised(text) for section in SECTIONS for text in templates.sections[section]}
        found[name].discard(normalised("{r}"))  # a bare range holds no wording of its own
    assert len(found["train"]) >= 60
    assert not found["train"] & found["watch"]
    assert not found["train"] & found["test"]
    assert not found["watch"] & found["test"]


def test_training_never_holds_a_held_out_attribute_of_its_card(training: Rows, cards: tuple[Card, ...]) -> None:
    by_anchor = {card.anchor: card for card in cards}
    by_name = {name: card for card in cards for name in card.names if name not in card.ambiguous}
    judged = 0
    for row in training:
        golden = golden_of(row)
        if not golden["category_anchor"]:
            continue
        card = by_anchor[golden["category_anchor"]]
        # In a switch the earlier turns are about another card: the longest name says which.
        turns = [(row["text"], card)]
        for turn in row["prior_context"]:
            named = max((name for name in by_name if name in turn), key=len, default=None)
            turns.append((turn, by_name[named] if row["family"] == "switch" and named else card))
        for turn, owner in turns:
            forms = [form for one in owner.attributes if one.held_out for form in one.zh]
            assert not [form for form in forms if form in turn], (row["id"], turn, owner.id)
            judged += 1
        answer = row["messages"][-1]
        if answer["role"] == "assistant":
            terms = json.loads(answer["content"])["keywords"]
            held_out = [one.en for one in card.attributes if one.held_out]
            assert not [en for en in held_out for term in terms if term_hits(en, term)], row["id"]
    assert judged > SFT_ROWS / 2


def test_watch_and_test_mostly_ask_for_held_out_attributes(sets: dict[str, Rows], cards: tuple[Card, ...]) -> None:
    by_anchor = {card.anchor: card for card in cards}
    asked = held_out = 0
    for row in sets["watch"] + sets["test"]:
        golden = golden_of(row)
        if golden["must_have"]:
            asked += 1
            held_out += any(
                one.held_out and set(one.must_have) <= set(golden["must_have"])
                for one in by_anchor[golden["category_anchor"]].attributes
            )
    assert held_out / asked > 0.6


# --------------------------------------------------------------------------------------------- the sets


def test_sizes_splits_and_identities(sets: dict[str, Rows]) -> None:
    sizes = {name: len(rows) for name, rows in sets.items()}
    assert sizes == {"sft": SFT_ROWS, "grpo": GRPO_ROWS, "dev92": 92, "watch": 32, "test": 96}
    splits = {name: {row["split"] for row in rows} for name, rows in sets.items()}
    assert splits == {"sft": {"train"}, "grpo": {"train"}, "dev92": {"dev92"}, "watch": {"watch"}, "test": {"test"}}
    for name, rows in sets.items():
        assert len({row["id"] for row in rows}) == len(rows), name
        assert {tuple(row) for row in rows} == {
            ("id", "messages", "text", "prior_context", "family", "split", "golden_json")
        }
    for name in ("sft", "grpo", "watch", "test"):
        assert {row["family"] for row in sets[name]} == set(FAMILIES), name


def test_every_domain_and_card_is_trained(sets: dict[str, Rows], cards: tuple[Card, ...]) -> None:
    goldens = [golden_of(row) for row in sets["sft"]]
    domains = Counter(domain for golden in goldens for domain in golden["domains"] or ())
    assert set(domains) == USABLE_DOMAINS and min(domains.values()) >= 50
    anchors = Counter(golden["category_anchor"] for golden in goldens)
    assert min(anchors[card.anchor] for card in cards) >= 30


def test_only_training_may_hold_review_records(sets: dict[str, Rows]) -> None:
    for name, rows in sets.items():
        assert {golden_of(row)["status"] for row in rows} == {"agree", "context_missing"}, name


def test_prompts_of_sft_and_grpo_are_equal_to_the_byte(sets: dict[str, Rows]) -> None:
    sft = {row["id"]: row for row in sets["sft"]}
    shared = [row for row in sets["grpo"] if row["id"] in sft]
    assert len(shared) > GRPO_ROWS / 5
    for row in shared:
        other = sft[row["id"]]
        assert json.dumps(row["messages"]) == json.dumps(other["messages"][:-1])
        assert (row["text"], row["golden_json"]) == (other["text"], other["golden_json"])
    fresh = {tuple(turns_of(row)) for row in sets["grpo"] if row["id"] not in sft}
    assert not fresh & {tuple(turns_of(row)) for row in sets["sft"]}


def test_prompts_hold_the_words_of_the_shopper_and_nothing_of_the_golden(sets: dict[str, Rows]) -> None:
    for name, rows in sets.items():
        for row in rows:
            prompt = row["messages"][:-1] if name == "sft" else row["messages"]
            assert prompt == build_messages(row["text"], row["prior_context"], STYLE), row["id"]


def test_targets_parse_without_issue_and_are_well_formed(sets: dict[str, Rows]) -> None:
    for row in sets["sft"]:
        plan = parse_plan(row["messages"][-1]["content"])
        assert plan.plan is not None and plan.issues == (), row["id"]
        scored = compute_reward(
            plan, row["golden_json"], row["text"], None, gates=("domain", "overcommit", "exclusion")
        )
        assert scored.format == 1.0, row["id"]
        assert not scored.evidence_faked, row["id"]
        assert scored.field_score in (None, 1.0), row["id"]
        assert list(plan.plan) == [
            "category",
            "domains",
            "budget_amount",
            "clear_budget",
            "keywords",
            "exclude_terms",
        ], row["id"]


def test_targets_answer_what_the_golden_expects(sets: dict[str, Rows]) -> None:
    for row in sets["sft"]:
        golden = golden_of(row)
        plan = json.loads(row["messages"][-1]["content"])
        assert plan["budget_amount"] == golden["budget_amount"], row["id"]  # uncertain sums: nothing was named
        assert bool(plan["exclude_terms"]) == golden["exclude_expected"], row["id"]
        if golden["category"] is None:
            assert (plan["category"], plan["domains"], plan["keywords"]) == ("", ["other"], []), row["id"]
        else:
            assert 3 <= len(plan["keywords"]) <= 5 and len(set(plan["keywords"])) == len(plan["keywords"]), row["id"]
            first = plan["keywords"][0]
            assert golden["category_anchor"] in first, row["id"]
            assert (
                not golden["must_have"]
                or any(term_hits(term, first) for term in golden["must_have"])
                or any(word in first for word in ("with ", "for "))
            ), row["id"]


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("exclusion_hard", {True}),  # 不要黑色的
        ("exclusion_soft", {False}),  # 不太喜欢黑色 is a taste
        ("combo", {True, False}),
        ("multi_turn", {True, False}),
        ("follow_up_no_context", {True, False}),
        ("chitchat", {False}),
    ],
)
def test_exclusions_are_expected_only_where_stated(sets: dict[str, Rows], family: str, expected: set[bool]) -> None:
    found = {golden_of(row)["exclude_expected"] for row in sets["sft"] if row["family"] == family}
    assert found == expected


def test_budget_families_mean_what_they_say(sets: dict[str, Rows]) -> None:
    for row in sets["sft"] + sets["watch"] + sets["test"]:
        golden, family = golden_of(row), row["family"]
        assert golden["budget_uncertain"] == (family == "budget_colloquial"), row["id"]
        assert golden["clear_budget"] <= (family in ("budget_lifted", "follow_up_no_context")), row["id"]
        if family in ("budget_exact", "budget_range"):
            assert golden["budget_amount"] is not None and golden["budget_amount"] > 0, row["id"]
        if family in ("budget_colloquial", "budget_lower_bound", "budget_open", "budget_lifted", "single"):
            assert golden["budget_amount"] is None, row["id"]
        if family == "budget_lifted":
            assert row["prior_context"] and golden["clear_budget"], row["id"]


def test_follow_ups_without_context_leave_the_category_open(sets: dict[str, Rows]) -> None:
    for row in sets["sft"]:
        golden = golden_of(row)
        unknown = row["family"] in ("follow_up_no_context", "chitchat", "vague")
        assert (golden["category"] is None) == unknown, row["id"]
        assert (golden["status"] == "context_missing") == (row["family"] == "follow_up_no_context"), row["id"]
        assert bool(row["prior_context"]) == (row["family"] in ("multi_turn", "switch", "budget_lifted")), row["id"]


def test_same_seed_same_sets_other_seed_other_requests(cards: tuple[Card, ...]) -> None:
    first, again, other = (build(cards, seed, (200, 60)) for seed in (3, 3, 4))
    assert first == again
    assert {row["text"] for row in first["sft"]} != {row["text"] for row in other["sft"]}
    assert first["dev92"] == other["dev92"]


# --------------------------------------------------------------------------------------------- the parts


@pytest.mark.parametrize(
    ("amount", "full", "short"),
    [
        (5, "五", "五"),
        (10, "十", "十"),
        (15, "十五", "十五"),
        (20, "二十", "二十"),
        (105, "一百零五", "一百零五"),  # the gap is spoken
        (110, "一百一十", "一百一"),
        (200, "二百", "两百"),
        (250, "二百五十", "两百五"),
        (1000, "一千", "一千"),
        (1008, "一千零八", "一千零八"),  # one 零 for any gap
        (1080, "一千零八十", "一千零八十"),
        (1500, "一千五百", "一千五"),
        (2050, "二千零五十", "两千零五十"),
        (12000, "一万二千", "一万二千"),
    ],
)
def test_numerals(amount: int, full: str, short: str) -> None:
    assert (chinese_numeral(amount), short_numeral(amount)) == (full, short)


@pytest.mark.parametrize("amount", [0, -1, 100_000])
def test_numerals_refuse_what_they_cannot_say(amount: int) -> None:
    with pytest.raises(ValueError, match=str(amount)):
        chinese_numeral(amount)


def test_written_sums_keep_their_amount() -> None:
    rng = random.Random(0)
    forms = {written_amount(rng, 1500) for _ in range(400)}
    assert {"一千五", "1.5k", "1千5", "１５００元", "1,500元", "￥1500"} <= forms
    assert {"300", "三百块", "3百块", "两百"} <= {
        written_amount(rng, amount) for amount in (200, 300) for _ in range(300)
    }
    assert {"200-300", "两百到三百", "二百至三百块"} <= {written_range(rng, 200, 300) for _ in range(300)}
    vague = {written_vague(rng, near) for near in (16, 35, 150, 260, 1400) for _ in range(100)}
    assert {"十五六块", "十六七块", "三四十块", "百来块", "两三百", "一千多"} & vague >= {
        "十六七块",
        "两三百",
        "百来块",
    }


def test_evidence_is_cut_from_the_text_as_written() -> None:
    filled = fill("但是[不要{x}]的", {"x": "黑色"})
    assert (filled.text, filled.evidence) == ("但是不要黑色的", "不要黑色")
    assert fill("想买{cat}", {"cat": "跑鞋"}).evidence == ""
    noisy = [fill("[{x}的不要]", {"x": "黑色"}, random.Random(seed), (("的", "滴"),)) for seed in range(40)]
    assert {one.evidence for one in noisy} == {"黑色的不要", "黑色滴不要"}
    assert all(one.evidence in one.text for one in noisy)


@pytest.mark.parametrize(
    ("attributes", "phrase"),
    [
        ((), "running shoes"),
        (("waterproof",), "waterproof running shoes"),
        (("for men",), "running shoes for men"),
        (("waterproof", "for men"), "waterproof running shoes for men"),
        (("with pockets", "black"), "black running shoes with pockets"),
    ],
)
def test_described_puts_each_attribute_where_english_does(attributes: tuple[str, ...], phrase: str) -> None:
    assert described("running shoes", *attributes) == phrase


@pytest.mark.parametrize(
    ("first", "second", "near"),
    [
        ("想买防水的跑鞋", "想买防水的跑鞋！", True),  # punctuation is no difference
        ("想买防水的跑鞋", "想买 防水的 跑鞋 谢谢", True),
        ("想买防水的跑鞋", "你好，想买防水的跑鞋，三百以内", True),  # contained
        ("想买防水的跑鞋", "推荐个真皮沙发", False),
        ("夜跑老怕车看不见我，想弄件反光的外套", "想买反光的外套", False),  # same wish in other words
    ],
)
def test_near_duplicates(first: str, second: str, near: bool) -> None:
    assert closeness(pairs(first), pairs(second)).near_duplicate == near
    assert HeldTexts([first]).near_duplicate([second]) == near


def test_training_drops_what_comes_close_to_a_held_text(cards: tuple[Card, ...]) -> None:
    unwanted = load_unwanted(DATA / "demo" / "exclusions.jsonl")

    def texts(held: Sequence[str]) -> list[str]:
        shopper = Shopper(random.Random(5), cards, unwanted, load_templates(TEMPLATE_FILES["train"]), 0.0)
        return [one.text for one in draw(shopper, 100, {"attribute": 1}, set(), HeldTexts(held), "test")]

    free = texts([])
    assert free[0] in free and free[0] not in texts([free[0]])
    assert not any(HeldTexts(free[:20]).near_duplicate([text]) for text in texts(free[:20]))


def test_exhausted_templates_are_an_error_that_names_the_family(cards: tuple[Card, ...]) -> None:
    unwanted = load_unwanted(DATA / "demo" / "exclusions.jsonl")
    shopper = Shopper(random.Random(5), cards, unwanted, load_templates(TEMPLATE_FILES["watch"]), 0.5)
    with pytest.raises(ValueError, match="no new request of family chitchat"):
        draw(shopper, 5000, {"chitchat": 1}, set(), HeldTexts([]), "test")


def test_nobody_excludes_what_they_ask_for(cards: tuple[Card, ...]) -> None:
    """带灯 and LED灯 share no Chinese form, only the English word."""
    unwanted = load_unwanted(DATA / "demo" / "exclusions.jsonl")
    shopper = Shopper(random.Random(5), cards, unwanted, load_templates(TEMPLATE_FILES["train"]), 0.0)
    toy = next(card for card in cards if card.id == "cat_toy")
    led = next(one for one in toy.attributes if one.en == "led")
    words_without = {shopper._pick_unwanted(Facts(card=toy)).en for _ in range(300)}
    words_with = {shopper._pick_unwanted(Facts(card=toy, attributes=(led,))).en for _ in range(300)}
    assert words_without - words_with == {"led"}


def test_shares_add_up() -> None:
    assert shares(10, {"a": 1, "b": 1, "c": 1}) == {"a": 4, "b": 3, "c": 3}
    assert sum(shares(6000, {name: mix[0] for name, mix in FAMILIES.items()}).values()) == 6000


def test_every_section_has_a_template_and_exclusions_mark_their_evidence(tmp_path: Path) -> None:
    good = json.loads(TEMPLATE_FILES["train"].read_text(encoding="utf-8"))
    broken = {
        "slot": {**good, "attribute": ["想买{cat}"]},
        "evidence": {**good, WITH_EVIDENCE[0]: ["不要{x}"]},
        "empty": {**good, "single": []},
        "unknown": {**good, "singel": ["想买{cat}"]},
    }
    for name, data in broken.items():
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(data), encoding="utf-8")
        with pytest.raises(ValueError, match=name):
            load_templates(path)


def test_a_shopper_without_held_out_share_never_draws_one(cards: tuple[Card, ...]) -> None:
    unwanted = load_unwanted(DATA / "demo" / "exclusions.jsonl")
    templates = load_templates(TEMPLATE_FILES["train"])
    shopper = Shopper(random.Random(1), cards, unwanted, templates, 0.0)
    for family in FAMILIES:
        for _ in range(100):
            facts = shopper.request(family).facts
            assert not any(attribute.held_out for attribute in facts.attributes), family
            assert facts.unwanted is None or not facts.unwanted.held_out, family


def test_excluded_words_never_contradict_the_wish(sets: dict[str, Rows]) -> None:
    for row in sets["sft"]:
        golden = golden_of(row)
        for exclusion in json.loads(row["messages"][-1]["content"])["exclude_terms"]:
            asked = [*golden["must_have"], golden["category_anchor"]]
            assert not any(term_hits(exclusion["word"], term) for term in asked), row["id"]


# --------------------------------------------------------------------------------------------- the command


def run_builder(*arguments: str) -> subprocess.CompletedProcess[str]:
    script = ROOT / "scripts" / "data" / "build_demo_requests.py"
    return subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, cwd="/")


def test_the_command_writes_sessions_that_can_be_read_and_reports_them(tmp_path: Path) -> None:
    done = run_builder("--out", str(tmp_path), "--sft-rows", "150", "--grpo-rows", "40")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)["sets"]
    rows = {"sft": 150, "grpo": 40, "dev92": 92, "watch": 32, "test": 96}
    assert {name: counts["rows"] for name, counts in report.items()} == rows
    assert report["dev92"]["category_abstains"] >= 24
    splits = Counter(one["split"] for one in read_sessions(tmp_path / "grpo_sessions.jsonl"))
    assert splits == {"train": 40, "watch": 32, "test": 96}
    assert {one["split"] for one in read_sessions(tmp_path / "sft_sessions.jsonl")} == {"train"}
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--cards", "no/cards.jsonl"), "no/cards.jsonl"),
        (("--dev", "no/dev.jsonl"), "no/dev.jsonl"),
        (("--sft-rows", "0"), "--sft-rows"),
    ],
)
def test_the_command_names_what_is_wrong(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = run_builder("--out", str(tmp_path), *arguments)
    assert done.returncode == 2 and said in done.stderr
    assert not list(tmp_path.iterdir())


def test_dev92_takes_must_not_from_the_card(sets: dict[str, Rows], cards: tuple[Card, ...]) -> None:
    by_anchor = {card.anchor: list(card.must_not) for card in cards}
    for row in sets["dev92"]:
        golden = golden_of(row)
        assert golden["must_not"] == by_anchor.get(golden["category_anchor"], []), row["id"]


def test_sessions_say_what_the_rows_say(sets: dict[str, Rows], cards: tuple[Card, ...]) -> None:
    rows = sets["sft"][:300]
    by_id = {card.id: card for card in cards}
    for row, session in zip(rows, sessions_of(rows, cards), strict=True):
        assert session_faults(session) == [], row["id"]
        assert turn_texts(session) == turns_of(row)
        last = session["turns"][-1]
        assert last["golden"] == json.loads(row["golden_json"])
        answer = json.loads(row["messages"][-1]["content"])
        assert last["plan"] == {key: answer[key] for key in ("keywords", "exclude_terms")}
        assert session["card"] is None or by_id[session["card"]].zh == last["golden"]["category"]


def test_the_demo_holds_the_first_72_cards(cards: tuple[Card, ...]) -> None:
    assert [card.id for card in cards] == [card.id for card in load_cards(DEFAULT_CARDS)[:DEMO_CARDS]]
    assert (len(cards), cards[0].id, cards[-1].id) == (72, "rain_jacket", "flashlight")


def test_too_few_cards_for_the_demo_are_an_error(tmp_path: Path, card_file: Path) -> None:
    short = tmp_path / "short.jsonl"
    short.write_text("".join(card_file.read_text(encoding="utf-8").splitlines(keepends=True)[:5]), encoding="utf-8")
    with pytest.raises(ValueError, match="holds 5 cards, the demo needs 72"):
        write_demo_cards(short, tmp_path / "out.jsonl")
