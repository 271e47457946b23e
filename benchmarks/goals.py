"""The table of goals, from the lines that the benchmarks of one run have left.

    python benchmarks/goals.py LINES.jsonl [--out FILE.md]

Every benchmark with `--lines LINES.jsonl` adds its own. Exit code 1 if a goal that was measured is not reached.
"""

from __future__ import annotations

import argparse

from report import goal_table, heading, read_lines, write


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines")
    parser.add_argument("--out")
    args = parser.parse_args()
    lines = read_lines(args.lines)
    reached, missed, open_ = (sum(line.passed is state for line in lines) for state in (True, False, None))
    summary = f"\n{reached} reached, {missed} missed, {open_} not measured.\n"
    write(heading("Goals", __doc__) + goal_table(lines) + summary, args.out)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
