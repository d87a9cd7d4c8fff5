"""The labs: their tables and every figure they teach."""

import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from built_evaluations import record, sample, write
from commands import ROOT, run
from hypothesis import given, settings
from hypothesis import strategies as st

from reward.planner_reward import DIMENSIONS, PLAN_KEYS, RewardBreakdown, parse_golden, parse_plan
from scripts.eval.rubric import LINES, Finding, Line
from scripts.labs import dataset_lab, grpo_lab, lora_lab, mdp_lab, reward_lab, reward_map
from scripts.labs.reward_probes import PROBES, REQUEST, Probe
from scripts.labs.tables import table
from swift_plugin.prompts import build_messages


def lab(name: str, *arguments: str, code: int = 0) -> str:
    return run([sys.executable, f"scripts/labs/{name}.py", *arguments], {}, code=code)


# --------------------------------------------------------------------------------------------------- mdp_lab


def test_one_step_and_agent_differ_as_an_mdp_does() -> None:
    names = ("states", "action kinds", "changes of state", "rewards", "steps")
    assert mdp_lab.counts(mdp_lab.ONE_STEP) == dict(zip(names, (1, 1, 0, 1, 1), strict=True))
    assert mdp_lab.counts(mdp_lab.AGENT) == dict(zip(names, (3, 3, 2, 3, 4), strict=True))


@pytest.mark.parametrize(("gamma", "value"), [(0, 0), (0.5, 0.1750), (0.9, 0.7542), (0.99, 0.9732), (1, 1.0)])
def test_the_agents_return(gamma: float, value: float) -> None:
    assert round(mdp_lab.returns(mdp_lab.AGENT)[gamma], 4) == value
    assert mdp_lab.returns(mdp_lab.ONE_STEP)[gamma] == 1.0
    assert mdp_lab.returns(mdp_lab.GUESS)[gamma] == 0.8  # a right guess without tools, whatever γ is


def test_two_more_thoughts_and_the_gamma_below_which_guessing_pays() -> None:
    assert round(mdp_lab.returns(mdp_lab.TWO_MORE_THOUGHTS)[0.9], 4) == 0.6109
    even = mdp_lab.break_even_gamma()
    assert math.isclose(0.1 * even + 0.1 * even**2 + 0.8 * even**3, 0.8)
    assert 0.9 < even < 0.99  # so at 0.9 the guess wins, at 0.99 the agent


def test_calling_again_or_uselessly_is_not_paid() -> None:
    calls = [mdp_lab.Action("calculate", text) for text in ("48*17", "48 * 17", "17 * 48", "1 + 1", "1 / 0", "x")]
    assert [step.reward for step in mdp_lab.episode(mdp_lab.PROBLEM, calls)] == [0.1, 0, 0, 0, 0, 0]
    assert mdp_lab.episode(mdp_lab.PROBLEM, [mdp_lab.ANSWER, mdp_lab.THOUGHT])[-1].action == mdp_lab.ANSWER
    with pytest.raises(ValueError, match="action kind 'search'"):
        mdp_lab.episode(mdp_lab.PROBLEM, [mdp_lab.Action("search", "mugs")])
    with pytest.raises(ValueError, match="gamma=1.1"):
        mdp_lab.discounted([1.0], 1.1)


@pytest.mark.parametrize(("text", "value"), [("48 * 17", 816), ("-(2 + 3) * 4", -20), (" 7 / 2", 3.5), ("2 - -2", 4)])
def test_the_calculator(text: str, value: float) -> None:
    assert mdp_lab.calculate(text) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("__import__('os').system('true')", "a call"),
        ("9**9**9", "a power that never ends"),
        ("(1).real", "an attribute"),
        ("True + 1", "a boolean is no number"),
        ("'a' * 9", "a string"),
        ("1j", "a complex number"),
        ("x", "a name"),
        ("[1]", "a list"),
        ("1 if 1 else 2", "a condition"),
        ("1 < 2", "a comparison"),
        ("7 // 2", "not on the list"),
        ("1 / 0", "no value"),
        ("1e999", "not finite"),
        ("1e308 * 10", "not finite"),
        ("1e308 * 10 - 1e308 * 10", "not a number"),
        ("9" * 60 + "." + "9" * 30 + "e300 / 1", "overflows"),
        ("", "nothing"),
        ("1 +", "torn"),
        ("1; 2", "two statements"),
        ("1 + 1 " * 40, "too long"),
        ("(" * 100, "depth"),
        ("\x00", "a null character"),
    ],
)
def test_the_calculator_refuses(text: str, reason: str) -> None:
    with pytest.raises(ValueError):
        mdp_lab.calculate(text)


