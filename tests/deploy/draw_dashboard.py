"""Draws a dashboard of deploy/grafana as SVG: each panel at its place, with the series that a Prometheus server returns
for its queries. This program made the pictures in docs/images, because Debian does not package Grafana. Queries,
titles, units, legends and places are those of the file; the look is not that of Grafana."""

import html
import math
import re

COLUMN, UNIT = 50, 30  # pixels per unit of gridPos
COLORS = ("#3274d9", "#e0752d", "#56a64b", "#b877d9", "#d6a300", "#e02f44", "#0aa3a3", "#806eb7", "#8f8f8f", "#a05a2c")
SERIES = 10  # in the legend of a panel; the others are counted


def scaled(value, base, units):
    step = 0
    while abs(value) >= base and step < len(units) - 1:
        value, step = value / base, step + 1
    return f"{value:.3g}{units[step]}"


def text_of(value, unit):
    """A value in the unit of a panel, as Grafana names units."""
    if unit == "percentunit":
        return f"{100 * value:.3g}%"
    if unit in ("bytes", "Bps"):
        return scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB"]) + ("/s" if unit == "Bps" else "")
    if unit == "s":
        if value and abs(value) < 1:
            return f"{1000 * value:.3g} ms"
        return f"{value:.3g} s" if abs(value) < 3600 else f"{value / 3600:.3g} h"
    return scaled(value, 1000, ["", " k", " M", " G", " T"]) + ("/s" if unit == "ops" else "")


def escaped(text):
    return html.escape(str(text), quote=True)


def label(text, x, y, size=11, anchor="start", color="#444", weight="normal"):
    return (f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" text-anchor="{anchor}" fill="{color}" '
            f'font-weight="{weight}">{escaped(text)}</text>')


def legend_of(template, labels):
    return re.sub(r"{{\s*(\w+)\s*}}", lambda match: labels.get(match[1], ""), template) or "value"


def series_of(server, panel, variables, times):
    """[(legend, [value or None at each time])] of all queries of a panel."""
    found = []
    for target in panel.get("targets", []):
        query = target["expr"]
        for name, value in variables.items():
            query = query.replace(name, value)
        start, end, step = times
        data = server.get("query_range", query=query, start=start, end=end, step=step)
        count = round((end - start) / step) + 1
        for series in data["result"]:
            values = [None] * count
            for at, value in series["values"]:
                value = float(value)
                if math.isfinite(value):
                    values[round((at - start) / step)] = value
            found.append((legend_of(target["legendFormat"], series["metric"]), values))
    return [(legend, values) for legend, values in found if any(value is not None for value in values)]


def stacked(series):
    """Each series on top of those before it, as (lower line, upper line)."""
    below = [0.0] * len(series[0][1])
    for _, values in series:
        upper = [low + (value or 0) for low, value in zip(below, values)]
        yield below, upper
        below = upper


def path(values, place):
    """The line through values; a gap begins a new line. `place` gives the point of (index, value)."""
    parts, pen_down = [], False
    for index, value in enumerate(values):
        if value is not None:
            parts.append(f"{'L' if pen_down else 'M'}{place(index, value)}")
        pen_down = value is not None
    return "".join(parts)


def chart(panel, series, left, top, width, height):
    defaults = panel["fieldConfig"]["defaults"]
    unit = defaults.get("unit", "short")
    is_stacked = defaults.get("custom", {}).get("stacking", {}).get("mode") == "normal"
    pairs = list(stacked(series)) if is_stacked else [(None, values) for _, values in series]
    present = [value for _, values in pairs for value in values if value is not None]
    low = min([defaults.get("min", min(present)), *present])
    high = max(present) if max(present) > low else low + 1
    inner_left, inner_width = left + 62, width - 74

    def place(index, value):
        return (f"{inner_left + inner_width * index / max(len(pairs[0][1]) - 1, 1):.0f},"
                f"{top + height - height * (value - low) / (high - low):.0f}")

    for step in range(3):
        value = low + (high - low) * step / 2
        y = top + height - height * step / 2
        yield f'<path d="M{inner_left:.0f},{y:.0f}h{inner_width:.0f}" stroke="#ddd"/>'
        yield label(text_of(value, unit), inner_left - 5, y + 4, 10, "end", "#777")
    for number, (lower, upper) in enumerate(pairs):
        color = COLORS[number % len(COLORS)]
        if lower is not None:
            back = "".join(f"L{place(index, value)}" for index, value in reversed(list(enumerate(lower))))
            yield f'<path d="{path(upper, place)}{back}Z" fill="{color}" fill-opacity="0.6"/>'
        else:
            yield f'<path d="{path(upper, place)}" fill="none" stroke="{color}" stroke-width="1.5"/>'


def legend(series, left, y, width):
    x = left
    names = [name for name, _ in series[:SERIES]]
    names += [f"and {len(series) - SERIES} more"] if len(series) > SERIES else []
    for number, name in enumerate(names):
        name = name if len(name) <= 34 else name[:33] + "…"
        if x + 14 + 6 * len(name) > left + width:
            return
        yield f'<rect x="{x}" y="{y - 8}" width="9" height="9" fill="{COLORS[number % len(COLORS)]}"/>'
        yield label(name, x + 12, y, 10)
        x += 22 + 6 * len(name)


def drawn_panel(server, panel, variables, times):
    place = panel["gridPos"]
    left, top = place["x"] * COLUMN, place["y"] * UNIT + 50
    width, height = place["w"] * COLUMN - 8, place["h"] * UNIT - 8
    if panel["type"] == "row":
        yield label(panel["title"], left + 4, top + 18, 13, weight="bold")
        return
    yield f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="#fff" stroke="#ccc" rx="3"/>'
    yield label(panel["title"], left + 8, top + 18, 12, weight="bold")
    series = series_of(server, panel, variables, times)
    if not series:
        yield label("no data", left + width / 2, top + height / 2, 12, "middle", "#999")
    elif panel["type"] == "stat":
        unit = panel["fieldConfig"]["defaults"].get("unit", "short")
        newest = next(value for value in reversed(series[0][1]) if value is not None)
        yield label(text_of(newest, unit), left + width / 2, top + height / 2 + 12, 30, "middle", "#3274d9", "bold")
    else:
        yield from chart(panel, series, left, top + 30, width, height - 62)
        yield from legend(series, left + 10, top + height - 10, width - 16)


def drawn(server, dashboard, variables, times):
    """The dashboard as SVG. `variables`: {"$job": id, "$__rate_interval": "4s"}; `times`: start, end and step in
    seconds."""
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"]) * UNIT + 60
    width = 24 * COLUMN
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
             f'<rect width="{width}" height="{height}" fill="#f4f5f5"/>',
             label(dashboard["title"], 8, 24, 16, weight="bold"),
             label("Drawn by tests/deploy/draw_dashboard.py from the queries of the dashboard, not by Grafana.", 8, 42)]
    for panel in dashboard["panels"]:
        parts += drawn_panel(server, panel, variables, times)
    return "\n".join(parts) + "\n</svg>\n"
