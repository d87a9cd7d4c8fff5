"""From a plan to what a shopper would see: search by its keywords, filter by its exclusions and budget, keep the top.

The pipeline believes the plan and nothing else; what was asked is the rubric's business (scripts/eval/rubric.py). An
exclusion acts only if the reward finds its evidence in the shopper's words. A budget is in the currency that the
shopper's words name. A price that is unknown, or in a currency that no rate compares with the budget's, never removes
an item.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reward.budget import DEFAULT_CURRENCY, parse_budget
from swift_plugin.encoders import Encoder, EncoderError
from swift_plugin.reward_loader import Reward
from swift_plugin.rollout_env import RolloutEnv
from swift_plugin.stores import Store, StoreError

BUDGET_CURRENCY = DEFAULT_CURRENCY  # of a budget said without one; rates are of its unit
CANDIDATES = 100  # items a search brings before the filters
SHOWN = 10  # items a shopper looks at
PAYLOAD_FIELDS = ("category", "price", "currency")


@dataclass(frozen=True)
class Product:
    """One item found. `price` in `currency` (ISO 4217); None where the catalogue does not know."""

    title: str
    category: str | None = None
    price: float | None = None
    currency: str | None = None


@dataclass(frozen=True)
class Rates:
    """Exchange rates: `per_budget_unit[currency]` is what one unit of BUDGET_CURRENCY costs in that currency."""

    per_budget_unit: Mapping[str, float] = field(default_factory=dict)

    def in_budget_currency(self, product: Product, currency: str = BUDGET_CURRENCY) -> float | None:
        """The price in `currency`, as the shopper counts, or None: unknown, or no rate for one of the two.

        >>> Rates({"USD": 0.125}).in_budget_currency(Product("lamp", price=10.0, currency="USD"))
        80.0
        >>> Rates({"USD": 0.125}).in_budget_currency(Product("lamp", price=80.0, currency="CNY"), "USD")
        10.0
        """
        if product.price is None or product.currency is None:
            return None
        if product.currency == currency:
            return product.price
        rates = {**self.per_budget_unit, BUDGET_CURRENCY: 1.0}
        if product.currency not in rates or currency not in rates:
            return None
        return product.price / rates[product.currency] * rates[currency]


@dataclass(frozen=True)
class Planned:
    """A completion as the environment reads it: the plan, its bounded search text and the reward's flags."""

    plan: dict[str, Any] | None
    search: str | None
    breakdown: Mapping[str, Any]


@dataclass(frozen=True)
class Results:
    """What one request gets: `shown` best first; how many of `found` candidates each filter took."""

    shown: tuple[Product, ...] = ()
    found: int = 0
    excluded: int = 0
    over_budget: int = 0


def parse_rates(texts: Sequence[str]) -> Rates:
    """Rates from `CNY=USD:0.1389` (one yuan is 0.1389 dollars). Raises ValueError naming what is wrong."""
    rates: dict[str, float] = {}
    for text in texts:
        budget, _, rest = text.partition("=")
        currency, _, number = rest.partition(":")
        try:
            rate = float(number)
        except ValueError:
            rate = math.nan
        if budget != BUDGET_CURRENCY or not currency or not (math.isfinite(rate) and rate > 0):
            raise ValueError(f"--rate {text!r}: write {BUDGET_CURRENCY}=USD:0.1389 for the dollars of one yuan")
        if currency in rates or currency == BUDGET_CURRENCY:
            raise ValueError(f"--rate {text!r}: {currency} has a rate already")
        rates[currency] = rate
    return Rates(rates)


def product_of(payload: Mapping[str, Any]) -> Product:
    """A payload of the store, checked. Raises StoreError for a price that is no price: a broken catalogue."""
    price, currency = payload.get("price"), payload.get("currency")
    is_number = isinstance(price, (int, float)) and not isinstance(price, bool)
    if price is not None and not (is_number and math.isfinite(price) and price >= 0):
        raise StoreError(f"item {payload['title']!r:.80} has the price {price!r:.40}; load a number, or none")
    if currency is not None and not isinstance(currency, str):
        raise StoreError(f"item {payload['title']!r:.80} has the currency {currency!r:.40}; load its code, as USD")
    category = payload.get("category")
    return Product(payload["title"], None if category is None else str(category), price, currency)