@settings(deadline=None)  # a busy machine is no fault of the calculator
@given(st.text(alphabet="0123456789.+-*/()e_ ax", max_size=110))
def test_the_calculator_gives_a_finite_number_or_refuses(text: str) -> None:
    try:
        value = mdp_lab.calculate(text)
    except ValueError:
        return
    assert type(value) in (int, float) and math.isfinite(value)


def test_the_mdp_command() -> None:
    printed = lab("mdp_lab")
    assert "agent                      0.0000  0.1750  0.7542  0.9732  1.0000" in printed
    assert "agent, two more thoughts   0.0000  0.0438  0.6109  0.9539  1.0000" in printed
    assert "right guess, no tool       0.8000  0.8000  0.8000  0.8000  0.8000" in printed
    assert lab("mdp_lab", "--calculate", "48 * 17 - 29") == "787\n"
    assert "Call is not on the calculator's whitelist" in lab("mdp_lab", "--calculate", "exit()", code=2)


# ----------------------------------------------------------------------------------------------- dataset_lab


@pytest.mark.parametrize("style", ["short", "full"])
def test_sft_and_rl_rows_share_their_prompt(style: str) -> None:
    for _, sft, rl in dataset_lab.examples(style).values():
        assert sft["messages"][:-1] == rl["messages"]
        assert [message["role"] for message in sft["messages"]] == ["system", "user", "assistant"]
    raw, sft, rl = dataset_lab.examples(style)["planner request"]
    assert rl["messages"] == build_messages(raw["text"], (), style)
    parsed = parse_plan(sft["messages"][-1]["content"])
    golden = parse_golden(rl["golden_json"])
    assert parsed.issues == () and parsed.plan is not None
    assert parsed.plan["budget_amount"] == golden["budget_amount"] == raw["budget_amount"] == 300
    assert parsed.plan["exclude_terms"] == [{"word": "mesh", "evidence": "别给我网面的"}]


