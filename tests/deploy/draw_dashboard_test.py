"""The pictures of dashboards: values in their units, series with gaps, and panels without data."""

import re
import xml.etree.ElementTree

import pytest

import draw_dashboard

TIMES = (100, 103, 1)


class Server:
    """Answers each query with the series given for it: {query: [(labels, {time: value})]}."""

    def __init__(self, answers):
        self.answers = answers

    def get(self, path, query, start, end, step):
        assert path == "query_range" and (start, end, step) == TIMES
        return {"result": [{"metric": labels, "values": [[at, str(value)] for at, value in values.items()]}
                           for labels, values in self.answers[query]]}


def panel(kind="timeseries", unit="s", custom=None, expr="up", legend="{{job}}"):
    return {"type": kind, "title": "Time <of> & ranks", "gridPos": {"x": 0, "y": 0, "w": 8, "h": 7},
            "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": custom or {}}},
            "targets": [{"expr": expr, "legendFormat": legend}]}


def drawn(answers, *panels):
    picture = draw_dashboard.drawn(Server(answers), {"title": "Board", "panels": list(panels)}, {"$job": "j1"}, TIMES)
    xml.etree.ElementTree.fromstring(picture)
    return picture


@pytest.mark.parametrize("value, unit, text", [
    (0.5, "percentunit", "50%"), (0.25, "s", "250 ms"), (0, "s", "0 s"), (90, "s", "90 s"), (7200, "s", "2 h"),
    (3 << 20, "bytes", "3 MiB"), (2048, "Bps", "2 KiB/s"), (12_000, "short", "12 k"), (3, "ops", "3/s")])
def test_values_have_the_units_of_the_panel(value, unit, text):
    assert draw_dashboard.text_of(value, unit) == text


def test_a_gap_in_a_series_is_a_gap_in_its_line_and_variables_are_replaced():
    answers = {'up{job_id="j1"}': [({"job": "w<1>"}, {100: 1, 101: 2, 103: 4})]}

    picture = drawn(answers, panel(expr='up{job_id="$job"}'))

    (line,) = re.findall(r'<path d="([^"]*)" fill="none"', picture)
    assert line.count("M") == 2 and line.count("L") == 1
    assert "w&lt;1&gt;" in picture and "Time &lt;of&gt; &amp; ranks" in picture and "4 s" in picture
    assert "not by Grafana" in picture


def test_stacked_series_lie_on_top_of_each_other_and_a_stat_shows_the_newest_value():
    answers = {"up": [({"job": name}, dict.fromkeys(range(100, 104), value)) for name, value in (("a", 1), ("b", 2))],
               "sum(up)": [({}, {100: 1, 102: 42})]}

    picture = drawn(answers, panel(unit="short", custom={"stacking": {"mode": "normal"}}),
                    panel("stat", "short", expr="sum(up)"))

    assert picture.count('fill-opacity="0.6"') == 2
    assert ">3<" in picture, "the axis does not end at the sum of the series"
    assert ">42<" in picture


def test_a_panel_without_finite_values_says_so():
    assert ">no data<" in drawn({"up": []}, panel())
    assert ">no data<" in drawn({"up": [({"job": "a"}, {100: "NaN", 101: "+Inf"})]}, panel())
