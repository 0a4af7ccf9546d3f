#!/usr/bin/env bash
# Installs from Debian what some tests use of the system, and tells it; does nothing where it is there.
#
#   tests/packages.sh            what pytest uses
#   tests/packages.sh --app      also what compiles the Android app
#
# Ends with 1 where something cannot be had; then the tests that need it skip.
set -euo pipefail

missing=()
# Whether a file or a command is there; else the packages that bring it are missing.
need() {
    local wanted=$1
    shift
    [[ -e $wanted ]] || command -v "$wanted" >/dev/null || missing+=("$@")
}

need chromium chromium fonts-dejavu-core
need systemd-analyze systemd
need openssl openssl
need gcc gcc libc6-dev
need qemu-aarch64-static qemu-user-static
need ip iproute2
need javac openjdk-17-jdk-headless
need /usr/share/java/com.android.json.jar libandroid-json-java
need /usr/share/java/bcprov.jar libbcprov-java
need /usr/share/java/junit-platform-console-standalone.jar junit5
if [[ ${1-} == --app ]]; then
    need aapt2 aapt
    for command in zipalign apksigner zip unzip npm; do
        need "$command" "$command"
    done
fi
(( ${#missing[@]} )) || exit 0
if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
    echo "missing: ${missing[*]} (apt-get install them as root)" >&2
    exit 1
fi
echo "Installing from Debian: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
timeout 120 apt-get update -qq >/dev/null
timeout 300 apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
