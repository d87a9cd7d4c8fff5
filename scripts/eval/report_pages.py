"""The sections of a report as HTML text. Every value passes through `escape`; model output is only ever JSON data."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from scripts.eval.comparison import BAD, BETTER
from scripts.eval.evaluation_files import MODES
from scripts.eval.grpo_log import GrpoRun
from scripts.eval.report_data import Gathered
from scripts.eval.result_table import HEADER, row
from scripts.eval.summary import PARTS

CURVES = {
    "reward": "reward",
    "σ within a group": "planner/sigma",
    "share of tied groups": "planner/tied",
    "parse failures": "planner/parse_failures",
    "KL to the reference": "kl",
    "loss": "loss",
    "completion length (tokens)": "completions/mean_length",
    "entropy": "entropy/mean",
}
SMOOTHING = 9  # steps in the running mean of a curve
PLOT_HEIGHT, PLOT_COLUMNS = 190, 4
POINT_COLOUR, MEAN_COLOUR, EVAL_COLOUR = "#b7c4d6", "#1f4e8c", "#c2410c"


def table(header: Sequence[str], rows: Iterable[Sequence[Any]], kind: str = "") -> str:
    """An HTML table; the first column is text, the others are right-aligned by the style sheet."""
    head = "".join(f"<th>{escape(str(cell))}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in cells) + "</tr>" for cells in rows)
    return f'<div class="wide"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def number(value: Any, digits: int = 3, sign: bool = False) -> str:
    return "–" if value is None else f"{value:{'+' if sign else ''}.{digits}f}"


def counted(value: Mapping[str, Any] | None) -> str:
    """`12/27 (0.44)`: a count with its denominator."""
    if value is None:
        return "–"
    return f"{value['count']}/{value['of']}" + ("" if value["share"] is None else f" ({value['share']:.2f})")


def result_section(found: Gathered, warning: str | None) -> str:
    rows = [
        row(label, mode, item["summary"][mode])
        for label, item in found.evaluations.items()
        for mode in MODES
        if mode in item["summary"]
    ]
    note = f'<p class="bad">Do not read these rows against each other: {escape(warning)}</p>' if warning else ""
    return note + table(HEADER, rows) + "<p>Default weights, no gates. In brackets: completions that took part.</p>"


def dimension_section(found: Gathered) -> str:
    """Rates and error classes of every evaluation, each with its denominator; then tiers of difficulty."""
    columns = [(label, mode, item["summary"][mode]) for label, item in found.evaluations.items() for mode in MODES
               if mode in item["summary"]]  # fmt: skip
    header = ["", *(f"{label}, {mode}" for label, mode, _ in columns)]
    first = columns[0][2]
    rates = [name for name, value in first.items() if isinstance(value, dict) and {"count", "of"} <= value.keys()]
    rows = [[name.replace("_", " "), *(counted(s.get(name)) for _, _, s in columns)] for name in rates]
    parts = [
        [part, *(f"{number(s['parts'][part]['mean'])} ({s['parts'][part]['completions']})" for _, _, s in columns)]
        for part in PARTS
    ]
    classes = list(dict.fromkeys(name for _, _, s in columns for name in s.get("error_classes", {})))
    errors = [[name, *(counted(s.get("error_classes", {}).get(name)) for _, _, s in columns)] for name in classes]
    html = table(["part: mean (completions)", *header[1:]], parts) + table(["rate", *header[1:]], rows)
    if errors:
        html += table(["error class", *header[1:]], errors)
    kinds = list(dict.fromkeys(kind for _, _, s in columns for kind in s.get("tiers", {})))
    for kind in kinds:
        tiers = list(dict.fromkeys(tier for _, _, s in columns for tier in s.get("tiers", {}).get(kind, {})))
        cells = [[tier, *(_tier(s.get("tiers", {}).get(kind, {}).get(tier)) for _, _, s in columns)] for tier in tiers]
        html += table([f"{kind}: reward (records)", *header[1:]], cells)
    return html


def _tier(cell: Mapping[str, Any] | None) -> str:
    return "–" if cell is None else f"{cell['reward']['mean']:.3f} ({cell['records']})"


def comparison_section(results: Sequence[Mapping[str, Any]]) -> str:
    """Every compared pair: the verdict's words over the table of quantities."""
    if not results:
        return "<p>One evaluation: nothing to compare.</p>"
    html = ""
    for result in results:
        html += f"<h3>{escape(result['b'])} − {escape(result['a'])}</h3>"
        if "error" in result:
            html += f'<p class="bad">Not comparable: {escape(result["error"])}</p>'
            continue
        for mode, compared in result["modes"].items():
            word = compared["verdict"]
            kind = "bad" if word in BAD else "good" if word == BETTER else "even"
            html += f'<p class="{kind}"><b>{escape(mode)}</b>, {compared["records"]} records: '
            html += f"{escape(compared['words'])}</p>"
            html += "".join(f"<p>{escape(note)}</p>" for note in compared["notes"])
            lines = [("total", compared["total"]), *compared["tested"].items()]
            html += table(
                ["quantity", "records", result["a"], result["b"], "change", "95 %", "p", "p Holm", "reading"],
                [
                    [name, c["records"], number(c["before"]), number(c["after"]), number(c["mean"], sign=True),
                     f"[{c['low']:+.3f}, {c['high']:+.3f}]", number(c["p"], 4),
                     "–" if name == "total" else number(c["p_holm"], 4), "" if name == "total" else c["state"]]
                    for name, c in lines
                ],
            )  # fmt: skip
            tested = f"{len(compared['tested'])} parts and rates tested at once; {compared['correction']}."
            html += f"<p>{escape(tested)}</p>"
    return html


