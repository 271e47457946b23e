"""`orcaserve reproduce`: the paper's figures, from the scheduler that serves."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from orcaserve.checkpoint.locate import locate_model, model_name
from orcaserve.config import QUANTIZATIONS, EngineConfig, ModelConfig
from orcaserve.core.errors import ConfigError

if TYPE_CHECKING:
    from orcaserve.evaluation.paper.figure import Figure

SIMULATED = ("3", "8", "9", "10", "11")
FIGURES = (*SIMULATED, "live", "all")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Reproduce the evaluation of the Orca paper: tables, pictures, and a report in one HTML file."
    parser.epilog = (
        "example: orcaserve reproduce --figure 10 --figure 11 --out figures\n"
        "Figures 3 to 11 come from the scheduler that serves, in virtual time, over a model of the paper's machines;\n"
        "`live` is Figure 10 on this machine with a real model, and takes about half an hour; `all` is all but live."
    )
    parser.add_argument("--figure", action="append", choices=FIGURES, metavar="|".join(FIGURES),
                        help="which one; may be given several times (default: all)")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("reproduction"), metavar="FOLDER",
                        help="where report.html and the pictures go (default: %(default)s)")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="every point, the factors and the anchors")
    parser.add_argument("--requests", type=float, default=1.0, metavar="FACTOR",
                        help="factor of how many requests a run has: less is quicker and coarser "
                        "(default: %(default)g)")  # fmt: skip
    parser.add_argument("-j", "--jobs", type=int, metavar="N", help="processes (default: the cores of this machine)")
    parser.add_argument("--live-seconds", type=float, default=15.0, metavar="SECONDS",
                        help="live: how long each of its 42 runs takes, or as 24 requests do "
                        "(default: %(default)g)")  # fmt: skip
    group = parser.add_argument_group("live")
    group.add_argument("-m", "--model", metavar="MODEL", help="as for `serve` (default: the default model)")
    group.add_argument("--quantization", choices=QUANTIZATIONS, default="auto", help="as for `serve`")
    group.add_argument("-t", "--threads", type=int, metavar="N", help="as for `serve`")


def run(args: argparse.Namespace) -> int:
    if not 0.05 <= args.requests <= 100:
        raise ConfigError("--requests", "must be from 0.05 to 100")
    if not 1 <= args.live_seconds <= 3600:
        raise ConfigError("--live-seconds", "must be from 1 to 3600")
    if args.jobs is not None and args.jobs < 1:
        raise ConfigError("--jobs", "must be 1 or more")
    from orcaserve.evaluation.paper.anchors import anchors_table, measure_anchors
    from orcaserve.evaluation.paper.report import as_json, factor_tables, html
    from orcaserve.evaluation.pictures.png import have_matplotlib, save_png
    from orcaserve.simulation.machine import this_machine

    n_processes = args.jobs or int(this_machine()["cores"])
    wanted = args.figure or ["all"]
    names = [name for name in FIGURES if name in wanted or ("all" in wanted and name in SIMULATED)]
    args.out.mkdir(parents=True, exist_ok=True)
    anchors = None
    if {"9", "10"} & set(names):
        _note("anchors ...")
        anchors = measure_anchors(n_processes, args.requests)
        print(anchors_table(anchors).text() + "\n", flush=True)
    figures = []
    for name in names:
        if name == "all":
            continue
        _note(f"figure {name} ...")
        figure = _figure(name, n_processes, args)
        figures.append(figure)
        print(f"Figure {name}: {figure.title}\n{figure.about}\n")
        for table in figure.tables:
            print(table.text() + "\n", flush=True)
        stem = args.out / f"figure-{name}"
        stem.with_suffix(".svg").write_text(figure.drawing.svg())
        if have_matplotlib():
            save_png(figure.drawing, stem.with_suffix(".png"))
    if names != ["live"]:
        for table in factor_tables():
            print(table.text() + "\n")
    (args.out / "report.html").write_text(html(figures, anchors))
    if args.json is not None:
        args.json.write_text(json.dumps(as_json(figures, anchors), indent=1) + "\n")
    if not have_matplotlib():
        _note("no PNG was written, which needs matplotlib: pip install 'orcaserve[bench]'; SVG and report are complete")
    print(f"report: {args.out / 'report.html'}")
    return 0


def _figure(name: str, n_processes: int, args: argparse.Namespace) -> Figure:
    if name == "3":
        from orcaserve.evaluation.paper.figure3 import figure_3

        return figure_3()
    if name == "8":
        from orcaserve.evaluation.paper.figure8 import figure_8

        return figure_8()
    if name == "9":
        from orcaserve.evaluation.paper.figure9 import figure_9

        return figure_9()
    if name == "live":
        from orcaserve.evaluation.paper.live import live_figure

        model = ModelConfig(
            Path(os.path.abspath(locate_model(args.model))),
            model_name(args.model),
            quantization=args.quantization,
            threads=args.threads,
        )
        return live_figure(EngineConfig(model), args.live_seconds, _note)
    from orcaserve.evaluation.paper.figure10 import figure_10, figure_11

    return (figure_10 if name == "10" else figure_11)(n_processes, args.requests)


def _note(text: str) -> None:
    print(f"orcaserve: {text}", file=sys.stderr, flush=True)
