"""A device's way through a sum: it sends what each stage asks for, waits for the others, and goes on after a crash."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edge_client.errors import StoreError, TrainingError
from edge_client.events import Event, Tell
from edge_client.secagg import fixed
from edge_client.secagg.adding import noisy, unmasked
from edge_client.secagg.fixed import Parts
from edge_client.secagg.member import About, Kept, Member
from edge_client.secagg.messages import Stage, View
from edge_client.secagg.noise import Share
from edge_client.store.job import JobStore
from edge_client.wire.protocol import Receipt, Report, Task
from edge_client.wire.server import Server
from edge_client.wire.tensors import decode_update


class Adding:
    """One task's update, on its way into a sum.

    Args:
        task: whose update is ready.
        server: that adds.
        job: where the update, and what was said of it, is kept.
        key: the device's own secret key.
        pause: waits some seconds.
        tell: takes the events.
    """

    def __init__(
        self, task: Task, server: Server, job: JobStore, key: str, pause: Callable[[float], object], tell: Tell
    ) -> None:
        assert task.sum is not None  # else the update is sent as it is
        self._sum = task.sum
        self._task = task
        self._server = server
        self._pause = pause
        self._tell = tell
        self._said: Stage = "card"
        self._tensors, self._report = _update_in(job)
        self._share = _share_of(task)
        terms = self._share.terms if self._share else b""
        about = About(task.job, task.round, self._sum.place, tuple(self._sum.units), self._sum.least, terms)
        kept = job.sum(Kept) or Kept()
        self._member = Member(about, key, kept, job.save_sum)

    def run(self) -> Receipt:
        """Run until the sum is opened as far as it is up to this device."""
        self.begin()
        while (receipt := self.step()) is None:
            pass
        return receipt

    def begin(self) -> None:
        """Tell the keys of the round: the update is ready."""
        self._said = "card"
        self._server.send_message(self._task.id, "card", self._member.card())

    def step(self) -> Receipt | None:
        """Look once at the state of the sum and take the next step; return a receipt when nothing more is asked."""
        view = View.decoded(self._server.sum(self._task.id))
        if view.stage == "over":
            return Receipt(view.wait)
        if view.stage == self._said:
            self._pause(view.wait)
        else:
            self._say(view)
            self._said = view.stage
        return None

    def _say(self, view: View) -> None:
        member, task = self._member, self._task.id
        if view.stage == "update":
            self._server.send_masked(task, member.update(view.body, self._parts))
        elif view.stage == "shares":
            self._server.send_message(task, "shares", member.shares(view.body))
        elif view.stage == "vow":
            vow = member.vow(view.body)
            if vow is not None:
                self._server.send_message(task, "vow", vow)
        elif view.stage == "opening":
            self._server.send_message(task, "opening", member.opening(view.body))

    def _parts(self, count: int, cap: int) -> Parts:
        if count > fixed.MOST:
            raise TrainingError(f"a sum has at most {fixed.MOST} devices, not {count}: ask the server's operator")
        adds = self._sum
        if self._share is not None:
            secret = self._member.noise
            return noisy(self._tensors, adds.units, self._report, self._share, secret, count, adds.scores)
        beyond = sum(fixed.cut(change) for change in self._tensors.values())
        if beyond:
            what = f"{beyond} numbers changed by more than {fixed.CLIP:g} and are cut off: lower the learning rate"
            self._tell(Event("warning", what))
        return unmasked(self._tensors, adds.units, self._report, cap, count, adds.scores)


def _share_of(task: Task) -> Share | None:
    """Return this device's share of the noise of a private sum; None without noise."""
    if task.sum is None or task.sum.noise is None:
        return None
    if task.clip is None:
        raise TrainingError("the task asks for noise and names no clip: nothing is sent; ask the server's operator")
    return Share(task.sum.noise, task.clip, task.sum.least)


def _update_in(job: JobStore) -> tuple[dict[str, np.ndarray[Any, Any]], Report]:
    data = job.update()
    if data is None:
        raise StoreError(f"{job.folder} lacks the update that is to be added: the task is given back")
    return decode_update(data)
