"""The Android app's manifest, resources and build files: what Android's lint would say, and what must stay so."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

DEMO = Path(__file__).parents[1] / "android_demo"
MAIN = DEMO / "app/src/main"
ANDROID = "{http://schemas.android.com/apk/res/android}"
PERMISSIONS = {"INTERNET", "ACCESS_NETWORK_STATE", "RECEIVE_BOOT_COMPLETED", "POST_NOTIFICATIONS"}
LOCAL = {"localhost", "127.0.0.1", "10.0.2.2", "local"}
ANYWHERE = r"java\.(io|lang|math|net|nio|security|text|util)\.|javax\.net\.|org\.json\.|dev\.spry\.core\."
BESIDE = dict.fromkeys(("Keys.java", "Lock.java", "Streams.java"), r"org\.bouncycastle\.crypto\.")
"""What the app brings: the library that signs, verifies and seals."""


def xml(path: Path) -> ET.Element:
    return ET.parse(path).getroot()


def code() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in (MAIN / "java").rglob("*.java"))


def resources() -> str:
    files = [MAIN / "AndroidManifest.xml", *(DEMO / "app/src").rglob("res/**/*.xml")]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


@pytest.fixture(scope="module")
def manifest() -> ET.Element:
    return xml(MAIN / "AndroidManifest.xml")


@pytest.fixture(scope="module")
def layout() -> list[ET.Element]:
    return list(xml(MAIN / "res/layout/main.xml").iter())


def test_the_manifest_asks_for_no_more_than_it_must(manifest):
    asked = {node.get(f"{ANDROID}name", "").rpartition(".")[2] for node in manifest.iter("uses-permission")}
    assert asked == PERMISSIONS
    application = manifest.find("application")
    assert application is not None
    assert application.get(f"{ANDROID}allowBackup") == "false"  # an identity and personal examples stay on the phone
    assert application.get(f"{ANDROID}networkSecurityConfig") == "@xml/network_security_config"
    assert application.get(f"{ANDROID}usesCleartextTraffic") is None
    for component in application:
        name = component.get(f"{ANDROID}name", "")
        assert component.get(f"{ANDROID}exported") in ("true", "false"), name
        assert (MAIN / "java" / Path(*name.split("."))).with_suffix(".java").exists(), name
        launched = component.find("intent-filter") is not None
        assert launched or component.get(f"{ANDROID}permission") == "android.permission.BIND_JOB_SERVICE", name


def test_cleartext_is_for_local_addresses_of_a_debug_build_alone():
    release, debug = (DEMO / "app/src" / kind / "res/xml/network_security_config.xml" for kind in ("main", "debug"))
    assert not re.search(r'cleartextTrafficPermitted="true"', release.read_text(encoding="utf-8"))
    base = xml(debug).find("base-config")
    assert base is not None
    assert base.get("cleartextTrafficPermitted") == "false"
    assert {node.text for node in xml(debug).iter("domain")} == LOCAL


def test_every_text_of_the_screen_is_a_resource_and_every_resource_is_used(layout):
    strings = {node.get("name"): node for node in xml(MAIN / "res/values/strings.xml")}
    used = set(re.findall(r"@string/(\w+)", resources())) | set(re.findall(r"R\.(?:string|plurals)\.(\w+)", code()))
    assert used == set(strings)
    for node in layout:
        for attribute in ("text", "hint", "contentDescription"):
            value = node.get(ANDROID + attribute)
            assert value is None or value.startswith("@string/"), (node.tag, value)


def test_the_screen_can_be_used_by_everybody(layout):
    """A name and a kind of keyboard for each field, room for a finger, and changes that are read out."""
    styles = {node.get("name"): node for node in xml(MAIN / "res/values/themes.xml")}
    heights = [item.text for item in styles["Field"] if item.get("name") == "android:minHeight"]
    assert heights == ["48dp"]
    labelled = {node.get(f"{ANDROID}labelFor") for node in layout}
    for node in layout:
        if node.tag == "EditText":
            assert node.get(f"{ANDROID}id") in labelled, node.attrib
            assert node.get(f"{ANDROID}inputType"), node.attrib
            assert node.get(f"{ANDROID}maxLength"), node.attrib
        if node.tag in ("EditText", "Button", "Switch"):
            assert node.get("style") in ("@style/Field", "@style/Choice"), node.attrib
    live = {node.get(f"{ANDROID}id") for node in layout if node.get(f"{ANDROID}accessibilityLiveRegion")}
    assert live == {"@+id/status", "@+id/problem", "@+id/answer"}


def test_what_the_code_finds_on_the_screen_is_there_once(layout):
    names = [value.removeprefix("@+id/") for node in layout if (value := node.get(f"{ANDROID}id"))]
    assert len(names) == len(set(names))
    assert set(re.findall(r"R\.id\.(\w+)", code())) == set(names)


def given(call: str) -> int:
    """Return how many values follow a message's name, up to the call's end."""
    depth = values = 0
    for character in call:
        depth += (character in "([") - (character in ")]")
        if depth < 0:
            break
        values += character == "," and depth == 0
    return values


def test_messages_get_the_values_that_they_name():
    """A text with two values needs two in the code, or the app ends when it shows it."""
    wanted = {
        node.get("name"): len(set(re.findall(r"%(\d)\$", node.text or "")))
        for node in xml(MAIN / "res/values/strings.xml").iter("string")
    }
    calls = list(re.finditer(r"getString\(\s*R\.string\.(\w+)", code()))
    assert len(calls) > 20
    for call in calls:
        assert given(code()[call.end() :]) == wanted[call[1]], call[1]


def test_the_library_needs_what_android_has():
    for path in (DEMO / "core/src/main/java").rglob("*.java"):
        for imported in re.findall(r"^import (?:static )?([\w.]+);", path.read_text(encoding="utf-8"), re.MULTILINE):
            known = f"{ANYWHERE}|{BESIDE[path.name]}" if path.name in BESIDE else ANYWHERE
            assert re.match(known, imported), f"{path.name}: {imported}"


def test_gradle_and_the_script_that_stands_in_for_it_agree():
    tables: dict[str, list[str]] = {}
    for line in (DEMO / "gradle/libs.versions.toml").read_text(encoding="utf-8").splitlines():
        if found := re.match(r"\[(\w+)\]", line):
            tables[found[1]] = []
        elif line:
            tables[list(tables)[-1]].append(line)
    known = {table: {line.partition(" = ")[0] for line in lines} for table, lines in tables.items()}
    files = "\n".join(path.read_text(encoding="utf-8") for path in DEMO.rglob("*.gradle.kts"))
    used = {name.replace(".", "-") for name in re.findall(r"libs\.([\w.]+)", files)}
    assert used == known["libraries"] | {f"plugins-{name}" for name in known["plugins"]}
    named = re.findall(r'version\.ref = "([\w-]+)"', "\n".join(tables["libraries"] + tables["plugins"]))
    assert set(named) == known["versions"]
    app = (DEMO / "app/build.gradle.kts").read_text(encoding="utf-8")
    for setting in ("minSdk", "targetSdk", "versionCode", "versionName"):
        assert len(re.findall(rf"^ *{setting} = ", app, re.MULTILINE)) == 1, setting
