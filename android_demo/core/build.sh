#!/bin/sh
# Compiles the library with its tests, and runs those that need nothing but the JVM.
#
#   ./build.sh                                                     all tests
#   ./build.sh --select-class dev.spry.core.numbers.PhiloxTest      what JUnit's console is told
#   ./build.sh --compile                                           none
#
# Debian: openjdk-17-jdk-headless libandroid-json-java libbcprov-java junit5. Classes go to build/, or where SPRY_BUILD says.
set -eu
cd "$(dirname "$0")"

jars=${SPRY_JARS:-/usr/share/java}
json=$jars/com.android.json.jar
crypto=$jars/bcprov.jar
junit=$jars/junit-platform-console-standalone.jar
for needed in "$json" "$crypto" "$junit"; do
    if [ ! -e "$needed" ]; then
        echo "$needed is missing: apt install libandroid-json-java libbcprov-java junit5, or name its folder in SPRY_JARS" >&2
        exit 2
    fi
done

# Beside what is there, then in its place: another build may run those classes.
build=${SPRY_BUILD:-build}
mkdir -p "$build"
classes=$(mktemp -d "$build/.classes-XXXXXX")
trap 'rm -rf "$classes"' EXIT
find src/main/java -name '*.java' > "$classes/main"
find src/test/java -name '*.java' > "$classes/test"
javac -encoding UTF-8 -Xlint:all,-options,-path,-try -Werror --release 8 -cp "$json:$crypto" -d "$classes/library" \
    "@$classes/main"
javac -encoding UTF-8 -Xlint:all,-options,-path,-try -Werror --release 8 -cp "$classes/library:$json:$crypto:$junit" \
    -d "$classes/tests" "@$classes/test"
rm -rf "$build/library" "$build/tests"
mv "$classes/library" "$classes/tests" "$build/"

[ "${1-}" = --compile ] && exit 0
[ $# -gt 0 ] || set -- --scan-classpath "$build/tests"
exec java -jar "$junit" --class-path "$build/library:$build/tests:$json:$crypto" --disable-banner --details tree "$@"
