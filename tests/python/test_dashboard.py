#!/usr/bin/env python3
"""tools/grafana/dashboard.json: a Grafana dashboard of the metrics that the library writes."""
import json
import re

from ranks_of_threads import ROOT, cases, expect, expect_equal, np, ranks, weft

DASHBOARD = json.loads((ROOT / "tools/grafana/dashboard.json").read_text())
PANELS = DASHBOARD["panels"]
QUERIES = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]
LEFT_OUT = set()  # metrics that no panel shows
FUNCTIONS = {"sum", "avg", "max", "count", "by", "rate", "increase"}


def metrics_of_step(comm):
    """Return the metrics of a rank that has made a step, as the library writes them."""
    with weft.Reducer(comm, [weft.Param("weight", (100,))]) as reducer:
        with reducer.step():
            reducer.ready(0, np.ones(100, np.float32))
        return comm.context.metrics()


def samples_of(text):
    """Return for each name of a sample its labels, each with the set of its values."""
    samples = {}
    for name, labels in re.findall(r"^(\w+)\{(.*)\} \S+$", text, re.M):
        known = samples.setdefault(name, {})
        for label, value in re.findall(r'(\w+)="([^"]*)"', labels):
            known.setdefault(label, set()).add(value)
    return samples


TEXT = "".join(ranks(metrics_of_step, 2, backend="shm"))
SAMPLES = samples_of(TEXT)


def selectors(expression):
    """Return the metrics of a query, each with its matchers: (label, operator, value)."""
    return [(name, re.findall(r'(\w+)(=~|!=|=|!~)"([^"]*)"', matchers))
            for name, matchers in re.findall(r"(\w+)\{([^}]*)\}", expression)]


def test_schema():
    """it has what Grafana asks of a dashboard, and its panels do not overlap"""
    for field, kind in (("title", str), ("uid", str), ("schemaVersion", int), ("panels", list), ("templating", dict),
                        ("time", dict)):
        expect(isinstance(DASHBOARD[field], kind), field)
    variables = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
    expect_equal(variables["datasource"]["query"], "prometheus")
    expect_equal(variables["comm"]["definition"], "label_values(weft_comm_ranks, comm)")
    expect_equal(sorted(panel["id"] for panel in PANELS), list(range(1, len(PANELS) + 1)))
    cells = set()
    for panel in PANELS:
        expect(panel["type"] in ("timeseries", "stat") and panel["title"] and panel["description"], panel["title"])
        expect(panel["fieldConfig"]["defaults"]["unit"], panel["title"])
        at = panel["gridPos"]
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        expect(own and at["x"] + at["w"] <= 24 and not own & cells, f"the place of {panel['title']}", at)
        cells |= own
        letters = [target["refId"] for target in panel["targets"]]
        expect(letters and len(set(letters)) == len(letters), panel["title"], letters)
        for one in [panel, *panel["targets"]]:
            expect_equal(one["datasource"], {"type": "prometheus", "uid": "${datasource}"}, panel["title"])


def test_queries():
    """each query asks only for metrics, labels and values that the library writes, of the chosen communicator"""
    for title, target in QUERIES:
        query = target["expr"]
        expect(query.count("(") == query.count(")"), title, query)
        found = selectors(query)
        expect(found, title, query)
        words = set(re.findall(r"\b[a-z]\w*", re.sub(r"\{[^}]*\}|\[[^]]*\]|by \([^)]*\)", "", query)))
        expect_equal(words - FUNCTIONS - {name for name, _ in found}, set(), title, query)
        for name, matchers in found:
            expect(name in SAMPLES, f"{title}: the library writes {name}", sorted(SAMPLES))
            expect(("comm", "=~", "$comm") in matchers, title, query)
            for label, operator, value in matchers:
                values = SAMPLES[name].get(label, set())
                expect(operator in ("=", "=~") and values, f"{title}: {name} has the label {label}", SAMPLES[name])
                expect(value == "$comm" or set(value.split("|")) <= values, f"{title}: {label} is {value}", values)
        shared = set.intersection(*(set(SAMPLES[name]) for name, _ in found))
        by = [label for labels in re.findall(r"by \(([^)]*)\)", query) for label in labels.split(", ")]
        expect(set(by) <= shared, f"{title}: groups by labels of its metrics", by, shared)
        legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        grouped = re.search(r"\b(sum|avg|max|count)\b", query)
        expect(grouped, f"{title}: it adds up over the reducers of a communicator", query)
        expect(legend <= set(by), f"{title}: the legend", legend)


def test_counters():
    """counters are shown as rates, gauges as they are"""
    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", TEXT, re.M))
    for title, target in QUERIES:
        for name, _ in selectors(target["expr"]):
            counter = types.get(name) == "counter" or re.search(r"_(sum|count)$", name) is not None
            rated = re.search(rf"(rate|increase)\({name}\{{", target["expr"]) is not None
            expect_equal(rated, counter, f"{title}: {name}", target["expr"])


def test_complete():
    """every metric of the library is in a panel, or listed here as left out"""
    shown = {name for _, target in QUERIES for name, _ in selectors(target["expr"])}
    families = {re.sub(r"_(sum|count)$", "", name) for name in SAMPLES}
    expect_equal(families - {re.sub(r"_(sum|count)$", "", name) for name in shown}, LEFT_OUT)
    summaries = {name for name, labels in SAMPLES.items() if "quantile" in labels}
    expect_equal(sorted(summaries), sorted(name for name in families if name.endswith("_seconds")))


cases.main(globals())
