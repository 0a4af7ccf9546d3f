"""Coverage does not follow torch into its own code.

Its tracer is called for every line of any module, measured or not, which doubles the time in which torch traces and
ExecuTorch lowers. What of ours they call back is measured where tests call it themselves.
"""

import sys
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from typing import Any

LIBRARIES = ("torch", "transformers", "peft", "executorch.exir")
CALLS = {
    "torch.export": ("export",),
    "executorch.exir": ("EdgeProgramManager.to_backend", "EdgeProgramManager.to_executorch"),
}


@contextmanager
def untraced():
    """This thread's tracer waits."""
    tracer = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(tracer)


def follow_no_library() -> None:
    """Load what most tests need, and put `untraced` around the calls that take long."""
    with untraced(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about their own code
        for name in LIBRARIES:
            import_module(name)
    for module, names in CALLS.items():
        for name in names:
            *outer, last = name.split(".")
            owner = import_module(module)
            for part in outer:
                owner = getattr(owner, part)
            setattr(owner, last, _untraced(getattr(owner, last)))
    tracing = import_module("torch.fx.experimental.proxy_tensor")
    make_fx = tracing.make_fx
    tracing.make_fx = lambda *args, **options: _untraced(make_fx(*args, **options))  # it gives what then traces


def _untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with untraced():
            return function(*args, **kwargs)

    return call
