"""From sessions, votes and rulings to golden rows: pure functions, and what the report counts.

Who decides what, for each turn:

- budget_amount, clear_budget, budget_uncertain: the rule (`reward.budget`), always. Where the maker of the row
  knows better, the difference is listed, and a ruling may settle it.
- exclude_expected: the maker of the row where it is known by construction, else the rule; differences are listed.
- category, domains, must_have, must_not, anchor: by construction where the row has a golden; else by votes, to whose
  domains those are added that a word proves. Votes on a row with a golden only audit it.
- a session's first turn that looks like a fragment (有没有乌龟缸: no card knows the thing) has these by votes where the
  good that the votes agree on is named in the turn, for a person to review. Else it has none of them, whatever the
  votes say, and its status is context_missing: models rarely abstain, and name goods for 要500以内的 too.
- votes that make no golden record (a must-have that its own anchor negates) give none; the report says why.
- a turn without a golden beside turns that have one (嗯我再想想) is chatter: no row, unless it is voted or ruled on.
- a ruling wins over everything.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reward.planner_reward import parse_golden, words
from scripts.data.anchor_filter import is_fragment
from scripts.data.golden_rules import budget_fields, differing, expects_exclusion, with_proven_domains
from scripts.data.golden_votes import VOTE_KEYS, Verdict, Vote, disagreements, majority
from scripts.data.planner_golden_overrides import Ruling, ruled
from scripts.data.sessions import Session, turn_texts
from swift_plugin.cards import Card

BUDGET_KEYS = ("budget_amount", "clear_budget", "budget_uncertain")
UNKNOWN = {"category": None, "domains": None, "must_have": [], "category_anchor": ""}


@dataclass(frozen=True)
class Turn:
    """One turn of a session with what stands around it."""

    id: str
    session: Session
    index: int

    @property
    def text(self) -> str:
        """This turn's words."""
        return str(self.session["turns"][self.index]["text"])

    @property
    def prior_context(self) -> list[str]:
        """The earlier turns, oldest first."""
        return turn_texts(self.session)[: self.index]

    @property
    def golden(self) -> dict[str, Any] | None:
        """The record known by construction."""
        made: dict[str, Any] | None = self.session["turns"][self.index]["golden"]
        return made

    @property
    def beside_goldens(self) -> bool:
        """Whether this turn has no record by construction, and another turn of the session has."""
        return self.golden is None and any(one["golden"] is not None for one in self.session["turns"])


@dataclass
class Findings:
    """What the report says beyond counts of rows."""

    budget_differs: list[dict[str, Any]] = field(default_factory=list)
    exclusion_differs: list[dict[str, Any]] = field(default_factory=list)
    vote_differs: list[dict[str, Any]] = field(default_factory=list)
    no_golden: list[dict[str, Any]] = field(default_factory=list)
    chatter: list[dict[str, Any]] = field(default_factory=list)
    ruled: list[dict[str, Any]] = field(default_factory=list)
    votes: Counter[str] = field(default_factory=Counter)
    agreed: Counter[str] = field(default_factory=Counter)


def turns_of(sessions: Sequence[Session]) -> list[Turn]:
    """Every turn of every session; its id is the session's with `#` and the turn's index from 0."""
    return [Turn(f"{one['id']}#{index}", one, index) for one in sessions for index in range(len(one["turns"]))]


