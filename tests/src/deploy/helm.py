"""Asks Helm's engine: each line of standard input is a request as JSON, each line of standard output its answer."""

import json
import sys

import helm_python


def answer(request):
    if "lint" in request:
        return helm_python.lint(request["lint"], request["values"], strict=True, namespace="evictd")
    with helm_python.Chart.load(request["render"]) as chart:
        chart.validate_schema(request["values"])
        return chart.render(request["values"], name=request["release"], namespace=request["namespace"])


print("ready", flush=True)
for line in sys.stdin:
    try:
        said = {"answer": answer(json.loads(line))}
    except helm_python.HelmError as error:
        said = {"error": " ".join(str(error).split())}
    print(json.dumps(said), flush=True)
