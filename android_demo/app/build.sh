#!/usr/bin/env bash
# Compiles, packages and signs the app without Android's own tools, to hold it against Android's classes on every change:
# against android.jar of API 23 and what `newer/` adds to it, with resources of API 29, by javac, dx and aapt2.
#
#   ./build.sh TOOLS      TOOLS: what ../tools.sh has gathered; needs ../core/build/library
#
# The APK lacks ExecuTorch, whose classes are too new for dx and whose native library wants others that npm has not: it is
# compiled, not runnable, and says so when it is asked to train. The APK to use comes from Gradle (../README.md).
set -euo pipefail
cd "$(dirname "$0")"
tools=$(cd "${1:?the folder of tools}" && pwd)
out=build/apk
rm -rf "$out"
mkdir -p "$out/newer" "$out/generated" "$out/classes" "$out/resources"

version=$(sed -n 's/^ *versionName = "\(.*\)".*/\1/p' build.gradle.kts)
code=$(sed -n 's/^ *versionCode = \(.*\)/\1/p' build.gradle.kts)
least=$(sed -n 's/^ *minSdk = \(.*\)/\1/p' build.gradle.kts)
target=$(sed -n 's/^ *targetSdk = \(.*\)/\1/p' build.gradle.kts)

aapt2 compile --dir src/main/res -o "$out/resources/main.zip"
aapt2 compile --dir src/debug/res -o "$out/resources/debug.zip"
# Gradle's namespace is what aapt2 calls the package.
sed 's/^<manifest /<manifest package="dev.spry.app" /' src/main/AndroidManifest.xml > "$out/AndroidManifest.xml"
aapt2 link -I "$tools/framework-res.apk" --manifest "$out/AndroidManifest.xml" --java "$out/generated" --debug-mode \
    --min-sdk-version "$least" --target-sdk-version "$target" --version-name "$version" --version-code "$code" \
    -o "$out/unaligned.apk" "$out/resources/main.zip" -R "$out/resources/debug.zip" --auto-add-overlay

find newer -name '*.java' > "$out/newer.list"
find src/main/java "$out/generated" -name '*.java' > "$out/main.list"
compile=(javac -encoding UTF-8 "-Xlint:all,-options,-deprecation" -Werror --release 8)
"${compile[@]}" -cp "$tools/android.jar" -d "$out/newer" "@$out/newer.list"
"${compile[@]}" -cp "$out/newer:$tools/android.jar:$tools/executorch.jar:../core/build/library" -d "$out/classes" \
    "@$out/main.list"

java -Xmx768m -cp "$tools/dx.jar" com.android.dx.command.Main --dex --min-sdk-version="$least" \
    --output="$out/classes.dex" "$out/classes" ../core/build/library
(cd "$out" && zip -q -X unaligned.apk classes.dex)
zipalign -f 4 "$out/unaligned.apk" "$out/app.apk"

# Android's debug key, made where it is not there: no secret, and no key to publish with.
key=$out/debug.keystore
keytool -genkeypair -keystore "$key" -storepass android -keypass android -alias androiddebugkey -keyalg RSA \
    -validity 10000 -dname "CN=Android Debug,O=Android,C=US" 2>/dev/null
apksigner sign --ks "$key" --ks-pass pass:android --min-sdk-version "$least" --out "$out/spry-debug.apk" "$out/app.apk"
rm -f "$out/unaligned.apk" "$out/app.apk" "$out/AndroidManifest.xml" "$out/newer.list" "$out/main.list"
echo "$PWD/$out/spry-debug.apk"
