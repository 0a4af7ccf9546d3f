#!/usr/bin/env bash
# Gathers what the app is made of where Google's and Maven's repositories cannot be reached.
#
#   ./tools.sh FOLDER
#
# From Debian's older release, through an apt configuration of its own, unpacked and never installed: android.jar of API
# 23 and dx. From the current one: Android 10's resources. From npm: ExecuTorch's classes and native library for Android,
# and from a React Native that still brought its own, the two libraries that ExecuTorch's wants. npm's are held against
# native.sha256 each time. What is in FOLDER already is not fetched again.
set -euo pipefail
mkdir -p "${1:?the folder to fill}"
tools=$(cd "$1" && pwd)
sums=$(cd "$(dirname "$0")" && pwd)/native.sha256
executorch=react-native-executorch@0.9.3
fbjni=react-native@0.70.15 # the last minor version with libfbjni.so in npm

has() { for file in "$@"; do [[ -s $tools/$file ]] || return 1; done; }

from_debian() {
    has android.jar dx.jar framework-res.apk && return
    local work
    work=$(mktemp -d)
    mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/files"
    local keys=/usr/share/keyrings/debian-archive-keyring.gpg mirror=http://deb.debian.org/debian
    printf 'deb [signed-by=%s] %s %s main\n' "$keys" "$mirror" bullseye "$keys" "$mirror" bookworm > "$work/sources.list"
    cat > "$work/apt.conf" <<APT
Dir::State::Lists "$work/lists";
Dir::Cache "$work";
Dir::Etc::SourceList "$work/sources.list";
Dir::Etc::SourceParts "-";
APT::Sandbox::User "root";
APT
    (
        cd "$work"
        export APT_CONFIG=$work/apt.conf
        timeout 120 apt-get update -qq
        timeout 180 apt-get download -qq libandroid-23-java dalvik-exchange android-framework-res
        for package in *.deb; do dpkg-deb -x "$package" files; done
        # android.jar holds Java's own classes too, which a compiler of today must not see.
        mkdir cut
        cd cut
        unzip -q ../files/usr/share/java/com.android.android-23.jar 'android/*' 'org/json/*' 'dalvik/*'
        zip -q -r ../android.jar .
    )
    cp "$work/android.jar" "$tools/android.jar"
    cp -L "$work/files/usr/share/java/com.android.dx.jar" "$tools/dx.jar"
    cp "$work/files/usr/share/android-framework-res/framework-res.apk" "$tools/"
    rm -rf "$work"
}

as_written_down() { (cd "$tools" && sha256sum --check --quiet "$sums" 2>/dev/null >&2); }

from_npm() {
    as_written_down && return
    local work abi package
    work=$(mktemp -d)
    (
        cd "$work"
        for package in "$executorch" "$fbjni"; do timeout 180 npm pack --silent "$package" >/dev/null; done
        tar -xzf react-native-executorch-*.tgz package/android/libs/classes.jar package/third-party/android/libs/executorch
        tar -xzf react-native-0*.tgz --wildcards --no-anchored 'react-native-*-release.aar'
        find package -name '*-release.aar' -exec unzip -q {} 'jni/*/libfbjni.so' 'jni/*/libc++_shared.so' ';'
    )
    for abi in arm64-v8a x86_64; do
        mkdir -p "$tools/lib/$abi"
        cp "$work/package/third-party/android/libs/executorch/$abi/libexecutorch.so" "$tools/lib/$abi/"
        cp "$work/jni/$abi/"lib{fbjni,c++_shared}.so "$tools/lib/$abi/"
    done
    cp "$work/package/android/libs/classes.jar" "$tools/executorch.jar"
    rm -rf "$work"
    as_written_down || { echo "npm's files are not those of $sums" >&2; return 1; }
}

from_debian
from_npm