def golden_row(
    turn: Turn,
    votes: Sequence[Vote | None] | None,
    ruling: Ruling | None,
    findings: Findings,
    cards: Sequence[Card],
) -> dict[str, Any] | None:
    """The row of one turn, or None for chatter and where nothing gives it a golden record; `findings` is added to.

    `votes`: what came in for the turn, None for a failed one; None altogether when nobody was asked. `cards`: by
    their names a turn that speaks of goods is told from a fragment.
    """
    origin: dict[str, str] = {"budget": "rule"}
    why = "nobody was asked" if votes is None else "fewer than two votes came in"
    verdict = majority(votes) if votes is not None else None
    if votes is not None and verdict is not None:
        findings.votes["asked"] += len(votes)
        findings.votes["failed"] += sum(vote is None for vote in votes)
        findings.votes["rows"] += 1
        findings.votes["rows_decided"] += verdict.vote is not None
        findings.agreed.update(verdict.agreed)
    if turn.beside_goldens and ruling is None and (verdict is None or verdict.vote is None):
        findings.chatter.append({"id": turn.id, "text": turn.text})
        return None
    if turn.golden is not None:
        golden: dict[str, Any] | None = _constructed(turn, turn.golden, findings)
        origin |= {"category": "construction", "exclude": "construction"}
        if verdict is not None and verdict.vote is not None:
            wrong = disagreements(turn.golden, verdict.vote)
            findings.votes["audited"] += 1
            findings.votes["audited_differs"] += bool(wrong)
            if wrong:
                findings.vote_differs.append(
                    {"id": turn.id, "text": turn.text, "fields": wrong, "votes": verdict.vote.to_dict()}
                )
    else:
        golden, source = _voted(turn, verdict, cards)
        origin |= {"category": source, "exclude": "rule"}
        try:
            golden = golden and parse_golden(golden)
        except ValueError as error:  # a model's answer, however odd, stops no run
            golden, why = None, f"the votes make no golden record: {error}"
    if ruling is not None:
        golden = ruled(golden or rule_record(turn, cards), ruling, turn.text, turn.prior_context)
        origin |= {key: "override" for key in ("budget", "exclude", "category") if _rules_on(ruling, key)}
        findings.ruled.append({"id": turn.id, "reason": ruling.reason, "fields": sorted(ruling.fields)})
    if golden is None:
        findings.no_golden.append({"id": turn.id, "text": turn.text, "why": why})
        return None
    session = turn.session
    return {
        "id": turn.id,
        "session": session["id"],
        "source": session["source"],
        "family": session["family"],
        "card": session["card"],
        "split": session["split"],
        "text": turn.text,
        "prior_context": turn.prior_context,
        "golden": parse_golden(golden, turn.id),
        "golden_from": origin,
        "votes": None if votes is None else [None if vote is None else vote.to_dict() for vote in votes],
        "status": golden["status"],
        "plan": session["turns"][turn.index]["plan"],
    }


def rule_record(turn: Turn, cards: Sequence[Card]) -> dict[str, Any]:
    """What the words alone decide, everything else unknown. A turn that has turns before it has a context."""
    fragment = turn.index == 0 and is_fragment([turn.text], cards)
    return {
        **UNKNOWN,
        **budget_fields(turn.text),
        "exclude_expected": expects_exclusion(turn.text),
        "status": "context_missing" if fragment else "agree",
    }


def _constructed(turn: Turn, made: Mapping[str, Any], findings: Findings) -> dict[str, Any]:
    rule = budget_fields(turn.text)
    if differing(rule, made, BUDGET_KEYS):
        findings.budget_differs.append(
            {
                "id": turn.id,
                "text": turn.text,
                "rule": rule,
                "construction": {key: made.get(key) for key in BUDGET_KEYS},
            }
        )
    if expects_exclusion(turn.text) != made["exclude_expected"]:
        findings.exclusion_differs.append(
            {"id": turn.id, "text": turn.text, "construction": made["exclude_expected"]}
        )
    golden = {**made, **rule}
    return {**golden, **UNKNOWN} if made["status"] == "context_missing" else golden


def _voted(turn: Turn, verdict: Verdict | None, cards: Sequence[Card]) -> tuple[dict[str, Any] | None, str]:
    record = rule_record(turn, cards)
    status, vote = (None, None) if verdict is None else (verdict.status, verdict.vote)
    if record["status"] == "context_missing":
        if verdict is None or vote is None or not verdict.category_carried or not _names(turn.text, vote):
            return record, "context_missing"
        status = "review"
    if status is None or vote is None:
        return None, "votes"
    domains = list(vote.domains) if vote.domains is not None else None
    if vote.category is not None:  # a proof of what is named beside the goods says nothing of a chat
        domains = with_proven_domains(domains or [], turn.text) or None
    fields = {
        "category": vote.category,
        "domains": domains,
        "must_have": list(vote.must_have),
        "category_anchor": vote.anchor,
        "status": status,
    }
    return {**record, **fields}, "votes"


