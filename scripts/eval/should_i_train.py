"""Should this model be trained further, or is something cheaper: a line in the prompt, a rule, a tool, or data?

Reads the files of eval_planner.py and gives every error, class by class, to the cheapest remedy that mends it, with the
counts behind it; scripts/eval/remedies.py says which is which. Rules are not believed but run: each is applied to every
plan of the set, right or wrong, and scored again on the titles found; one that breaks more than it mends, or lowers the
reward, is not counted. Samples are read where the evaluation has them (they tell what the model can do from what it
cannot), else the greedy pass.

Where the golden records were made by these very rules and cards (money always, the demo's categories and domains), a
rule is right by construction: on your own requests let people check the records first. A rule in service also hides the
fault from the log, so count it there.

A prompt line is for a model that is prompted. One trained on this prompt has to see the new one in training, too.

Exit codes: 0 train: more than half of the errors are left for it, or there are none; 1 not yet: at least half of them
need something cheaper, or too many cannot be told apart without --samples to say either; 2 wrong use or files.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scripts.eval.evaluation_files import MODES, json_text, load
from scripts.eval.plan_rules import RULES
from scripts.eval.remedies import CHEAPER, CLASSES, KINDS, UNTOLD, class_counts, rule_effect, with_rules
from scripts.eval.summary import paired_difference, record_totals
from scripts.files import write_atomically
from scripts.labs.tables import table
from swift_plugin.cards import DEFAULT_CARDS, Card, load_cards
from swift_plugin.reward_loader import Reward, load_reward
from swift_plugin.settings import Settings

NOT_YET = 0.5  # of the errors

Record = Mapping[str, Any]


def analyse(records: Sequence[Record], cards: Sequence[Card], reward: Reward) -> dict[str, Any]:
    """Counts by class and remedy, the effect of every rule and of those that pay together, and the verdict."""
    effects = {label: rule_effect(rule, records, cards, reward) for label, rule in RULES.items()}
    counts = {name: class_counts(name, records, effects) for name in CLASSES}
    paying = [label for label in RULES if effects[label].pays]
    after = with_rules([RULES[label] for label in paying], records, cards, reward)
    errors = sum(one.errors for one in counts.values())
    cheaper = sum(one.by_kind[kind] for one in counts.values() for kind in CHEAPER)
    untold = sum(one.by_kind[UNTOLD] for one in counts.values())
    totals, totals_after = record_totals(records), record_totals(after)
    return {
        "classes": {name: {**asdict(one), "first": one.first} for name, one in counts.items()},
        "rules": {
            label: {
                "error": RULES[label].error,
                "says": RULES[label].says,
                "mends": effect.mends,
                "breaks": effect.breaks,
                "change_of_reward": effect.change,
                "pays": effect.pays,
            }
            for label, effect in effects.items()
        },
        "rules_together": {
            "rules": paying,
            "reward_before": sum(totals) / len(totals),
            "reward_after": sum(totals_after) / len(totals_after),
            "change": vars(paired_difference(records, after)),
        },
        "errors": errors,
        "cheaper": cheaper,
        "untold": untold,
        "verdict": verdict(errors, cheaper, untold),
    }


def verdict(errors: int, cheaper: int, untold: int) -> dict[str, Any]:
    """`{"train_now", "words"}`: to train now, more errors must be left for it than could need anything else.

    An untold error may be one for training or for data, so it counts for neither.
    """
    if not errors:
        return {"train_now": True, "words": "no error of a known class: nothing here is cheaper than training"}
    left = errors - cheaper - untold
    counts = f"{cheaper} of {errors} errors need something cheaper, {left} are left for training"
    if untold:
        counts += f", {untold} cannot be told apart without --samples"
    if cheaper >= NOT_YET * errors:
        return {"train_now": False, "words": f"not yet: {counts}"}
    if cheaper + untold >= NOT_YET * errors:
        return {"train_now": False, "words": f"cannot say without --samples: {counts}"}
    return {"train_now": True, "words": f"train: {counts}"}


def text_of(mode: str, records: Sequence[Record], result: Mapping[str, Any]) -> str:
    """The tables for people."""
    rows = [
        (name, str(one["errors"]), str(one["of"]), *(str(one["by_kind"][kind]) for kind in KINDS), one["first"] or "-")
        for name, one in result["classes"].items()
    ]
    samples = sum(len(record["samples"]) for record in records)
    heading = f"{mode}: {len(records)} records, {samples} completions; errors by the cheapest remedy"
    parts = [table(heading, ("class", "errors", "of", *KINDS, "first"), rows)]
    ways = [
        (name, way["kind"], str(way["errors"]), way["how"], ", ".join(way["examples"]))
        for name, one in result["classes"].items()
        for way in one["ways"]
    ]
    if ways:
        parts.append(table("how", ("class", "by", "errors", "what to do", "as in"), ways))
    rules = [
        (name, str(one["mends"]), str(one["breaks"]), f"{one['change_of_reward']:+.4f}", "yes" if one["pays"] else "no")
        for name, one in result["rules"].items()
    ]
    parts.append(table("rules, applied to every plan", ("rule", "mends", "breaks", "reward", "pays"), rules))
    both, change = result["rules_together"], result["rules_together"]["change"]
    parts.append(
        f"the rules that pay, together: reward {both['reward_before']:.4f} -> {both['reward_after']:.4f} "
        f"({change['mean']:+.4f} [{change['low']:+.4f}, {change['high']:+.4f}])"
    )
    parts.append(result["verdict"]["words"])
    return "\n".join(parts)


def run(args: argparse.Namespace) -> int:
    evaluation = load(args.prefix)
    reward = load_reward(Settings.from_env().reward_file)
    scored_by = evaluation["summary"].get("reward_sha256")
    if scored_by != reward.sha256:
        raise ValueError(
            f"{args.prefix} was scored by the reward {str(scored_by)[:12]}, PLANNER_REWARD_FILE is "
            f"{reward.sha256[:12]}: evaluate again, or name that reward file"
        )
    mode = next(mode for mode in reversed(MODES) if mode in evaluation)  # samples before greedy
    result = analyse(evaluation[mode], load_cards(args.cards), reward)
    digest = evaluation["summary"][mode]["records_sha256"]
    facts = {"evaluation": args.prefix, "mode": mode, "records_sha256": digest, "reward_sha256": reward.sha256}
    write_atomically(args.json or Path(f"{args.prefix}.remedies.json"), json_text({**facts, **result}))
    print(text_of(mode, evaluation[mode], result))
    return 0 if result["verdict"]["train_now"] else 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/eval/should_i_train.py runs/demo-seed42/eval/sft",
    )
    parser.add_argument("prefix", help="evaluation: PREFIX of PREFIX.summary.json")
    parser.add_argument("--cards", type=Path, default=DEFAULT_CARDS, help="category cards, for the rules (%(default)s)")
    parser.add_argument("--json", type=Path, help="file for the same numbers (default PREFIX.remedies.json)")
    args = parser.parse_args()
    try:
        return run(args)
    except (OSError, ValueError) as error:
        print(f"no answer: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
