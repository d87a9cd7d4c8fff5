"""The acceptance rubric: named lines that judge what a shopper is shown, each by itself and without a model.

A line gives a Finding: a value in [0, 1] with pass or fail, or an abstention with its reason where a request has
nothing for it to judge. Abstentions are counted by reason and never enter a mean. `LINES` is the registry; a line that
is `p0` makes one wrong item a failure of the whole request. This turn alone is judged: a budget or an exclusion of an
earlier turn belongs to the service that keeps the conversation.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Any

from scripts.eval.acceptance_search import Product, Rates, budget_currency
from scripts.eval.summary import bootstrap_interval, needs_keywords, paired_change
from swift_plugin.reward_loader import Reward

ENOUGH = 5  # items that count as a choice
RIGHT_PRODUCT_LINE = 0.8  # of retrieval on what is shown: all items the thing, one in three with what was asked

# Whom a product is for: words of requests and of titles, English by whole Words (men is man), Chinese anywhere. Of a
# relative one has to be said to give something: 妈妈推荐的 is recommended by her and for anybody.
_GIVING = ("给", "送")


def _terms(said: str, relatives: str) -> tuple[str, ...]:
    return (*said.split(), *(f"{verb}{who}" for verb in _GIVING for who in relatives.split()))


AUDIENCES: dict[str, dict[str, tuple[str, ...]]] = {
    "gender": {
        "men": _terms(
            "men male gentlemen boys unisex 男士 男款 男生 男式 男性 男装 男鞋 男孩 男童 男女",
            "爸 父亲 老公 丈夫 男朋友 男友 儿子 爷爷 外公 哥哥 弟弟",
        ),
        "women": _terms(
            "women ladies female girls unisex 女士 女款 女生 女式 女性 女装 女鞋 女孩 女童 男女",
            "妈 母亲 老婆 妻子 女朋友 女友 女儿 奶奶 外婆 姐姐 妹妹 闺蜜 爸妈",
        ),
    },
    "age": {
        "adults": _terms(
            "adults men women gentlemen ladies seniors elderly 成人 大人 老人 老年 男士 女士",
            "爸 父亲 老公 丈夫 妈 母亲 老婆 妻子 爷爷 奶奶 外公 外婆 父母 长辈",
        ),
        "children": _terms(
            "kids children toddlers baby infants newborn boys girls youth junior"
            " 儿童 小孩 小朋友 宝宝 婴儿 幼儿 新生儿 童装 童鞋 男孩 女孩 男童 女童",
            "儿子 女儿 孩子 娃 宝贝",
        ),
    },
}


@dataclass(frozen=True)
class Case:
    """One request with what it was shown.

    Args:
        golden: the parsed golden record.
        exclusion_stated: whether the plan excludes something, on evidence that stands in `text`.
        unwanted: the catalogue's word for what `text` refuses; None if the table of exclusions cannot tell.
    """

    id: str
    text: str
    golden: Mapping[str, Any]
    shown: tuple[Product, ...]
    exclusion_stated: bool
    unwanted: str | None


@dataclass(frozen=True)
class Finding:
    """What one line says of one request; `value` and `passed` are None where it abstains, and `note` says why."""

    value: float | None
    passed: bool | None
    note: str
    wrong: tuple[str, ...] = ()  # titles of the items that break the line


@dataclass(frozen=True)
class Judging:
    """What lines judge with: the reward file, and the exchange rates."""

    reward: Reward
    rates: Rates


@dataclass(frozen=True)
class Line:
    """One line of the rubric. `says` is what passes, in words; `judge` applies it."""

    name: str
    says: str
    p0: bool
    judge: Callable[[Case, Judging], Finding] = field(repr=False)


def abstain(reason: str) -> Finding:
    return Finding(None, None, reason)


NOTHING_SHOWN = "nothing shown"


# ----------------------------------------------------------------------------------------------- the lines


def right_product(case: Case, judging: Judging) -> Finding:
    """The reward's retrieval, asked of the items shown after the filters instead of those found."""
    if not needs_keywords(case.golden):
        return abstain("no product asked")
    titles = [product.title for product in case.shown]
    neutral = {"keywords": [case.golden["category_anchor"] or case.golden["must_have"][0]]}  # its words are not judged
    reward = judging.reward
    judged = reward.compute_reward(
        neutral, dict(case.golden), "", titles, weights=reward.DEFAULT_WEIGHTS, gates=()
    ).to_dict()
    value = float(judged["retrieval"])
    wrong = [title for title in titles if any(reward.term_hits(term, title) for term in case.golden["must_not"])]
    return Finding(value, value >= RIGHT_PRODUCT_LINE, f"retrieval {value:.2f}", tuple(wrong))


