#!/usr/bin/env bash
# Builds the core with sanitizers in a folder of its own and runs its tests on it. Takes some
# minutes, so scripts/test does not call it.
#
#   native/tests/sanitize.sh                               addresses and undefined behaviour
#   SANITIZERS=thread native/tests/sanitize.sh             races between threads
#   native/tests/sanitize.sh native/tests/test_bits.py     arguments go to pytest
#
# The folder is kept: a second run compiles only what has changed.
set -euo pipefail
cd "$(dirname "$0")/../.."
sanitizers="${SANITIZERS:-address,undefined}"
python="$PWD/.venv/bin/python"
[ -z "${VIRTUAL_ENV:-}" ] || python="$VIRTUAL_ENV/bin/python"
folder="$PWD/build/sanitized-${sanitizers%%,*}"

cmake -S native -B "$folder/build" "-DPILOTFISH_SANITIZE=$sanitizers" \
  -DPython_EXECUTABLE="$python" -Dnanobind_DIR="$("$python" -m nanobind --cmake_dir)" >/dev/null
cmake --build "$folder/build" --parallel "${JOBS:-2}"
mkdir -p "$folder/package/pilotfish_native"
cp native/src/pilotfish_native/*.py "$folder"/build/_core*.so "$folder/package/pilotfish_native/"

case "$sanitizers" in
  thread*) runtime=libtsan.so ;;
  *) runtime=libasan.so ;;
esac
# The interpreter was built without: it must have the sanitizer first, and the C++ library whose
# exceptions the sanitizer watches. What it keeps until its end is no leak of ours.
export LD_PRELOAD="$(c++ -print-file-name=$runtime) $(c++ -print-file-name=libstdc++.so.6)"
export ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS=halt_on_error=1:die_after_fork=0
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export PYTHONPATH="$folder/package"
[ $# -gt 0 ] || set -- native/tests
# freed memory is held back to catch its use, so how much a process holds says nothing here
exec "$python" -m pytest -q -s -p no:cacheprovider -m "not models" -k "not memory" "$@"
