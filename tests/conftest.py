"""Share fixtures among packages: settings, a tiny model with a tokenizer, bundles made from it, and a task."""

import fcntl
import gc
import os
import signal
import string
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings

from edge_client.wire.protocol import ServerOptimizers, Task, Training
from export.cli import default_cache
from tests import android, warm
from tests.order import dealt, is_quick

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports the hub's client: no test needs the network
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run in parallel processes already
# Commands set it for the processes that they start: said later, those could not be forks (`tests.warm`).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Images often keep Python from writing bytecode: each command that a test starts would compile its libraries anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

if threading.current_thread() is threading.main_thread():
    # A job in a shell's background ignores Ctrl-C and passes that on to the commands that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("spry", deadline=None)  # a busy machine is no failure
settings.load_profile("spry")

VOCABULARY = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "ice", "on", "lake", "is", "it", "train",
    *string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase), *".,?!'",
]  # fmt: skip
LABELS = ("no", "maybe", "yes")


def pytest_addoption(parser):
    parser.addoption(
        "--every-combination",
        action="store_true",
        help="every architecture with every task and every PEFT method, in place of a method in turn",
    )


def pytest_configure(config):
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        os.environ[warm.SHARED] = warm.python()


def pytest_collection_modifyitems(items):
    items[:] = dealt(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    for item in items:
        if is_quick(item):
            item.add_marker(pytest.mark.quick)


class _Kept:
    """Keep objects of imports and fixtures out of the garbage collection of clients that tidy up.

    They collect garbage each time they have nothing to do. With torch and transformers beside them, which no device
    has, to look at all that is there takes longer than most of what is tested.
    """

    MODULES = 20
    """So many new ones are worth another look."""
    OBJECTS = 40_000
    """So are these, after the tests of a file."""

    def __init__(self) -> None:
        self._modules = 0
        self._file = Path()

    def look(self, file: Path) -> None:
        grown = len(sys.modules) >= self._modules + self.MODULES
        changed, self._file = file != self._file, file
        if grown or (changed and len(gc.get_objects()) > self.OBJECTS):
            self._modules = len(sys.modules)
            gc.collect()
            gc.freeze()


_kept = _Kept()


def pytest_collection_finish():
    _kept.look(Path())


def pytest_runtest_setup(item):
    _kept.look(item.path)


@pytest.fixture(scope="session", autouse=True)
def _no_cache_of_the_user(shared_folder):
    """One of all tests: what is lowered once serves all that do not watch the cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(shared_folder / "cache"))
        yield


def tokenizer():
    """A WordPiece tokenizer that knows a few words and all letters."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ids = {piece: number for number, piece in enumerate(VOCABULARY)}
    backend = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> Path:
    """A BERT of two blocks without a task layer, as anybody would save one, and its tokenizer."""
    import torch
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    config = BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        initializer_range=0.2,  # derivatives of a usual size, as in a trained model
    )
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def talker_folder(tmp_path_factory) -> Path:
    """A Llama of two blocks, whose tokenizer has a chat template."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests import chats

    folder = tmp_path_factory.mktemp("models") / "tiny-talker"
    words = chats.tokenizer(chats.PLAIN["chatml"])
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.2,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory) -> Path:
    """Return the folder of all processes that tests run in."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def lowered_cache(_no_cache_of_the_user) -> Path:
    return default_cache()


@pytest.fixture(scope="session")
def exporting(model_folder, lowered_cache, tmp_path_factory):
    """Exports the tiny model, with two directions to verify and no measured memory unless asked otherwise."""
    from export.options import ExportOptions
    from export.pipeline import export_bundle
    from tests.adapters import everywhere

    def run(out: Path | None = None, progress=None, **options):
        chosen = {
            "source": str(model_folder),
            "out": out or tmp_path_factory.mktemp("bundles") / "bundle",
            "labels": LABELS,
            "batches": (2,),
            "lengths": (8,),
            "measure": False,
            "workers": 1,
            "cache": lowered_cache,
            "adapter": everywhere(),
        } | options
        export_bundle(ExportOptions(**chosen), progress)
        return chosen["out"]

    return run


@pytest.fixture(scope="session")
def exported_once(exporting, shared_folder):
    """Exports under a name, once for all processes; not to be written to."""

    def run(name: str, **options) -> Path:
        with _one_process_at_a_time(shared_folder / name) as folder:
            return folder / "bundle" if (folder / "bundle").exists() else exporting(folder / "bundle", **options)

    return run


@contextmanager
def _one_process_at_a_time(folder: Path) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


@pytest.fixture(scope="session")
def classes(shared_folder) -> str:
    """The Android library and its tests, compiled once for all processes: a class path."""
    with _one_process_at_a_time(shared_folder / "classes") as folder:
        return android.classpath(folder)


@pytest.fixture(scope="session")
def guide(shared_folder) -> Path:
    """The site of docs/, reference and all, built once for all processes."""
    for needed in ("material", "pdoc"):
        pytest.importorskip(needed, reason=f"{needed} is not installed: pip install -e '.[docs]'")
    with _one_process_at_a_time(shared_folder / "site") as folder:
        out = folder / "guide"
        if not out.exists():
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
            environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
            subprocess.run(command, cwd=Path(__file__).parents[1], env=environment, check=True, timeout=600)
        return out


@pytest.fixture(scope="session")
def bundle(exported_once) -> Path:
    """Two shapes, one and two directions, memory measured."""
    return exported_once("measured", batches=(2, 1), directions=(1, 2), measure=True)


@pytest.fixture(scope="session")
def tiny(exported_once) -> Path:
    """One shape, one direction, no memory measured."""
    return exported_once("tiny")


@pytest.fixture(scope="session")
def talker(exported_once, talker_folder) -> Path:
    """A language model with a chat template: one shape, one direction, no memory measured."""
    options = {"source": str(talker_folder), "task": "causal-lm", "labels": (), "lengths": (32,)}
    return exported_once("talker", runtimes=("onnx",), **options)


@pytest.fixture(scope="session")
def trainable(exported_once) -> Path:
    """Batches of 4, 2 and 1, one and two directions, ONNX Runtime alone."""
    return exported_once("trainable", batches=(4, 2, 1), directions=(1, 2))


@pytest.fixture(scope="session")
def narrow(exported_once) -> Path:
    """The same shapes and directions, the latter at bottlenecks of two numbers a token."""
    from edge_client.commands.options.adapter import AdapterOptions

    options = AdapterOptions("bottleneck", rank=2)
    return exported_once("narrow", adapter=options, batches=(4, 2, 1), directions=(1, 2))


@pytest.fixture
def task() -> Task:
    """Both units of the last block, four examples at a time."""
    return Task(
        id="task-1",
        job="job-1",
        job_name="topics",
        round=1,
        seed=2**63 + 5,
        units=[2, 3],
        cut=2,
        bundle="b",
        runtime="onnx",
        version=0,
        iteration=0,
        seconds=60.0,
        training=Training(batch=4, length=8, learning_rate=0.1, epochs=2),
        optimizers=ServerOptimizers(),
        batch=4,
    )


@pytest.fixture
def changed(task):
    """The task with other settings, those of its training among them."""
    training = set(Training.__dataclass_fields__)

    def change(**fields):
        inner = {name: value for name, value in fields.items() if name in training - {"batch"}}
        outer = {name: value for name, value in fields.items() if name not in inner}
        return replace(task, **outer, training=replace(task.training, **inner))

    return change
