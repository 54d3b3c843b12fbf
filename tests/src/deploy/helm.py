"""Asks Helm's engine: one request as JSON on standard input, one answer as JSON on standard output."""

import json
import sys

import helm_python

request = json.load(sys.stdin)
try:
    if "lint" in request:
        answer = helm_python.lint(request["lint"], request["values"], strict=True, namespace="evictd")
    else:
        with helm_python.Chart.load(request["render"]) as chart:
            chart.validate_schema(request["values"])
            answer = chart.render(
                request["values"], name=request["release"], namespace=request["namespace"]
            )
except helm_python.HelmError as error:
    sys.exit(" ".join(str(error).split()))
json.dump(answer, sys.stdout)