def _names(text: str, vote: Vote) -> bool:
    """Whether a text names the good of a vote: by the last character of the category, or the anchor's last Word."""
    return vote.category is not None and (
        vote.category[-1] in text or bool(set(words(vote.anchor)[-1:]) & set(words(text)))
    )


def _rules_on(ruling: Ruling, part: str) -> bool:
    keys = {"budget": set(BUDGET_KEYS), "exclude": {"exclude_expected"}}
    rest = set(ruling.fields) - keys["budget"] - keys["exclude"]
    return bool(rest) if part == "category" else bool(set(ruling.fields) & keys[part])


def report(rows: Sequence[Mapping[str, Any]], findings: Findings, usage: Mapping[str, Any] | None) -> dict[str, Any]:
    """Everything the run can say about its rows, JSON-ready."""
    votes = findings.votes

    def counts(key: str) -> dict[str, int]:
        return dict(sorted(Counter(str(row[key]) for row in rows).items()))

    asked = {
        **{key: votes[key] for key in ("asked", "failed", "rows", "rows_decided", "audited", "audited_differs")},
        # of the rows that two votes decided: how often all votes cast say the same
        "agreement": {
            name: round(findings.agreed[name] / votes["rows_decided"], 4) if votes["rows_decided"] else None
            for name in VOTE_KEYS
        },
        "audit_differs_by_field": dict(Counter(name for one in findings.vote_differs for name in one["fields"])),
    }
    return {
        "rows": len(rows),
        "sessions": len({row["session"] for row in rows}),
        "no_golden": len(findings.no_golden),
        "chatter": len(findings.chatter),
        "status": counts("status"),
        "split": counts("split"),
        "source": counts("source"),
        "family": counts("family"),
        "golden_from": dict(sorted(Counter(row["golden_from"]["category"] for row in rows).items())),
        "category_abstains": sum(row["golden"]["category"] is None for row in rows),
        "budget_amounts": sum(row["golden"]["budget_amount"] is not None for row in rows),
        "budget_uncertain": sum(bool(row["golden"].get("budget_uncertain")) for row in rows),
        "exclusions": sum(row["golden"]["exclude_expected"] for row in rows),
        "votes": asked if votes["rows"] else None,
        "usage": usage,
        "budget_differs": findings.budget_differs,
        "exclusion_differs": findings.exclusion_differs,
        "vote_differs": findings.vote_differs,
        "ruled": findings.ruled,
        "rows_without_golden": findings.no_golden,
        "chatter_turns": findings.chatter,
    }


def report_text(data: Mapping[str, Any]) -> str:
    """The report for people: counts, then every difference on a line of its own."""
    lines = [
        f"{data['rows']} golden rows of {data['sessions']} sessions; {data['no_golden']} turns without a golden,"
        f" {data['chatter']} of chatter"
    ]
    for key in ("status", "split", "source", "golden_from", "family"):
        lines.append(f"{key}: " + ", ".join(f"{name} {count}" for name, count in data[key].items()))
    lines.append(
        f"category abstains {data['category_abstains']}, budgets {data['budget_amounts']}, uncertain"
        f" {data['budget_uncertain']}, exclusions {data['exclusions']}"
    )
    lines.append(f"votes: {data['votes']}" if data["votes"] else "votes: nobody was asked (no --endpoint)")
    if data["usage"]:
        lines.append(f"usage: {data['usage']}")
    for key, title in (
        ("budget_differs", "budget: rule against construction (the rule stands)"),
        ("exclusion_differs", "exclusion: construction against the rule (construction stands)"),
        ("vote_differs", "audit: votes against construction (construction stands)"),
        ("ruled", "rulings"),
        ("rows_without_golden", "turns without a golden"),
        ("chatter_turns", "chatter beside turns with a golden (no rows)"),
    ):
        lines.append(f"{title}: {len(data[key])}")
        lines += [f"  {one['id']}: " + ", ".join(f"{k} {v}" for k, v in one.items() if k != "id") for one in data[key]]
    return "\n".join(lines) + "\n"
