#!/usr/bin/env bash
# What the reports are looked at with: a browser, and Prometheus' promtool (only the program: no service is installed). Without root or
# without a mirror the tests that need them are left out and say so. usage: report_tools.sh
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
tools=$root/build/tools
[ "$(id -u)" -eq 0 ] || exit 0
log=$(mktemp)
trap 'rm -rf "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
missing() {
  echo "report tools: $1 could not be had, so its tests are left out:" >&2
  tail -n 3 "$log" >&2
}
if ! command -v chromium >/dev/null; then
  echo "report tools: installing chromium"
  { apt-get update -q && apt-get install -y -q --no-install-recommends chromium; } >"$log" 2>&1 || missing chromium
fi
if ! command -v promtool >/dev/null && [ ! -x "$tools/usr/bin/promtool" ]; then
  echo "report tools: unpacking promtool"
  scratch=$(mktemp -d)
  {
    chmod 0755 "$scratch" && cd "$scratch" && { apt-get download -q prometheus || { apt-get update -q && apt-get download -q prometheus; }; } &&
      mkdir -p "$tools" && dpkg-deb -x prometheus_*.deb "$scratch/unpacked" && mkdir -p "$tools/usr/bin" &&
      install -m 0755 "$scratch/unpacked/usr/bin/promtool" "$tools/usr/bin/promtool"
  } >"$log" 2>&1 || missing promtool
  rm -rf "$scratch"
fi
exit 0
