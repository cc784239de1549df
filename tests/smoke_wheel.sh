#!/usr/bin/env bash
# Builds sdist and wheel, installs the wheel into a fresh venv without development packages, and uses it from
# another folder. Usage: tests/smoke_wheel.sh PYTHON (an interpreter that has `build`)
set -euo pipefail
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset PYTHONPATH

"$python" -m build --outdir "$work/dist" "$root" >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
"$python" - "$work"/dist/*.whl <<'PY'
import sys, zipfile
names = zipfile.ZipFile(sys.argv[1]).namelist()
stray = [n for n in names if not n.startswith(("kvtune/", "kvtune-")) or n.startswith(("kvtune/tests", "kvtune/benchmarks"))]
missing = [n for n in ("kvtune/py.typed", "kvtune/__main__.py", "kvtune/cli/schemas/report-1.json") if n not in names]
sys.exit(f"wheel: stray {stray[:5]}, missing {missing}" if stray or missing else 0)
PY

"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip --disable-pip-version-check -qq install -c "$root/constraints.txt" "$work"/dist/*.whl
cp "$root"/samples/airline.jsonl.gz "$root"/samples/kvtune.toml "$work"
cp -r "$root/samples/tiny-hybrid" "$work"
cd "$work"
kvtune=venv/bin/kvtune
"$kvtune" --version
"$kvtune" resolve --groups 1024,32 --units 32,16,8,48 --json resolve.json >/dev/null
"$kvtune" analyze airline.jsonl.gz --json report.json >/dev/null
"$kvtune" report report.json | head -n 8
echo "wheel: works without development packages"