def budget_kept(case: Case, judging: Judging) -> Finding:
    """Every price that can be compared lies within the shopper's budget."""
    budget = case.golden["budget_amount"]
    if case.golden.get("budget_uncertain"):
        return abstain("budget uncertain")
    if budget is None:
        return abstain("no budget asked")
    if not case.shown:
        return abstain(NOTHING_SHOWN)
    currency = budget_currency(case.text)
    prices = [(product, judging.rates.in_budget_currency(product, currency)) for product in case.shown]
    known = [(product, price) for product, price in prices if price is not None]
    if not known:
        foreign = any(product.price is not None for product in case.shown)
        return abstain("no price in the budget's currency" if foreign else "no price known")
    wrong = tuple(product.title for product, price in known if price > budget)
    note = f"{len(known)} of {len(prices)} prices comparable"
    return Finding(1 - len(wrong) / len(known), not wrong, note, wrong)


def exclusions_kept(case: Case, judging: Judging) -> Finding:
    """Nothing shown is what this turn refuses; where its word is not known, the plan has to state an exclusion."""
    if not case.golden["exclude_expected"]:
        return abstain("no exclusion asked")
    if not case.shown:
        return abstain(NOTHING_SHOWN)
    if case.unwanted is None:
        return Finding(float(case.exclusion_stated), case.exclusion_stated, "word unknown: judged by the plan")
    titles = [product.title for product in case.shown]
    wrong = tuple(title for title in titles if judging.reward.term_hits(case.unwanted, title))
    return Finding(1 - len(wrong) / len(titles), not wrong, f"refused: {case.unwanted}", wrong)


def audience_respected(case: Case, judging: Judging) -> Finding:
    """No item shown is for another gender or age than the one asked for."""
    hits = judging.reward.term_hits
    wanted = wanted_audience(case, hits)
    if not wanted:
        return abstain("no audience asked")
    if not case.shown:
        return abstain(NOTHING_SHOWN)
    titles = [product.title for product in case.shown]
    wrong = tuple(title for title in titles if is_for_others(title, wanted, hits))
    return Finding(1 - len(wrong) / len(titles), not wrong, "for " + ", ".join(wanted.values()), wrong)


def enough_results(case: Case, judging: Judging) -> Finding:
    """At least ENOUGH items are left after the filters."""
    if not needs_keywords(case.golden):
        return abstain("no product asked")
    count = len(case.shown)
    return Finding(min(1.0, count / ENOUGH), count >= ENOUGH, f"{count} shown")


LINES: tuple[Line, ...] = (
    Line(
        "right_product",
        f"the reward's retrieval of the items shown (must_have, anchor, must_not) is at least {RIGHT_PRODUCT_LINE}",
        False,
        right_product,
    ),
    Line("budget_kept", "no price that compares with the budget, in its currency, is above it", False, budget_kept),
    Line("exclusions_kept", "no item shown is what this turn refuses", False, exclusions_kept),
    Line("audience_respected", "no item shown is for another gender or age than asked", True, audience_respected),
    Line("enough_results", f"at least {ENOUGH} items are left after the filters", False, enough_results),
)


# ------------------------------------------------------------------------------------- whom, and what not


def audience(texts: Sequence[str], hits: Callable[[str, str], bool]) -> dict[str, str]:
    """The gender and the age group that the texts name, by axis.

    An axis of which they name none or both groups is absent: it is for all, or nobody can tell.
    """
    named = {}
    for axis, groups in AUDIENCES.items():
        found = [group for group, terms in groups.items() if any(hits(term, text) for term in terms for text in texts)]
        if len(found) == 1:
            named[axis] = found[0]
    return named


