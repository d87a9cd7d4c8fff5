"""The teacher's share of an SFT answer: keywords and exclusions. Everything definite comes from the golden record.

The teacher is the maker of the row (its `plan`) or, for rows without one, a model behind an endpoint that is given
the full prompt. Of what a model answers only these two keys are used.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tqdm import tqdm

from reward.planner_reward import parse_plan
from scripts.data.demo_requests import CATEGORY_WHEN_UNKNOWN, DOMAIN_WHEN_UNKNOWN
from scripts.data.demo_targets import Exclusion, plan_json
from scripts.data.vote_client import VoteClient
from swift_plugin.prompts import build_messages

Hint = Mapping[str, Any]  # {"keywords": [str], "exclude_terms": [{"word", "evidence"}]}
NOTHING: Hint = {"keywords": [], "exclude_terms": []}


def needs_teacher(row: Mapping[str, Any]) -> bool:
    """Whether the row's answer cannot be written without asking: it has no hint, and something is to be said."""
    golden = row["golden"]
    return row["plan"] is None and (golden["category"] is not None or golden["exclude_expected"])


def read_hint(content: str) -> Hint | None:
    """The hint in a model's answer; None where it is no plan, or a list in it is not what it must be."""
    plan = parse_plan(content).plan
    if plan is None:
        return None
    words, terms = plan.get("keywords"), plan.get("exclude_terms")
    if not isinstance(words, list) or not all(isinstance(one, str) and one.strip() for one in words):
        return None
    if not isinstance(terms, list):
        return None
    for one in terms:
        if not isinstance(one, dict) or set(one) != {"word", "evidence"}:
            return None
        if not all(isinstance(value, str) and value.strip() for value in one.values()):
            return None
    return {"keywords": words, "exclude_terms": terms}


def ask_hints(client: VoteClient, rows: Sequence[Mapping[str, Any]]) -> list[Hint | None]:
    """The hint of a model for each row, None where its answer cannot be used. Raises EndpointError."""
    requests = [client.request(build_messages(row["text"], row["prior_context"], "full"), 0.0) for row in rows]
    hints: list[Hint | None] = [None] * len(rows)
    for at, answer in tqdm(client.ask_all(requests), total=len(rows), desc="teacher", unit="row", disable=None):
        hints[at] = read_hint(answer.content) if answer.complete else None
    return hints


def answer_of(golden: Mapping[str, Any], hint: Hint) -> str:
    """The assistant's turn: category, domains and budget of the golden record, the rest of the hint."""
    known = golden["category"] is not None
    return plan_json(
        category=golden["category"] if known else CATEGORY_WHEN_UNKNOWN,
        domains=golden["domains"] or (DOMAIN_WHEN_UNKNOWN,),
        budget_amount=golden["budget_amount"],
        clear_budget=golden["clear_budget"],
        terms=hint["keywords"] if known else (),
        exclusions=[Exclusion(one["word"], one["evidence"]) for one in hint["exclude_terms"]],
    )
