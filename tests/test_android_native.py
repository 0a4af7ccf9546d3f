"""ExecuTorch in the Android app's APK: that classes, native libraries and the exporter's programs fit each other.

android_demo/verify.sh makes the APK. No version is written into the native library, so whether it is in step with the
exporter is known by what it must have: the formats' marks, and each backend and operator of programs exported now.
"""

import os
import platform
import re
import shutil
import struct
import subprocess
import warnings
import zipfile
from pathlib import Path

import pytest

from tests import android
from tests.benchmarks import script
from tests.bionic import loadable
from tests.elf import Library
from tests.test_android import MIXED, MODES, Desk, assert_same, ended, moved

DEMO = Path(__file__).parents[1] / "android_demo"
TOOLS = Path(os.environ.get("SPRY_ANDROID_TOOLS", DEMO / "build/tools"))
APK = DEMO / "app/build/apk/spry-debug.apk"
ABIS = {"arm64-v8a": 183, "x86_64": 62}
"""With the number by which ELF calls the machine."""
PAGE = 16384
INT8 = {"runtimes": ("executorch",), "precision": "int8"}
OF_ANDROID = {"libc.so", "libm.so", "libdl.so", "liblog.so", "libandroid.so"}
LEFT_OUT = "org/pytorch/executorch/extension/asr/"
ENTRY = re.compile(r"_ZN8facebook3jni6detail\d+(?:MethodWrapper|FunctionWrapperWithJniEntryPoint)I.*4callEP7_JNIEnv")
"""A function of C++ as Java calls it. fbjni hands them over by name when the library is loaded."""
PARTS = {
    "org.pytorch.executorch.Module": "ExecuTorchJni",
    "org.pytorch.executorch.ExecuTorchRuntime": "AndroidRuntimeJni",
    "org.pytorch.executorch.extension.llm.LlmModule": "ExecuTorchLlmJni",
    "org.pytorch.executorch.training.SGD": "SGDHybrid",
    "org.pytorch.executorch.training.TrainingModule": "ExecuTorchTrainingJni",
}
"""Java's classes with native methods, and C++'s that have them."""


@pytest.fixture(scope="module")
def apk() -> zipfile.ZipFile:
    if not APK.exists():
        pytest.skip("no APK here: android_demo/verify.sh makes it")
    with zipfile.ZipFile(APK) as opened:
        yield opened


@pytest.fixture(scope="module")
def libraries(apk) -> dict[str, dict[str, Library]]:
    names = [name.split("/") for name in apk.namelist() if name.startswith("lib/")]
    return {
        abi: {file: Library(apk.read(f"lib/{abi}/{file}")) for _, found, file in names if found == abi} for abi in ABIS
    }


@pytest.fixture(scope="module")
def natives(apk) -> dict[str, set[str]]:
    """The native methods of ExecuTorch's classes that are in the APK, by class, as declared."""
    if shutil.which("javap") is None:
        pytest.skip("needs a JDK: apt install openjdk-17-jdk-headless")
    jar = TOOLS / "executorch.jar"
    with zipfile.ZipFile(jar) as opened:
        names = [name for name in opened.namelist() if name.endswith(".class") and not name.startswith(LEFT_OUT)]
    classes = [name.removesuffix(".class").replace("/", ".") for name in names]
    told = subprocess.run(["javap", "-p", "-cp", jar, *classes], capture_output=True, text=True, check=True).stdout
    found: dict[str, set[str]] = {}
    owner = ""
    for line in told.splitlines():
        if declared := re.search(r"\b(?:class|interface) ([\w.$]+)", line):
            owner = declared[1]
        elif " native " in line:
            found.setdefault(owner, set()).add(line.strip())
    return found


def called(declaration: str) -> str:
    """A declaration's method."""
    return re.search(r"([\w$]+)\(", declaration)[1]


def test_the_apk_brings_the_libraries_of_both_machines(libraries):
    for abi, machine in ABIS.items():
        assert set(libraries[abi]) == {"libexecutorch.so", "libfbjni.so", "libc++_shared.so"}
        assert {library.machine for library in libraries[abi].values()} == {machine}
        assert b"XnnpackBackend" in b"".join(libraries[abi]["libexecutorch.so"].texts)


def test_libraries_lie_as_android_maps_them(apk):
    """Not compressed, and at a page's begin: android:extractNativeLibs is false in the manifest."""
    entries = [entry for entry in apk.infolist() if entry.filename.startswith("lib/")]
    assert entries
    for entry in entries:
        apk.fp.seek(entry.header_offset)
        name, extra = struct.unpack("<26x2H", apk.fp.read(30))
        assert entry.compress_type == zipfile.ZIP_STORED
        assert (entry.header_offset + 30 + name + extra) % PAGE == 0, entry.filename


def test_executorch_can_be_mapped_on_pages_of_16_kb_and_what_cannot_is_known(libraries):
    for found in libraries.values():
        small = {name for name, library in found.items() if library.alignment < PAGE}
        assert small == {"libfbjni.so", "libc++_shared.so"}  # android_demo/README.md says so


def test_nothing_that_a_library_wants_is_missing(libraries):
    for found in libraries.values():
        offered = set().union(*(library.offered for library in found.values()))
        for name, library in found.items():
            assert set(library.needed) <= set(found) | OF_ANDROID
            wanted = {s.name for s in library.symbols if s.name and not (s.defined or s.weak or s.versioned)}
            assert {w for w in wanted - offered if not w.startswith("__android_log_")} == set(), name


