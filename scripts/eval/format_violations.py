"""What the format score charges a completion for, by kind: the names behind `format` below 1."""

from collections.abc import Mapping, Sequence
from typing import Any

from reward.planner_reward import _PLAN_RULES as PLAN_RULES  # the reward's own type rules: a copy would drift
from reward.planner_reward import DOMAINS, RESERVED_DOMAIN

UNPARSED = "no plan"


def violations(plan: Mapping[str, Any] | None, issues: Sequence[str]) -> list[str]:
    """The kinds of one completion, each once, empty when its format score is 1.

    Kinds are `no plan: REASON` (a reason of `parse_plan`), `parse: ISSUE` (an accepted text with a fence or prose),
    `missing: KEY`, `type: KEY`, `unknown key`, `illegal domain`, `reserved domain`, `bare exclusion` (one without word
    or evidence). Unknown keys are charged each and named once: a model may make up any number of them.

    >>> violations({"category": "跑鞋", "domains": ["shoes"], "budget_amount": "200", "clear_budget": False,
    ...             "keywords": ["running shoes"], "exclude_terms": []}, [])
    ['type: budget_amount', 'illegal domain']
    """
    if plan is None:
        return [f"{UNPARSED}: {reason}" for reason in issues]
    found = [f"parse: {issue}" for issue in issues]
    for key, holds in PLAN_RULES.items():
        if key not in plan:
            found.append(f"missing: {key}")
        elif not holds(plan[key]):
            found.append(f"type: {key}")
    if any(key not in PLAN_RULES for key in plan):
        found.append("unknown key")
    domains = plan.get("domains")
    named = {name for name in domains if isinstance(name, str)} if isinstance(domains, list) else set()
    if any(name not in DOMAINS for name in named):
        found.append("illegal domain")
    if RESERVED_DOMAIN in named:
        found.append("reserved domain")
    exclusions = plan.get("exclude_terms")
    items = [item for item in exclusions if isinstance(item, dict)] if isinstance(exclusions, list) else []
    if any(not (_text(item.get("word")) and _text(item.get("evidence"))) for item in items):
        found.append("bare exclusion")
    return found


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())
