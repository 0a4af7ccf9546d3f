#!/usr/bin/env bash
# Verifies what can be verified of the Android client without a phone: the library's tests on a JVM, the app compiled,
# packaged and signed, and the JVM client in rounds of the real server.
#
#   ./verify.sh                    everything
#   ./verify.sh --without-python   leaves out what pytest runs, where it is run anyway
#
# What it needs it installs from Debian, if it may; what the app is made of it fetches from Debian and npm into
# $SPRY_ANDROID_TOOLS (build/tools). What cannot be had is left out and named; exit code 1 means that something failed.
set -uo pipefail
cd "$(dirname "$0")" || exit
tools=${SPRY_ANDROID_TOOLS:-$PWD/build/tools}
python=1
case ${1-} in
    "") ;;
    --without-python) python=0 ;;
    *) echo "usage: $0 [--without-python]" >&2; exit 2 ;;
esac
failed=0

say() { printf '\n== %s\n' "$*"; }
left_out() { echo "left out: $*"; }

# Runs a step; says how long it took, or that it failed.
step() {
    local what=$1 start=$SECONDS
    shift
    say "$what"
    if "$@"; then
        echo "done: $what ($((SECONDS - start)) s)"
    else
        echo "FAILED: $what" >&2
        failed=1
        return 1
    fi
}

has_java() {
    command -v javac >/dev/null && [[ -e /usr/share/java/com.android.json.jar ]] && [[ -e /usr/share/java/bcprov.jar ]] \
        && [[ -e /usr/share/java/junit-platform-console-standalone.jar ]]
}

has_packagers() {
    for command in aapt2 zipalign apksigner keytool zip unzip npm apt-get; do
        command -v "$command" >/dev/null || return 1
    done
}

library() {
    local log
    log=$(mktemp)
    if core/build.sh > "$log" 2>&1; then
        grep -E '^\[ .*tests (successful|skipped)' "$log"
    else
        tail -n 120 "$log"
        rm -f "$log"
        return 1
    fi
    rm -f "$log"
}

app() {
    local apk
    apk=$(app/build.sh "$tools") || return 1
    apksigner verify --min-sdk-version 26 "$apk" || return 1
    aapt2 dump badging "$apk" | grep -E '^(package|sdkVersion|targetSdkVersion|launchable-activity)' || return 1
    zipalign -c -p 4 "$apk" || return 1
    echo "compiled and signed, with ExecuTorch in it; never run on a phone: $apk ($(du -m "$apk" | cut -f1) MB)"
}

with_pytest() {
    (cd .. && python -m pytest -q -n 0 -p no:cacheprovider tests/test_android*.py)
}

say "packages"
../tests/packages.sh --app || echo "going on with what is there"
if ! has_java; then
    left_out "everything: it needs a JDK, libandroid-json-java, libbcprov-java and junit5"
    exit 0
fi
step "core: compiled for Java 8, JUnit" library
if ! has_packagers; then
    left_out "the app: it needs aapt, zipalign, apksigner, zip, unzip, npm and apt-get"
elif [[ ! -d core/build/library ]]; then
    left_out "the app: the library does not compile"
elif ! ./tools.sh "$tools"; then
    left_out "the app: Debian's mirror or npm's registry gave no answer"
else
    step "app: compiled against Android's classes, packaged, signed" app
fi
if (( ! python )); then
    left_out "pytest, as asked"
elif ! python -c 'import edge_client, server, pytest' 2>/dev/null; then
    left_out "rounds with the real server: the server is not installed here (make test installs it)"
else
    step "rounds of the real server, tokenizers, resources: pytest tests/test_android*.py" with_pytest
fi
exit "$failed"