def test_every_native_method_is_in_both_libraries(libraries, natives):
    assert set(natives) == set(PARTS)
    for abi in ABIS:
        library = libraries[abi]["libexecutorch.so"]
        assert "JNI_OnLoad" in library.offered
        entries = {name for name in library.offered if ENTRY.match(name)}
        for java, declarations in natives.items():
            missing = {called(one) for one in declarations if called(one).encode() not in library.texts}
            assert missing == set(), (abi, java)
            part = PARTS[java]
            own = {name for name in entries if f"{len(part)}{part}" in name}
            assert len(own) == len(declarations), (abi, java)  # one too many, and loading would fail


def test_what_stands_in_for_fbjni_has_what_the_library_looks_up(libraries):
    sources = {path.stem: path.read_text(encoding="utf-8") for path in (DEMO / "app/jni/com/facebook/jni").iterdir()}
    for found in libraries.values():
        texts = found["libfbjni.so"].texts
        named = {match[1].decode() for text in texts if (match := re.match(rb"L?com/facebook/jni/(\w+)", text))}
        assert named - {"IteratorHelper", "MapIteratorHelper"} <= set(sources)
        natives = {called(line) for code in sources.values() for line in re.findall(r"\bnative \w+ \w+\(", code)}
        assert {name.encode() for name in natives | {"mNativePointer", "mDestructor", "mHybridData"}} <= texts


# --- in step with the exporter ---


def test_the_library_has_what_programs_exported_now_ask_for(libraries, exported_once):
    with warnings.catch_warnings():  # the library's, about its own code
        warnings.simplefilter("ignore")
        from executorch.exir._serialize._program import deserialize_pte_binary
    files = list(exported_once("executorch-int8", **INT8).rglob("*.pte"))
    assert files
    for file in files:
        content = file.read_bytes()
        read = deserialize_pte_binary(content)
        wanted = {content[4:8]}
        for plan in read.program.execution_plan:
            wanted |= {delegate.id.encode() for delegate in plan.delegates}
            wanted |= {f"{op.name}.{op.overload}".rstrip(".").encode() for op in plan.operators}
        for abi, found in libraries.items():
            assert {one for one in wanted if not has(found["libexecutorch.so"], one)} == set(), (abi, file.name)


def has(library: Library, text: bytes) -> bool:
    return text in library.texts or any(one.endswith(text) for one in library.texts)


class Phone(Desk):
    """A desk with a client that runs programs as the app does: its class, ExecuTorch's, and the library for x86-64."""

    def __init__(self, folder: Path, bundle: Path, classes: str) -> None:
        built = APK.parent
        super().__init__(folder, bundle, os.pathsep.join(map(str, (classes, built / "classes", built / "executorch"))))
        self.libraries = loadable(TOOLS / "lib/x86_64", folder / "lib")

    def phone(self, name: str, *options: str):
        folder = self.home("phone", name)
        command = [*self.java(folder), "--data", str(self.data), "--token", self.token, "--job", name, "--holdout", "0",
                   "--engine", "dev.spry.app.ExecuTorch", *options]  # fmt: skip
        found = {"LD_LIBRARY_PATH": str(self.libraries), "JAVA_TOOL_OPTIONS": f"-Djava.library.path={self.libraries}"}
        process = script("fleet").Process(command, folder / "client.log", **android.environment() | found)
        process.folder = folder
        return self.kept(process)


@pytest.fixture(scope="module", params=["none", "int8"])
def phone(apk, classes, exported_once, tmp_path_factory, request):
    if platform.machine() != "x86_64":
        pytest.skip("needs an x86-64 machine to run the library for x86-64")
    bundle = exported_once(f"executorch-{request.param}", runtimes=("executorch",), precision=request.param)
    made = Phone(tmp_path_factory.mktemp("phone"), bundle, classes)
    made.apart = {"none": 1e-5, "int8": 2e-2}[request.param]  # versions of XNNPACK round inputs of products otherwise
    yield made
    made.close()


@pytest.mark.parametrize(("mode", "settings"), [*MODES.items(), ("mixed", MIXED)])
def test_the_apps_runner_and_androids_library_send_what_the_exporters_runtime_sends(phone, mode, settings):
    plain = {"units": {"kind": "fedavg"}, "head": {"kind": "fedavg"}}
    twins = [phone.job(f"{mode}-{kind}", optimizers=plain, **settings) for kind in ("phone", "python")]
    start = phone.adapter(twins[0])
    for process in (
        phone.phone(twins[0], "--rounds", "2"),
        phone.python(twins[1], "--rounds", "2", "--runtime", "executorch"),
    ):
        ended(process)
    ours, theirs = (phone.adapter(name) for name in twins)
    assert moved(theirs, start) > 0.1
    assert_same(ours, theirs, apart=phone.apart)


@pytest.mark.parametrize("phone", ["none"], indirect=True)
def test_a_library_that_takes_one_products_packed_weights_for_anothers_is_refused(
    phone, exporting, tmp_path, monkeypatch
):
    """A classifier's last block as it was exported before `products._no_bias`: nothing but the gradients was wrong."""
    from export.lower.executorch.graph import EdgeGraph

    call = EdgeGraph.call

    def without_none(edge, target, *arguments, **options):
        return call(edge, target, *(one for one in arguments if one is not None), **options)

    monkeypatch.setattr("export.lower.executorch.products._no_bias", lambda edge, rows: None)
    monkeypatch.setattr(EdgeGraph, "call", without_none)
    bundle = exporting(tmp_path / "bundle", runtimes=("executorch",), cache=tmp_path / "lowered")
    name = phone.job("without-a-bias", bundle, **MODES["epoch"])
    refused = phone.phone(name, "--rounds", "1")
    ended(refused, 2)
    told = (refused.folder / "client.log").read_text()
    assert "the runtime executorch gives wrong results here: " in told
    assert " of block.1.vjp [2x8] is off by " in told
