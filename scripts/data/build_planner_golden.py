"""Give every turn of the sessions its golden record: the budget by rule, the rest by construction or by three votes.

Reads session files, writes one row a turn and a report (JSON, and text beside it). Without --endpoint nobody is
asked: turns without a golden of their own are reported and left out; beside turns that have one they count as
chatter. With it, rows that have a golden are voted on as well, to audit them. Answers are cached; after a kill the
same command asks only what is missing.
The endpoint's key is read from PLANNER_API_KEY.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from scripts.chat import KEY_VARIABLE
from scripts.data.golden_rows import Findings, Turn, golden_row, report, report_text, turns_of
from scripts.data.golden_votes import VARIANTS, Vote, read_vote, vote_messages
from scripts.data.planner_golden_overrides import RULINGS, Ruling, by_id
from scripts.data.sessions import Session, check_report, read_sessions, turn_texts, write_report, write_rows
from scripts.data.vote_client import IF_CUT, Cache, EndpointError, VoteClient
from swift_plugin.cards import DEFAULT_CARDS, load_cards


def ask_votes(client: VoteClient, turns: Sequence[Turn]) -> list[list[Vote | None]]:
    """The votes on each turn, in the order of VARIANTS; None for an answer that is empty, cut or no vote."""
    requests = []
    for turn in turns:
        said = turn_texts(turn.session)[: turn.index + 1]
        requests += [client.request(vote_messages(variant, said), variant.temperature) for variant in VARIANTS]
    votes: list[Vote | None] = [None] * len(requests)
    answers = client.ask_all(requests)
    for position, answer in tqdm(answers, total=len(requests), desc="votes", unit="vote", disable=None):
        votes[position] = read_vote(answer.content) if answer.complete else None
    return [votes[start : start + len(VARIANTS)] for start in range(0, len(votes), len(VARIANTS))]


def read_all(files: Sequence[Path]) -> list[Session]:
    """The sessions of all files. Raises ValueError for a file without one, and for an id that stands in two files."""
    sessions: list[Session] = []
    seen: dict[str, Path] = {}
    for file in files:
        read = read_sessions(file)
        if not read:
            raise ValueError(f"{file.name} holds no session: build it first")
        for session in read:
            if session["id"] in seen:
                raise ValueError(f"{file.name}: session {session['id']} stands in {seen[session['id']].name} too")
            seen[session["id"]] = file
            sessions.append(session)
    return sessions


def check_rulings(rulings: dict[str, Ruling], turns: Sequence[Turn]) -> list[str]:
    """The ids of rulings on sessions that are not here. Raises ValueError where the session is, and its turn is not."""
    ids, sessions = {turn.id for turn in turns}, {turn.session["id"] for turn in turns}
    missing = [name for name in rulings if name not in ids]
    for name in missing:
        if name.rpartition("#")[0] in sessions:
            raise ValueError(f"ruling {name}: its session no longer has this turn; renew or remove the ruling")
    return missing


def main(argv: Sequence[str] | None = None) -> int:
    """0 when the rows are written, 1 when votes gave none, 2 when the input or the endpoint cannot be used."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/data/build_planner_golden.py build/data/gated.jsonl"
        " --out build/data/golden.jsonl --report build/data/golden_report.json",
    )
    parser.add_argument("sessions", type=Path, nargs="+", help="session files (JSONL)")
    parser.add_argument("--out", type=Path, required=True, help="golden rows to write")
    parser.add_argument("--report", type=Path, required=True, help="report to write; its text gets the suffix .txt")
    parser.add_argument("--cards", type=Path, default=DEFAULT_CARDS, help="category cards (default: %(default)s)")
    parser.add_argument("--endpoint", metavar="URL", help="OpenAI-compatible endpoint, as http://127.0.0.1:8000/v1")
    parser.add_argument("--model", help="its model; needed with --endpoint")
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="answers kept (default: OUT with .votes)")
    parser.add_argument("--workers", type=int, default=8, help="requests at once (default 8)")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds for one try (default 60)")
    parser.add_argument("--retry-seconds", type=float, default=300.0, metavar="S", help="for all tries of one (300)")
    parser.add_argument("--prices", type=float, nargs=2, metavar=("IN", "OUT"), help="cost of a million tokens")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    if bool(args.endpoint) != bool(args.model):
        parser.error("--endpoint and --model go together")
    if args.workers < 1 or args.timeout < 1:
        parser.error("--workers and --timeout must be at least 1")
    try:
        return build(args)
    except (OSError, ValueError, EndpointError) as error:
        print(error, file=sys.stderr)
        return 2


def build(args: argparse.Namespace) -> int:
    """Read, ask, decide, write."""
    check_report(args.report, args.out)
    cards = load_cards(args.cards)
    turns = turns_of(read_all(args.sessions))
    rulings = by_id(RULINGS)
    for name in check_rulings(rulings, turns):
        print(f"ruling {name}: its session is not in the input; not used", file=sys.stderr)
    votes, usage = None, None
    if args.endpoint:
        client = VoteClient(
            args.endpoint,
            args.model,
            Cache(args.cache or args.out.with_suffix(".votes")),
            api_key=os.environ.get(KEY_VARIABLE),
            workers=args.workers,
            timeout_s=args.timeout,
            budget_s=args.retry_seconds,
        )
        votes = ask_votes(client, turns)
        usage = client.usage.report(*(args.prices or (None, None)))
    findings, rows = Findings(), []
    for position, turn in enumerate(turns):
        row = golden_row(turn, votes[position] if votes else None, rulings.get(turn.id), findings, cards)
        if row is not None:
            rows.append(row)
    data = report(rows, findings, usage)
    for file in (args.out, args.report):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_rows(args.out, rows)
    text = report_text(data)
    write_report(args.report, data, text)
    print("\n".join(line for line in text.splitlines() if not line.startswith("  ")))
    if usage and not rows:
        failed = f"{usage['empty']} answers empty, {usage['cut']} cut"
        print(f"no golden row came of the votes ({failed}); {IF_CUT}; see {args.report}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
