"""The schedule as a picture, in the manner of the paper's Figure 8: a row for every worker, a block for every batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

WIDTH, ROW, LEFT, RIGHT, TOP = 1200, 34, 70, 90, 44  # pixels
_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")  # told apart by colour-blind eyes too


class Block(NamedTuple):
    """Work of one worker on one iteration. Times in nanoseconds."""

    worker: str
    iteration: int
    start: int
    end: int
    n_requests: int
    n_tokens: int


def draw(workers: Sequence[str], blocks: Sequence[Block], idle_shares: Mapping[str, float], note: str = "") -> str:
    """An SVG. Numbers in blocks are those of iterations; the idle share at the right is of the whole run.

    note: behind the words above the picture.
    """
    begin = min((block.start for block in blocks), default=0)
    length = max(max((block.end for block in blocks), default=1) - begin, 1)
    scale = (WIDTH - LEFT - RIGHT) / length
    height = TOP + ROW * len(workers) + 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        'font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="20">{length / 1e6:.1f} ms of the run; a colour is one iteration{note}</text>',
        f'<text x="{WIDTH - RIGHT + 8}" y="20">idle (whole run)</text>',
    ]
    rows = {worker: TOP + ROW * i for i, worker in enumerate(workers)}
    for worker, y in rows.items():
        lines.append(f'<text x="10" y="{y + 20}">{worker}</text>')
        lines.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH - LEFT - RIGHT}" height="{ROW - 6}" fill="#eeeeee"/>')
        lines.append(f'<text x="{WIDTH - RIGHT + 8}" y="{y + 20}">{idle_shares.get(worker, 0):.1%}</text>')
    for block in blocks:
        x, width = LEFT + (block.start - begin) * scale, max((block.end - block.start) * scale, 0.5)
        colour = _COLOURS[block.iteration % len(_COLOURS)]
        about = f"iteration {block.iteration}: {block.n_requests} requests, {block.n_tokens} tokens"
        took = f"{(block.end - block.start) / 1e6:.2f} ms"
        y = rows[block.worker]
        lines.append(
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 6}" fill="{colour}">'
            f"<title>{about}, {took}</title></rect>"
        )
        if width > 9 * len(str(block.iteration)):
            lines.append(
                f'<text x="{x + width / 2:.1f}" y="{y + 19}" text-anchor="middle" fill="white">{block.iteration}</text>'
            )
    return "\n".join([*lines, "</svg>\n"])
