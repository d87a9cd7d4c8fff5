"""The prompt is one function's work, and the files people edit keep to their limits."""

import json

import pytest

from reward.planner_reward import DOMAINS, RESERVED_DOMAIN, parse_plan
from swift_plugin.prompts import PROMPT_DIR, build_messages, render_user, system_prompt
from swift_plugin.settings import PROMPT_STYLES


def test_the_full_prompt_lists_every_domain_a_planner_may_use() -> None:
    text = system_prompt("full")
    assert all(domain in text for domain in DOMAINS if domain != RESERVED_DOMAIN)
    assert RESERVED_DOMAIN not in text
    assert "{domains}" not in text


def test_the_full_prompts_examples_are_plans_without_an_issue() -> None:
    examples = [line.removeprefix("输出：") for line in system_prompt("full").splitlines() if line.startswith("输出：")]
    assert len(examples) == 2
    for example in examples:
        assert parse_plan(example) == (json.loads(example), ())


@pytest.mark.parametrize("style", PROMPT_STYLES)
def test_each_style_has_its_file(style: str) -> None:
    assert (PROMPT_DIR / f"{style}.txt").is_file()
    assert build_messages("买跑鞋", [], style)[0] == {"role": "system", "content": system_prompt(style)}


def test_an_unknown_style_is_named() -> None:
    with pytest.raises(ValueError, match="PLANNER_PROMPT='long'"):
        system_prompt("long")


def test_prior_turns_stand_above_this_turn_and_evidence_stays_verbatim() -> None:
    assert render_user("别要网面的", ["想买跑鞋", "要防水的"]) == "上文：想买跑鞋 / 要防水的\n本轮：别要网面的"
    assert render_user("  想买 跑鞋 ") == "  想买 跑鞋 "  # never trimmed: the evidence is checked against these words
