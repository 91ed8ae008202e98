#!/usr/bin/env bash
# Installs the Debian packages that the laptop's half, the staging box and the CPU engine (libnuma1: its extension links it) need,
# if any is missing. Needs root for that.
set -euo pipefail
needed=(python3-venv openssh-client openssh-server rsync lxc mmdebstrap nftables iproute2 systemd libnuma1)
missing=()
for package in "${needed[@]}"; do
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" -ne 0 ]; then
  echo "packages: missing ${missing[*]}; install them as root: apt-get install --no-install-recommends ${missing[*]}" >&2
  exit 0 # parts that need one of them say so themselves
fi
echo "packages: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
{ apt-get update -q && apt-get install -y -q --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 || {
  tail -n 15 "$log" >&2
  echo "packages: apt-get failed; mend its sources and run this again" >&2
  exit 1
}
rm -f "$log"