def test_calculator_marks_are_removed() -> None:
    raw, sft, rl = dataset_lab.examples("short")["worked problem"]
    assert "<<48*17=816>>816 mugs" in raw["answer"]
    answer = "The shop buys 48 * 17 = 816 mugs.\n816 - 29 = 787 mugs are left.\n#### 787"
    assert sft["messages"][-1]["content"] == rl["solution"] == answer


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("2 + 2 = <<2+2=5>>5", "2\\+2 is 4"),
        ("2 + 2 = <<2+2=4", "torn"),
        ("2 + 2 = 4>>4", "torn"),
        ("<<exit()=4>>4", "whitelist"),
    ],
)
def test_a_broken_mark_is_an_error(answer: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataset_lab.without_marks(answer)


def test_a_problem_without_an_answer_is_an_error() -> None:
    with pytest.raises(ValueError, match="#### number"):
        dataset_lab.math_rows({"question": "How many?", "answer": "787"})


def test_prompts_that_differ_are_seen() -> None:
    _, sft, rl = dataset_lab.examples("short")["worked problem"]
    other = [rl["messages"][0], {"role": "user", "content": rl["messages"][1]["content"] + " "}]
    assert dataset_lab.same_prompt(sft, rl)
    assert not dataset_lab.same_prompt(sft, {**rl, "messages": other})
    assert not dataset_lab.same_prompt({"messages": rl["messages"]}, rl)


def test_the_dataset_command() -> None:
    printed = lab("dataset_lab", "--prompt-style", "short")
    assert printed.count("prompts of SFT and RL identical") == 2


# ------------------------------------------------------------------------------------------------ reward_lab


@pytest.mark.parametrize(
    ("case", "total"),
    [
        ("right and short", 1.0),
        ("right, 630 characters", 0.57),
        ("wrong, 611 characters", 0.0),
        ("none", 0.0),
        ("right, six steps", 1.25),
        ("wrong, six steps", 0.0),
        ("right, 3,000 characters", 0.0),
    ],
)
def test_parts_act_on_right_answers_only(case: str, total: float) -> None:
    scores = reward_lab.scores()[case]
    assert round(scores["total"], 4) == total
    if scores["accuracy"] == 0:
        assert scores["length"] == scores["steps"] == 0


def test_the_cases_are_what_they_are_called() -> None:
    lengths = {name: len(text) for name, text in reward_lab.CASES.items()}
    assert [lengths[name] for name in lengths if "characters" in name] == [630, 611, 3000]
    assert lengths["right and short"] <= reward_lab.FREE_CHARACTERS and lengths["none"] == 0


def test_the_penalty_alone_pays_silence() -> None:
    scores = reward_lab.scores()
    assert round(scores["wrong, 611 characters"]["length alone"], 4) == -0.4110
    assert scores["none"]["length alone"] == 0
    edge = reward_lab.length_penalty(["x" * 200, "x" * 201])
    assert edge[0] == 0 and math.isclose(edge[1], -0.001)


def test_the_groups_advantages() -> None:
    advantages = reward_lab.group_advantages(reward_lab.GROUP, scale=False)
    assert advantages.round(4).tolist() == [0.3, 0.3, -0.7, 0.1]


@pytest.mark.parametrize("reward", [reward_lab.worked_answer_reward, *reward_lab.PARTS.values()])
def test_the_batch_signature_of_ms_swift_and_trl(reward: Any) -> None:
    texts, columns = ["#### 787", "no idea"], {"solution": ["#### 787"] * 2, "id": ["a", "b"], "trainer_state": None}
    chats = [[{"role": "assistant", "content": text}] for text in texts]
    swift = reward(texts, **columns)
    trl = reward(prompts=chats, completions=chats, completion_ids=[[1], [2]], **columns)
    assert swift == trl and len(swift) == 2 and all(isinstance(score, float) for score in swift)
    assert isinstance(reward.__name__, str)  # TRL names a reward by it


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("#### 787", "787"),
        ("so\n#### $1,234.50 \n", "2469/2"),
        ("#### 1\n#### 2", "2"),
        ("#### -3/4", "-3/4"),
        ("#### 0787.0", "787"),
        ("#### 787 mugs", None),
        ("the answer is 787", None),
        ("#### 1/0", None),
        ("#### __import__('os').abort()", None),
        ("#### 780 + 7", None),
        ("#### " + "9" * 5000, None),
        ("#### １２", None),
        ("", None),
    ],
)
def test_answers_are_read_and_never_evaluated(text: str, answer: str | None) -> None:
    assert reward_lab.answer_of(text) == answer


def test_a_reference_without_an_answer_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"solution\[1\]"):
        reward_lab.accuracy_reward(["", ""], solution=["#### 1", "one"])


def test_the_reward_command() -> None:
    printed = lab("reward_lab")
    assert "right, 630 characters      1.0000  -0.4300  0.0000  0.5700       -0.4300" in printed
    assert "pays -0.4110 for an honest wrong answer and 0 for silence" in printed


def test_no_lab_evaluates_text() -> None:
    for file in sorted((ROOT / "scripts/labs").glob("*.py")):
        assert not {"eval(", "exec("} & set(file.read_text(encoding="utf-8").replace("(", "( ").split()), file.name


# -------------------------------------------------------------------------------------------------- lora_lab