def exploit_section(calibration: Mapping[str, Any] | None) -> str:
    """Calibration and exploit battery of calibrate_reward.py."""
    if calibration is None:
        return "<p>No calibration given (--calibration FILE, written by calibrate_reward.py).</p>"
    policies = [
        [name, *(f"{score[side]['mean']:.3f} ± {score[side]['sigma']:.3f}" for side in ("no_gates", "all_gates"))]
        for name, score in calibration["policies"].items()
    ]
    lines = [[line["distance"], number(line["value"]), number(line["wanted"], 2)]
             for line in calibration["calibration"]["lines"]]  # fmt: skip
    exploits = [
        [one["name"], number(one["mean_all_records"]), ", ".join(map(str, one["pays_without_gates_at"])) or "never",
         ", ".join(map(str, one["pays_with_all_gates_at"])) or "never",
         ", ".join(one["gates_that_stop_it_alone"]) or "–", "ABOVE ITS TWIN" if one["failed"] else "", one["reason"]]
        for one in calibration["exploits"]
    ]  # fmt: skip
    good = calibration["verdict"]["good"]
    return (
        f'<p class="{"good" if good else "bad"}">calibration and exploits: {"good" if good else "bad"}</p>'
        + table(["policy", "no gates", "all gates"], policies)
        + table(["distance", "measured", "wanted"], lines)
        + table(
            ["exploit", "mean, all gates", "pays without gates at", "pays with all gates at", "stopped alone by",
             "", "what it does"],
            exploits,
            "prose",
        )
        + "<p>An exploit pays where its mean is above its honest twin's; the rates are the twin's own fault rates.</p>"
    )  # fmt: skip


def curves_section(label: str, run: GrpoRun, verdict: Mapping[str, Any] | None) -> str:
    """Small multiples of one GRPO run: train points, their running mean, and held-out evaluations."""
    import plotly.io
    from plotly.graph_objects import Scatter
    from plotly.subplots import make_subplots

    metrics = {**CURVES, **{name.removeprefix("Planner"): metric for name, metric in run.dimensions.items()}}
    drawn = {title: metric for title, metric in metrics.items() if len(run.series(metric))}
    html = f"<h3>{escape(label)}</h3><p>{run.trained} of {run.max_steps or '?'} steps.</p>"
    if verdict:
        html += f"<p>Log verdict: {escape(verdict['verdict']['status'])}.</p>"
    html += "".join(f"<p>{escape(sentence)}</p>" for sentence in run.oddities.sentences())
    if not drawn:
        return html + "<p>No step trained.</p>"
    rows = -(-len(drawn) // PLOT_COLUMNS)
    figure = make_subplots(rows=rows, cols=PLOT_COLUMNS, subplot_titles=list(drawn), vertical_spacing=0.34 / rows)
    for place, metric in enumerate(drawn.values()):
        cell = {"row": place // PLOT_COLUMNS + 1, "col": place % PLOT_COLUMNS + 1}
        train, held_out = run.series(metric), run.eval_series(metric)
        x, y = train.steps.tolist(), train.values.tolist()
        points = {"color": POINT_COLOUR, "size": 3}
        figure.add_trace(Scatter(x=x, y=y, mode="markers", marker=points, name="step"), **cell)
        line = {"color": MEAN_COLOUR, "width": 2}
        figure.add_trace(Scatter(x=x, y=running_mean(y), mode="lines", line=line, name="running mean"), **cell)
        if len(held_out):
            marks = {"color": EVAL_COLOUR, "size": 7, "symbol": "diamond"}
            steps, values = held_out.steps.tolist(), held_out.values.tolist()
            figure.add_trace(Scatter(x=steps, y=values, mode="markers", marker=marks, name="held out"), **cell)
    figure.update_layout(
        height=PLOT_HEIGHT * rows + 60, showlegend=False, margin={"l": 40, "r": 10, "t": 30, "b": 30},
        font={"size": 11}, paper_bgcolor="white", plot_bgcolor="white",
    )  # fmt: skip
    figure.update_annotations(font_size=12)
    figure.update_xaxes(gridcolor="#eee", zeroline=False)
    figure.update_yaxes(gridcolor="#eee", zeroline=False)
    options = {"displaylogo": False, "responsive": True}
    plot = plotly.io.to_html(figure, full_html=False, include_plotlyjs=False, config=options)
    legend = "grey: a step; blue: running mean of " + f"{SMOOTHING} steps; orange: held-out evaluation (watch set)"
    return html + f"<p>{legend}</p>" + plot


def running_mean(values: Sequence[float]) -> list[float]:
    """The mean over a window of SMOOTHING centred on each value, cut at the ends."""
    half = SMOOTHING // 2
    windows = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(window) / len(window) for window in windows]
