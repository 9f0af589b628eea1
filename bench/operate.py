#!/usr/bin/env python3
"""./dev bench operate: the figures of operating the control plane, compared with fixed bars.

How long a scrape takes, how many jobs per second can be submitted, how soon the status page shows what has happened,
and whether memory grows. operate_rows.py measures, operate_clients.py is the load, bench/README.md describes the rows.
"""

import argparse
import dataclasses
import json
import signal
import sys

import operate_browser
import operate_memory
import operate_rows
import run
import sides


@dataclasses.dataclass(frozen=True)
class Row:
    """`measure` returns a list of figures; `duration_s` is the approximate time that it needs on two cores."""

    name: str
    what: str
    measure: object
    duration_s: int


def make_rows():
    return [
        Row("metrics", "a scrape of /metrics with 1,024 simulated hosts and 200 jobs", operate_rows.measure_metrics,
            20),
        Row("submit", "submissions per second, and the time of Get, under 200 watchers", operate_rows.measure_submit,
            10),
        Row("page", "the status page with 1,000 jobs in a headless Chromium", operate_rows.measure_page, 50),
        Row("rss", "growth of coordinator and daemons while jobs, watchers and scrapes come and go",
            operate_memory.measure, 3800),
    ]


def text_of(value):
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.2f}"


def meets_bar(figure):
    if figure.bar is None:
        return None
    return figure.value >= figure.bar if figure.better == "higher" else figure.value <= figure.bar


def results_of(row, figures):
    return [{"row": row.name, **dataclasses.asdict(figure), "meets_bar": meets_bar(figure)} for figure in figures]


def table(environment, results):
    lines = [f"{environment['cpu']}, {environment['cores']} cores, which coordinator, clients and browser share; "
             f"commit {environment['commit']}, {environment['date']}", "",
             "| What | Figure | Bar | | Other figures |", "|---|---|---|---|---|"]
    for result in results:
        sign = "≥" if result["better"] == "higher" else "≤"
        bar = "none" if result["bar"] is None else f"{sign} {text_of(result['bar'])} {result['unit']}"
        verdict = {None: "", True: "ok", False: "MISSES BAR"}[result["meets_bar"]]
        others = ", ".join(f"{name} {text_of(value)}" for name, value in result["others"].items())
        lines.append(f"| {result['what']} | {text_of(result['value'])} {result['unit']} | {bar} | {verdict} | "
                     f"{others} |")
    return "\n".join(lines) + "\n"


def read_arguments(rows, arguments=None):
    parser = argparse.ArgumentParser(prog="./dev bench operate", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", nargs="*", help="rows to measure; none: all")
    parser.epilog = "\n".join(["rows, with their approximate duration on two cores:", *(
        f"  {row.name:<10} {row.duration_s:>4} s  {row.what}" for row in rows)])
    for name, kind, default, what in (
            ("hosts", int, 1024, "row metrics: simulated hosts"),
            ("scrapes", int, 20, "row metrics: scrapes"),
            ("watchers", int, 200, "row submit: watchers"),
            ("gets", int, 2000, "row submit: calls of Get"),
            ("submissions", int, 4000, "row submit: jobs, at most 9,900"),
            ("loads", int, 5, "row page: times that the page is opened"),
            ("seconds", float, 30, "row page: seconds in which steps are observed"),
            ("minutes", float, 60, "row rss: minutes under load, including the warm-up"),
            ("warm-minutes", float, 10, "row rss: minutes of warm-up, at least; no samples are taken"),
            ("warm-steps", int, 70_000, "row rss: steps that one long job makes in the warm-up, to fill its history"),
            ("warm-jobs", int, 30, "row rss: short jobs that must end in the warm-up after the fill-jobs"),
            ("fill-jobs", int, 101_000, "row rss: jobs that are submitted and cancelled in the warm-up"),
            ("interval", float, 5, "row rss: seconds between two samples"),
            ("pause", float, 10, "row rss: mean seconds between short jobs"),
            ("share", float, 0.1, "row rss: the share of the time in which the long job may run after the warm-up")):
        parser.add_argument(f"--{name}", type=kind, default=default, metavar="N", help=f"{what} (default {default:,})")
    parser.add_argument("--samples", metavar="FILE", help="row rss: also write each sample to this file, as CSV")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--save", metavar="NAME", help="also write bench/results/NAME.json and NAME.md")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.row) - {row.name for row in rows})
    if unknown:
        parser.error(f"unknown row: {', '.join(unknown)}; there are {', '.join(row.name for row in rows)}")
    for name, least, most in (("hosts", 1, 8000), ("scrapes", 1, 10_000), ("watchers", 1, 2000), ("gets", 1, 10**6),
                              ("submissions", operate_rows.SUBMITTERS, 9900), ("loads", 1, 1000),
                              ("seconds", 2, 3600), ("minutes", 0.05, 10_000), ("warm_minutes", 0, 10_000),
                              ("warm_steps", 1, 10**6), ("warm_jobs", 0, 10**6), ("fill_jobs", 1, 10**6),
                              ("interval", 0.1, 60), ("pause", 0, 3600), ("share", 0.01, 1)):
        if not least <= getattr(options, name) <= most:
            parser.error(f"--{name.replace('_', '-')} is {getattr(options, name):g}, must be {least} to {most}")
    if options.warm_minutes >= options.minutes:
        parser.error(f"--warm-minutes is {options.warm_minutes:g}, must be less than --minutes, {options.minutes:g}")
    options.stopped = False  # set by a row that was interrupted, but returns what it has measured
    return options


def measure(rows, options):
    """(results, names of rows that could not be measured)"""
    results, failed = [], []
    for row in rows:
        if options.row and row.name not in options.row:
            continue
        print(f"bench: {row.name}", file=sys.stderr, flush=True)
        try:
            results += results_of(row, row.measure(options))
        except (sides.MeasurementFailed, operate_browser.BrowserFailed, operate_rows.grpc.RpcError, AssertionError,
                OSError) as failure:
            failed.append(row.name)
            print(f"bench: {row.name} could not be measured: {failure}", file=sys.stderr, flush=True)
        if options.stopped:
            break
    return results, failed


def main():
    rows = make_rows()
    options = read_arguments(rows)
    for number in operate_rows.INTERRUPTS:  # a shell starts programs in the background with SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    environment = run.machine_for_figures()
    try:
        results, failed = measure(rows, options)
    except KeyboardInterrupt:
        print("bench: interrupted; every process of the bench has been ended", file=sys.stderr)
        return 130
    document = json.dumps({"machine": environment, "rows": results, "not_measured": failed}, indent=1)
    text = table(environment, results)
    print(document if options.json else text)
    if options.stopped:
        print("bench: interrupted; every process of the bench has been ended, and nothing was saved", file=sys.stderr)
        return 130
    if options.save:
        run.save(options.save, document, text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