def read_plans(reward: Reward, rows: Sequence[Mapping[str, Any]], completions: Sequence[str]) -> list[Planned]:
    """Each completion parsed and its search text bounded, by the environment that training uses (without a store)."""
    env = RolloutEnv(reward, None, None, weights=reward.DEFAULT_WEIGHTS, gates=())
    env.score(
        completions,
        [row["golden_json"] for row in rows],
        [row["text"] for row in rows],
        ids=[row["id"] for row in rows],
        splits=[row["split"] for row in rows],
        step=None,
    )
    return [Planned(line["plan"], line["search"], line["breakdown"]) for line in env.last_rows]


def find(encoder: Encoder, store: Store, searches: Sequence[str]) -> dict[str, list[Product]]:
    """Candidates of each distinct search that is not empty, best first; one encoder batch and one store batch."""
    wanted = [search for search in dict.fromkeys(searches) if search]
    if not wanted:
        return {}
    vectors = encoder.encode(wanted)
    if vectors.shape != (len(wanted), encoder.dim) or not np.isfinite(vectors).all():
        raise EncoderError(f"the encoder {encoder.name} gave {vectors.shape} for {len(wanted)} searches, or NaN")
    asked = np.flatnonzero(vectors.any(axis=1)).tolist()  # a text without a token is near to nothing
    answers = store.search_payloads(vectors[asked], CANDIDATES, PAYLOAD_FIELDS) if asked else []
    return {wanted[row]: [product_of(one) for one in answer] for row, answer in zip(asked, answers, strict=True)}


def exclusions(reward: Reward, golden: Mapping[str, Any], text: str, plan: Mapping[str, Any]) -> list[str]:
    """The words of the plan's exclusions that have a word and whose evidence the reward finds in `text`."""
    stated = plan.get("exclude_terms")
    words = []
    for one in stated if isinstance(stated, list) else []:
        if not isinstance(one, dict) or not _is_text(one.get("word")) or not _is_text(one.get("evidence")):
            continue
        alone = {"exclude_terms": [one]}
        judged = reward.compute_reward(alone, dict(golden), text, None, weights=reward.DEFAULT_WEIGHTS, gates=())
        if not judged.to_dict()["evidence_faked"]:
            words.append(one["word"])
    return words


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def budget_of(plan: Mapping[str, Any]) -> float | int | None:
    """The plan's budget where it is a number; it may be an integer of any size, so it is compared and not computed."""
    amount = plan.get("budget_amount")
    return amount if isinstance(amount, (int, float)) and not isinstance(amount, bool) else None


def budget_currency(text: str) -> str:
    """The currency of the budget in `text` (ISO 4217), BUDGET_CURRENCY where it names none.

    >>> budget_currency("50美元以内"), budget_currency("三百块以内")
    ('USD', 'CNY')
    """
    return parse_budget(text).currency or BUDGET_CURRENCY


def results(
    reward: Reward,
    golden: Mapping[str, Any],
    text: str,
    planned: Planned,
    candidates: Sequence[Product],
    rates: Rates,
) -> Results:
    """The candidates through both filters, the first SHOWN of those that are left."""
    if planned.plan is None:
        return Results()
    words, budget = exclusions(reward, golden, text, planned.plan), budget_of(planned.plan)
    currency = budget_currency(text)
    kept, excluded, over_budget = [], 0, 0
    for product in candidates:
        price = rates.in_budget_currency(product, currency)
        if any(reward.term_hits(word, product.title) for word in words):
            excluded += 1
        elif budget is not None and price is not None and price > budget:
            over_budget += 1
        else:
            kept.append(product)
    return Results(tuple(kept[:SHOWN]), len(candidates), excluded, over_budget)