@pytest.mark.parametrize(("rank", "fewer"), [(4, 512), (8, 256), (16, 128), (64, 32)])
def test_how_many_times_fewer_parameters(rank: int, fewer: int) -> None:
    assert lora_lab.compression(4096, rank) == fewer
    assert f"{fewer}×" in lora_lab.matrix_table()


def test_the_example_of_32_layers() -> None:
    assert lora_lab.example_total() == 8_388_608


def test_the_sizes_of_the_box_model() -> None:
    # Qwen3-4B: heads wider than hidden / heads, fewer key heads. Its r 16 adapter has 33,030,144 parameters.
    config = {"model_type": "qwen3", "hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32}
    config |= {"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 9728}
    assert lora_lab.projections(config)["q_proj"] == (2560, 4096)
    assert lora_lab.projections(config)["v_proj"] == (2560, 1024)
    assert lora_lab.model_parameters(config, 16) == 33_030_144


def test_models_that_cannot_be_counted_are_refused(tmp_path: Path) -> None:
    assert "config.json does not exist" in lab("lora_lab", "--model", str(tmp_path), code=2)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_moe"}), encoding="utf-8")
    assert "model_type 'qwen3_moe'" in lab("lora_lab", "--model", str(tmp_path), code=2)
    with pytest.raises(ValueError, match="intermediate_size"):
        lora_lab.projections({"model_type": "llama", "hidden_size": 8})
    assert "--rank 0" in lab("lora_lab", "--rank", "0", code=2)


def test_the_count_equals_pefts_own(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(lora_lab.NANO), encoding="utf-8")
    printed = lab("lora_lab", "--model", str(tmp_path), "--rank", "8")
    assert f"peft counts {lora_lab.model_parameters(lora_lab.NANO, 8):,}: equal" in printed
    assert "8,388,608 parameters" in printed


# -------------------------------------------------------------------------------------------------- grpo_lab


@pytest.fixture(scope="module")
def beta_runs() -> dict[str, grpo_lab.Run]:
    return grpo_lab.beta_runs()


@pytest.mark.parametrize(
    ("beta", "verdict"),
    [
        ("2", "plateaus early"),
        ("1", "plateaus early"),
        ("0.25", "near the best"),
        ("0.02", "diverges"),
        ("0", "diverges"),
    ],
)
def test_too_large_a_beta_plateaus_and_too_small_diverges(
    beta_runs: dict[str, grpo_lab.Run], beta: str, verdict: str
) -> None:
    assert grpo_lab.verdict(beta_runs[beta]) == verdict


def test_the_reward_rises_while_quality_falls(beta_runs: dict[str, grpo_lab.Run]) -> None:
    good, gone = beta_runs["0.25"].final, beta_runs["0"].final
    assert gone > 4 * good and grpo_lab.true_quality(gone) < 0 < grpo_lab.true_quality(good)
    for beta in (2.0, 1.0, 0.25):  # it rests where the group's σ, about 0.9 for 8, balances the pull
        assert beta_runs[f"{beta:g}"].final * beta == pytest.approx(0.9, abs=0.03)


def test_true_quality_is_the_mean_it_claims_to_be() -> None:
    draw = random.Random(1)
    values = [draw.gauss(3, 1) for _ in range(40_000)]
    assert grpo_lab.true_quality(3) == pytest.approx(sum(x * (8 - x) / 16 for x in values) / len(values), abs=0.01)


def test_learning_rates() -> None:
    verdicts = [grpo_lab.verdict(one) for one in grpo_lab.lr_runs().values()]
    assert verdicts == ["barely moved", "near the best", "diverges"]
    below = grpo_lab.train(grpo_lab.constant(0.25), lr=7.0)  # lr · beta 1.75 swings, and comes back
    assert abs(below.thetas[-1]) < 20


def test_schedules_of_beta() -> None:
    runs = grpo_lab.schedule_runs()
    assert grpo_lab.verdict(runs["constant 2"]) == "plateaus early"
    adaptive = runs["adaptive from 2"]
    assert grpo_lab.verdict(adaptive) == "near the best"
    assert grpo_lab.kl(adaptive.final) == pytest.approx(grpo_lab.TARGET_KL, rel=0.1)
    assert adaptive.betas[-1] < 0.5 < adaptive.betas[0]
    ramp, held = runs["ramped 0 to 0.25"], runs["constant 0.25"]
    assert ramp.betas[0] == 0 and ramp.betas[-1] == 0.25
    assert ramp.thetas[100] > held.thetas[100] and ramp.final == pytest.approx(held.final, abs=0.2)


def test_the_baselines_sigma_falls_with_the_group() -> None:
    sigmas = [grpo_lab.baseline_sigma(group) for group in grpo_lab.GROUP_SIZES]
    assert sigmas == sorted(sigmas, reverse=True)
    assert sigmas == [pytest.approx(group**-0.5, rel=0.02) for group in grpo_lab.GROUP_SIZES]


def test_a_length_bias_survives_the_group_mean_and_a_constant_does_not() -> None:
    faults = grpo_lab.reward_faults()
    assert faults["constant shift"].moved < 1e-9 < 0.1 < faults["length bias"].moved
    assert abs(faults["honest"].long) < 0.05 and faults["length bias"].long > 0.3
    assert faults["constant shift"].drift == pytest.approx(faults["honest"].drift)
    assert abs(faults["honest"].drift) < 0.5 and faults["length bias"].drift > 5


def test_the_grpo_command_draws_its_plots(tmp_path: Path) -> None:
    printed = lab("grpo_lab", "--plots", str(tmp_path / "plots"))
    assert "0.25     3.574     0.000    6.385         0.926      0.250  near the best" in printed
    files = sorted((tmp_path / "plots").iterdir())
    assert [file.name for file in files] == ["beta.png", "groups.png", "lr.png", "schedules.png"]
    assert all(file.read_bytes().startswith(b"\x89PNG") and file.stat().st_size > 5_000 for file in files)
    (tmp_path / "file").touch()
    assert "refused: --plots" in lab("grpo_lab", "--plots", str(tmp_path / "file"), code=2)


# ------------------------------------------------------------------------------------------------ reward_map


def test_everything_of_the_code_has_a_signal() -> None:
    plan, lines = reward_map.plan_rows(PLAN_KEYS), reward_map.line_rows(LINES)
    parts = reward_map.part_rows(RewardBreakdown._fields)
    assert reward_map.gaps([*plan, *lines, *parts]) == []
    assert {row.name for row in plan} == set(PLAN_KEYS)
    assert [row.name for row in lines] == [line.name for line in LINES]
    assert [row.name for row in parts] == list(RewardBreakdown._fields)


def test_the_right_plan_is_right() -> None:
    # A plan with a fault of its own would let a probe go unnoticed.
    scores = reward_map.compute_reward(REQUEST.plan, REQUEST.golden, REQUEST.text, REQUEST.titles)
    assert scores.total == 1.0 and not any(getattr(scores, flag) for flag in reward_map.FLAGS)


@pytest.mark.parametrize(
    ("key", "fault", "kind", "signal"),
    [
        ("category", "another category", "deterministic", "field_score, category"),
        ("category", "invented for a fragment", "deterministic", "flag overcommit; gate overcommit"),
        ("category", "an audience made up in front of it", "judge", "nothing moves"),
        ("budget_amount", "a bad reading of a vague sum", "person", "nothing moves"),
        ("keywords", "find other products", "deterministic", "retrieval"),
        ("keywords", "filler that finds the same", "deterministic", "gate grounded"),
        ("exclude_terms", "a stated exclusion dropped", "deterministic", "flag exclusion_missed; gate exclusion"),
        ("exclude_terms", "the wrong word", "judge", "nothing moves"),
    ],
)
def test_what_notices_a_fault(key: str, fault: str, kind: str, signal: str) -> None:
    (row,) = [row for row in reward_map.plan_rows(PLAN_KEYS) if (row.name, row.fault) == (key, fault)]
    assert (row.kind, row.signal) == (kind, signal)


def test_a_new_field_line_or_part_without_a_signal_is_a_gap() -> None:
    assert [row.name for row in reward_map.gaps(reward_map.plan_rows((*PLAN_KEYS, "brand")))] == ["brand"]
    line = Line("brand_kept", "no other brand", False, lambda case, judging: Finding(1.0, True, ""))
    assert [row.name for row in reward_map.gaps(reward_map.line_rows((*LINES, line)))] == ["brand_kept"]
    parts = (*RewardBreakdown._fields, "brand")
    assert [row.name for row in reward_map.gaps(reward_map.part_rows(parts))] == ["brand"]


def test_a_line_whose_code_sees_nothing_is_a_gap() -> None:
    blind = [
        Line(line.name, line.says, line.p0, lambda case, judging: Finding(1.0, True, ""))
        if line.name == "budget_kept"
        else line
        for line in LINES
    ]
    assert [row.name for row in reward_map.gaps(reward_map.line_rows(blind))] == ["budget_kept"]


def test_what_has_gone_and_what_is_said_wrongly_are_gaps() -> None:
    assert {row.name for row in reward_map.gaps(reward_map.plan_rows(PLAN_KEYS[1:]))} == {PLAN_KEYS[0]}
    assert [row.name for row in reward_map.gaps(reward_map.line_rows(LINES[1:]))] == [LINES[0].name]
    unseen = Probe("exclude_terms", "the wrong word", {"exclude_terms": [{"word": "red", "evidence": "别给我网面的"}]})
    assert reward_map.probe_row(unseen).kind == "GAP"  # nothing moves, and nobody has said who judges it
    claimed = Probe("category", "another category", {"category": "台灯"}, needs="judge")
    assert "yet code notices" in reward_map.probe_row(claimed).signal


def test_signal_gaps_are_what_the_default_reward_does_not_see() -> None:
    gaps = {(row.name, row.fault) for row in reward_map.signal_gaps(reward_map.plan_rows(PLAN_KEYS))}
    assert ("exclude_terms", "a stated exclusion dropped") in gaps
    assert ("exclude_terms", "evidence made up") not in gaps
    assert len(gaps) < len(PROBES)
    unseen_lines = [row.name for row in reward_map.signal_gaps(reward_map.line_rows(LINES))]
    assert unseen_lines == ["budget_kept", "exclusions_kept", "audience_respected", "enough_results"]


def test_ability_gaps_are_counted_apart(tmp_path: Path) -> None:
    scored = [
        record("a", sample(0.8, format=1.0, category=0.5, overcommit=True, domain_miss=True)),
        record("b", sample(0.9, format=1.0, category=1.0)),
        record("c", sample(-1.0, None)),
    ]
    printed = lab("reward_map", "--evaluation", write(tmp_path / "e", {"greedy": scored}))
    tail = printed[printed.index("ability gaps") :]
    cells = [line.split() for line in tail.splitlines()]
    assert ["category", "0.750", "1", "2"] in cells
    assert ["retrieval", "-", "0", "0"] in cells
    assert ["overcommit", "1", "signal"] in cells
    assert ["domain_miss", "1", "ability"] in cells
    assert "refused:" in lab("reward_map", "--evaluation", str(tmp_path / "none"), code=2)


def test_the_map_of_methods() -> None:
    methods = {one.name: one for one in reward_map.METHODS}
    assert [(name, one.critic, len(one.copies)) for name, one in methods.items()] == [
        ("SFT", False, 1),
        ("PPO", True, 4),
        ("DPO", False, 2),
        ("GRPO", False, 2),
    ]
    printed = lab("reward_map")
    assert "without a signal: none" in printed
    assert all(name in printed for name in (*PLAN_KEYS, *(line.name for line in LINES), *methods))
    assert len(DIMENSIONS) == 4  # field_score is the part of the dimension `field`


# ---------------------------------------------------------------------------------------------------- tables


def test_numbers_stand_to_the_right_and_words_to_the_left() -> None:
    assert table("t", ("a", "n"), [("x", "1"), ("long", "10×")]) == "t\n  a       n\n  x       1\n  long  10×\n"
