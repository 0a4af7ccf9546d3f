package dev.spry.core;

import java.util.LinkedHashMap;
import java.util.Map;

import org.json.JSONException;
import org.json.JSONObject;

import dev.spry.core.numbers.Safetensors;
import dev.spry.core.store.JobStore;
import dev.spry.core.sums.About;
import dev.spry.core.sums.Changes;
import dev.spry.core.sums.Fixed;
import dev.spry.core.sums.Secrets;
import dev.spry.core.sums.Member;
import dev.spry.core.sums.Parts;
import dev.spry.core.sums.Share;
import dev.spry.core.sums.View;
import dev.spry.core.wire.Receipt;
import dev.spry.core.wire.Report;
import dev.spry.core.wire.Server;
import dev.spry.core.wire.Task;

/** A device's way through a sum: it says what each stage asks, waits for the others, and goes on after a crash. */
final class Adding {
    /** The form of the messages (`edge_client.secagg.messages`), which tasks name. */
    private static final int FORMAT = 1;

    private final Task task;
    private final Server server;
    private final Pause pause;
    private final Tell tell;
    private final Member member;
    private final Map<String, Tensor> moved;
    private final Fixed.Told report;
    /** Of the noise of a private sum; null without. */
    private final Share share;
    private View.Stage said = View.Stage.CARD;

    /** A task whose update is ready, and the device's own secret key. */
    Adding(Task task, Server server, JobStore job, String key, Pause pause, Tell tell) {
        this.task = task;
        this.server = server;
        this.pause = pause;
        this.tell = tell;
        Safetensors update = update(job);
        moved = new LinkedHashMap<>(update.tensors);
        try {
            report = new Fixed.Told(new JSONObject(String.valueOf(update.metadata.get(JobStore.REPORT))), task.sum.scores);
        } catch (JSONException damaged) {
            throw lacking();
        }
        share = share(task);
        byte[] terms = share == null ? new byte[0] : share.terms();
        About about = new About(task.job, task.round, task.sum.place, task.sum.units, task.sum.least, terms);
        Secrets known = job.sum();
        Secrets kept = known == null ? new Secrets() : known;
        member = new Member(about, key, kept, () -> job.saveSum(kept));
    }

    /** Refuses a sum whose messages are of another form. */
    static void requireKnown(int form) {
        if (form != FORMAT) {
            throw new TrainingException("the sum is of format " + form + ", this version of spry knows " + FORMAT
                    + ": update spry here");
        }
    }

    private static Share share(Task task) {
        if (task.sum.noise == null) {
            return null;
        }
        if (task.clip == null) {
            throw new TrainingException(
                    "the task asks for noise and names no clip: nothing is sent; ask the server's operator");
        }
        return new Share(task.sum.noise, task.clip, task.sum.least);
    }

    private static Safetensors update(JobStore job) {
        byte[] data = job.update();
        if (data == null) {
            throw lacking();
        }
        try {
            return Safetensors.parse(data);
        } catch (IllegalArgumentException damaged) {
            throw lacking();
        }
    }

    private static StoreException lacking() {
        return new StoreException("the update that is to be added is not there any more: the task is given back");
    }

    /** Until the sum is opened as far as it is up to this device. */
    Receipt run() {
        server.sendMessage(task.id, "card", member.card());
        while (true) {
            View view = server.sum(task.id);
            if (view.stage == View.Stage.OVER) {
                return new Receipt(view.wait, false);
            }
            if (view.stage == said) {
                pause.pause(view.wait);
            } else {
                say(view);
                said = view.stage;
            }
        }
    }

    private void say(View view) {
        switch (view.stage) {
            case SHARES:
                server.sendMessage(task.id, "shares", member.shares(view.body));
                break;
            case UPDATE:
                server.sendMasked(task.id, member.update(view.body, this::parts));
                break;
            case VOW:
                byte[] vow = member.vow(view.body);
                if (vow != null) {
                    server.sendMessage(task.id, "vow", vow);
                }
                break;
            case OPENING:
                server.sendMessage(task.id, "opening", member.opening(view.body));
                break;
            default: // the server waits for others' cards
        }
    }

    private Parts parts(int count, long cap) {
        if (count > Fixed.MOST) {
            throw new TrainingException("a sum has at most " + Fixed.MOST + " devices, not " + count
                    + ": ask the server's operator");
        }
        if (share != null) {
            return Changes.noisy(moved, task.sum.units, share, member.noise(), count, task.sum.scores);
        }
        int beyond = Changes.cut(moved);
        if (beyond > 0) {
            tell.tell(Event.of("warning", beyond + " numbers changed by more than 2 and are cut off: lower the learning "
                    + "rate"));
        }
        return Changes.unmasked(moved, task.sum.units, report, cap, count, task.sum.scores);
    }
}