def wanted_audience(case: Case, hits: Callable[[str, str], bool]) -> dict[str, str]:
    """Whom the request is for, by its golden terms and its own words.

    A turn that refuses something may name the audience it refuses, so there the golden terms speak alone.
    """
    texts = [*case.golden["must_have"], case.golden["category_anchor"] or ""]
    return audience(texts if case.golden["exclude_expected"] else [*texts, case.text], hits)


def is_for_others(title: str, wanted: Mapping[str, str], hits: Callable[[str, str], bool]) -> bool:
    """Whether the title names an audience on an axis that matters, and not the one wanted."""
    for axis, group in wanted.items():
        named = {name for name, terms in AUDIENCES[axis].items() if any(hits(term, title) for term in terms)}
        if named and group not in named:
            return True
    return False


def unwanted_word(
    text: str, golden: Mapping[str, Any], table: Sequence[tuple[Sequence[str], str]], hits: Callable[[str, str], bool]
) -> str | None:
    """The catalogue's word for what the turn refuses, if exactly one row of `table` (Chinese forms, word) can be it.

    A word that the request asks for is not refused; a form inside a longer form that also matches does not count.
    """
    if not golden["exclude_expected"]:
        return None
    asked = [*golden["must_have"], golden["category_anchor"] or ""]
    matched = [(form, word) for forms, word in table for form in forms if form in text]
    inner = {form for form, _ in matched for other, _ in matched if form != other and form in other}
    words = {word for form, word in matched if form not in inner and not any(hits(word, one) for one in asked)}
    return words.pop() if len(words) == 1 else None


# ---------------------------------------------------------------------------------------------- the result


@dataclass(frozen=True)
class Judged:
    """One request's findings by line. `score` is the mean of the lines that judged, None if none did."""

    id: str
    findings: Mapping[str, Finding]

    @property
    def score(self) -> float | None:
        values = [finding.value for finding in self.findings.values() if finding.value is not None]
        return fmean(values) if values else None

    @property
    def passed(self) -> bool | None:
        verdicts = [finding.passed for finding in self.findings.values() if finding.passed is not None]
        return all(verdicts) if verdicts else None

    @property
    def p0(self) -> tuple[str, ...]:
        """The P0 lines that failed."""
        return tuple(line.name for line in LINES if line.p0 and self.findings[line.name].passed is False)


def judge(case: Case, judging: Judging) -> Judged:
    """Every line's finding on one request."""
    return Judged(case.id, {line.name: line.judge(case, judging) for line in LINES})


def summarise(judged: Sequence[Judged]) -> dict[str, Any]:
    """Mean, σ and interval of the scores, passes, P0 failures, and each line with what it could not judge and why."""
    scores = [one.score for one in judged if one.score is not None]
    low, high = bootstrap_interval(scores) if scores else (None, None)
    return {
        "requests": len(judged),
        "judged": len(scores),
        "nothing_to_judge": len(judged) - len(scores),
        "score": {
            "mean": fmean(scores) if scores else None,
            "sd": pstdev(scores) if scores else None,
            "low": low,
            "high": high,
        },
        "passes": sum(one.passed is True for one in judged),
        "p0_failures": [one.id for one in judged if one.p0],
        "lines": {line.name: _line_summary([one.findings[line.name] for one in judged]) for line in LINES},
    }


def _line_summary(findings: Sequence[Finding]) -> dict[str, Any]:
    values = [finding.value for finding in findings if finding.value is not None]
    return {
        "mean": fmean(values) if values else None,
        "judged": len(values),
        "failed": sum(finding.passed is False for finding in findings),
        "not_judged": dict(sorted(Counter(finding.note for finding in findings if finding.value is None).items())),
    }


def compare(before: Sequence[Judged], after: Sequence[Judged]) -> dict[str, Any]:
    """Paired difference (after − before) of the scores over the requests judged on both sides, and its verdict.

    The verdict is "better" or "worse" where the change is beyond chance (`PairedChange.moved`), else "no difference".
    """
    pairs = [
        (x.score, y.score) for x, y in zip(before, after, strict=True) if x.score is not None and y.score is not None
    ]
    if not pairs:
        return {"requests": 0, "mean": None, "low": None, "high": None, "p": None, "verdict": "no difference"}
    change = paired_change([y - x for x, y in pairs])
    verdict = {1: "better", -1: "worse", 0: "no difference"}[change.moved]
    return {"requests": len(pairs), **vars(change), "verdict": verdict}
