"""Evaluation files built by hand: records with given parts, and pairs of models with a known truth and real noise."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scripts.eval.evaluation_files import jsonl
from scripts.eval.summary import PARTS, summarise

RECORDS = 92
WEIGHTS = {"retrieval": 0.45, "field": 0.3, "format": 0.15, "econ": 0.1}
FLAGS = ("copycat", "evidence_faked", "empty_keywords", "domain_miss", "overcommit", "exclusion_missed")
GOLDEN = {"category": "跑鞋", "must_have": ["waterproof"], "category_anchor": "running shoes", "exclude_expected": True}
PLAN = {"category": "跑鞋", "keywords": ["waterproof shoes"]}


def sample(total: float, plan: Mapping[str, Any] | None = PLAN, **breakdown: Any) -> dict[str, Any]:
    """One scored completion; parts that are not given took no part."""
    parts = {**dict.fromkeys(PARTS), **dict.fromkeys(FLAGS, False), "abstained": [], **breakdown, "total": total}
    return {
        "completion": "nonsense" if plan is None else json.dumps(plan, ensure_ascii=False),
        "plan": plan,
        "issues": [],
        "search": "waterproof shoes",
        "titles": ["Nordvik Waterproof Running Shoes"],
        "breakdown": parts,
    }


def record(name: str, *samples: dict[str, Any], golden: Mapping[str, Any] = GOLDEN, **more: Any) -> dict[str, Any]:
    return {
        "id": name, "family": "attribute", "text": "想买一双防水的跑鞋", "prior_context": [],
        "context_rendered": False, "golden": golden, "samples": list(samples), **more,
    }  # fmt: skip


def write(prefix: Path, modes: Mapping[str, Sequence[Mapping[str, Any]]], **changes: Any) -> str:
    """Write an evaluation as eval_planner.py does; `changes` replace facts of its summary. Returns the prefix."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    facts = {"model": "nano", "adapter": None, "data": "dev92.jsonl", "data_sha256": "d", "reward_sha256": "r"}
    facts |= {"weights": WEIGHTS, "gates": [], "store": {"points": 9, "vector_size": 4}, "encoder": "hashed"}
    facts |= {"store_titles": "t", "backend": "transformers", "max_new_tokens": 64}
    summary: dict[str, Any] = {**facts, "prompt": "short", "seed": 42, **changes}
    for mode, records in modes.items():
        text = jsonl(records)
        Path(f"{prefix}.{mode}.jsonl").write_text(text, encoding="utf-8")
        digest = hashlib.sha256(text.encode()).hexdigest()
        summary[mode] = {**summarise(records), "records_sha256": digest}
    Path(f"{prefix}.summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return str(prefix)


# Means of the parts in a demo model's greedy evaluation, the share of records in which each takes part, and the σ of a
# record's change between two models there (two SFT models that differ in their seed data only, dev92 greedy).
LEVELS = {"retrieval": 0.4, "econ": 0.6, "category": 0.65, "domains_f1": 0.7, "budget": 0.87}
TAKES_PART = {"retrieval": 0.7, "econ": 0.7, "category": 0.7, "domains_f1": 0.7, "budget": 0.87}
NOISE = {"retrieval": 0.30, "econ": 0.20, "category": 0.30, "domains_f1": 0.30, "budget": 0.17}


def simulated_pair(seed: int, truth: Mapping[str, float]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Two greedy evaluations of RECORDS records; `truth` is the change of a part's mean over endless records.

    A record's part is not confined to [0, 1], so that a truth is not eaten by a ceiling: the comparison sees
    differences only. Total and field are the reward's own sums over the parts that take part.
    """
    draw = np.random.default_rng(seed)
    sides: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for number in range(RECORDS):
        before = {
            part: draw.normal(LEVELS[part], 0.25) for part, rate in TAKES_PART.items() if number < rate * RECORDS
        }
        after = {part: x + truth.get(part, 0.0) + draw.normal(0, NOISE[part]) for part, x in before.items()}
        for side, parts in zip(sides, (before, after), strict=True):
            side.append(record(f"dev-{number:02}", sample(**_with_total(parts))))
    return sides


def _with_total(parts: Mapping[str, float]) -> dict[str, float]:
    fields = [parts[name] for name in ("category", "domains_f1", "budget") if name in parts]
    dimensions = {"format": 1.0, **{name: parts[name] for name in ("retrieval", "econ") if name in parts}}
    found = {**parts, "format": 1.0}
    if fields:
        dimensions["field"] = found["field_score"] = sum(fields) / len(fields)
    weight = sum(WEIGHTS[name] for name in dimensions)
    return {**found, "total": sum(WEIGHTS[name] * value for name, value in dimensions.items()) / weight}


def true_changes(truth: Mapping[str, float]) -> dict[str, float]:
    """What `truth` does to the means of all parts and of the total, over endless records of the same make-up."""
    levels = {part: level for part, level in LEVELS.items()}
    totals, fields = [], []
    for number in range(RECORDS):
        here = {part for part, rate in TAKES_PART.items() if number < rate * RECORDS}
        before = _with_total({part: levels[part] for part in levels if part in here})
        after = _with_total({part: levels[part] + truth.get(part, 0.0) for part in levels if part in here})
        totals.append(after["total"] - before["total"])
        if "field_score" in before:
            fields.append(after["field_score"] - before["field_score"])
    return {**truth, "field_score": float(np.mean(fields)), "total": float(np.mean(totals))}
