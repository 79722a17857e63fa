#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads the JSON lines of `replayssm bench kernel --json FILE`, `bench gemv` and `bench spec`.

  report.py compare OLD NEW [--limit PERCENT]   rows of both files, with the change in time
  report.py columns FILE Y [KEY=VALUE]...       Y over the batch (or --x) as blocks for gnuplot, one per shape
"""
import argparse
import json
import signal
import sys


def load(path):
    """Rows by id; of several with one id the last counts."""
    rows = {}
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                sys.exit(f"{path}:{number}: {error}")
            if "id" in row:
                rows[row["id"]] = row
    return rows


def compare(args):
    old, new = load(args.old), load(args.new)
    print(f"{'row':<76} {'old us':>10} {'new us':>10} {'change':>8}")
    for name, row in new.items():
        if name not in old:
            continue
        before, after = old[name]["us_step"], row["us_step"]
        # within the spread of either run a difference says nothing
        noise = old[name]["us_step_p10"] <= after <= old[name]["us_step_p90"]
        change = 100 * (after / before - 1)
        if abs(change) >= args.limit:
            note = "  (in spread)" if noise else ""
            print(f"{name:<76} {before:>10.1f} {after:>10.1f} {change:>+7.1f}%{note}")
    for name in old.keys() - new.keys():
        print(f"{name:<76} is gone")


def columns(args):
    wanted = dict(item.split("=", 1) for item in args.where)
    series = {}
    for row in load(args.file).values():
        if all(str(row.get(key)).lower() == value.lower() for key, value in wanted.items()) and args.y in row:
            series.setdefault(f"{row['shape']} {row['io']}", []).append((row[args.x], row[args.y]))
    blocks = []
    for name, points in series.items():
        blocks.append("\n".join([f'"{name}"'] + [f"{x} {value}" for x, value in sorted(points)]))
    print("\n\n\n".join(blocks))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("compare")
    command.add_argument("old")
    command.add_argument("new")
    command.add_argument("--limit", type=float, default=0, help="leave out changes below this many per cent")
    command.set_defaults(run=compare)
    command = commands.add_parser("columns")
    command.add_argument("file")
    command.add_argument("y")
    command.add_argument("where", nargs="*")
    command.add_argument("--x", default="batch", help="what stands along the axis")
    command.set_defaults(run=columns)
    args = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # gnuplot reads no further than the block it wants
    args.run(args)


if __name__ == "__main__":
    main()
