#!/usr/bin/env bash
# Compiles, packages and signs the app without Android's own tools, to hold it against Android's classes on every change:
# against android.jar of API 23 and what `newer/` adds to it, with resources of API 29, by javac, dx and aapt2.
#
#   ./build.sh TOOLS      TOOLS: what ../tools.sh has gathered; needs ../core/build/library
#
# ExecuTorch is in the APK: its native library for arm64-v8a and x86_64 with the two that it wants, and its classes, made
# readable for dx (`pack/ForDx.java`). `jni/` stands in for the few classes of fbjni and SoLoader that they call, which no
# package within reach has. ExecuTorch's speech model is left out: it wants Kotlin. Nobody has run this APK yet; the one
# to use comes from Gradle (../README.md).
set -euo pipefail
tools=$(cd "${1:?the folder of tools}" && pwd)
cd "$(dirname "$0")"
out=build/apk
rm -rf "$out"
mkdir -p "$out/newer" "$out/generated" "$out/classes" "$out/executorch" "$out/resources"

version=$(sed -n 's/^ *versionName = "\(.*\)".*/\1/p' build.gradle.kts)
code=$(sed -n 's/^ *versionCode = \(.*\)/\1/p' build.gradle.kts)
least=$(sed -n 's/^ *minSdk = \(.*\)/\1/p' build.gradle.kts)
target=$(sed -n 's/^ *targetSdk = \(.*\)/\1/p' build.gradle.kts)

aapt2 compile --dir src/main/res -o "$out/resources/main.zip"
aapt2 compile --dir src/debug/res -o "$out/resources/debug.zip"
# Gradle's namespace is what aapt2 calls the package; and as Gradle does, libraries are mapped where they lie in the APK.
sed -e 's/^<manifest /<manifest package="dev.spry.app" /' -e 's/<application$/& android:extractNativeLibs="false"/' \
    src/main/AndroidManifest.xml > "$out/AndroidManifest.xml"
aapt2 link -I "$tools/framework-res.apk" --manifest "$out/AndroidManifest.xml" --java "$out/generated" --debug-mode \
    --min-sdk-version "$least" --target-sdk-version "$target" --version-name "$version" --version-code "$code" \
    -o "$out/unaligned.apk" "$out/resources/main.zip" -R "$out/resources/debug.zip" --auto-add-overlay

find newer -name '*.java' > "$out/newer.list"
find src/main/java "$out/generated" -name '*.java' > "$out/main.list"
compile=(javac -encoding UTF-8 "-Xlint:all,-options,-deprecation" -Werror --release 8)
"${compile[@]}" -cp "$tools/android.jar" -d "$out/newer" "@$out/newer.list"
"${compile[@]}" -cp "$out/newer:$tools/android.jar:$tools/executorch.jar:../core/build/library" -d "$out/classes" \
    "@$out/main.list"

find jni -name '*.java' > "$out/jni.list"
"${compile[@]}" -cp "$tools/android.jar" -d "$out/executorch" "@$out/jni.list"
java pack/ForDx.java "$tools/executorch.jar" "$out/executorch" org/pytorch/executorch/extension/asr/
# Of Bouncy Castle, what verifying calls: all of it has more methods than an APK's one file of classes can name.
crypto=${SPRY_JARS:-/usr/share/java}/bcprov.jar
jdeps --multi-release base -R -verbose:class -cp "$crypto" ../core/build/library \
    | sed -n 's|.*-> \(org\.bouncycastle\.[^ ]*\).*|\1|p' | sort -u | sed 's|\.|/|g; s|$|.class|' > "$out/crypto.list"
mkdir "$out/crypto"
(cd "$out/crypto" && xargs -a ../crypto.list unzip -q "$crypto")
java -Xmx768m -cp "$tools/dx.jar" com.android.dx.command.Main --dex --min-sdk-version="$least" \
    --output="$out/classes.dex" "$out/classes" "$out/executorch" "$out/crypto" ../core/build/library
(cd "$out" && zip -q -X unaligned.apk classes.dex)
java pack/Pack.java "$out/unaligned.apk" "$out/app.apk" "$tools"

# Android's debug key, made where it is not there: no secret, and no key to publish with.
key=$out/debug.keystore
keytool -genkeypair -keystore "$key" -storepass android -keypass android -alias androiddebugkey -keyalg RSA \
    -validity 10000 -dname "CN=Android Debug,O=Android,C=US" 2>/dev/null
apksigner sign --ks "$key" --ks-pass pass:android --min-sdk-version "$least" --out "$out/spry-debug.apk" "$out/app.apk"
rm -f "$out/unaligned.apk" "$out/app.apk" "$out/AndroidManifest.xml" "$out"/*.list
echo "$PWD/$out/spry-debug.apk"
