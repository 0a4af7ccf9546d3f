package dev.spry.app;

import java.io.IOException;
import java.util.Collections;
import java.util.List;

import android.content.Context;
import android.util.Log;
import dev.spry.core.Client;
import dev.spry.core.Prediction;
import dev.spry.core.SpryException;
import dev.spry.core.StoreException;
import dev.spry.core.data.Example;

/** Asks this phone's own model about a text, away from the screen's thread; the answer goes to the journal. */
final class Classifier {
    private final Context context;
    private final Journal journal;

    Classifier(Context context) {
        this.context = context.getApplicationContext();
        journal = new Journal(this.context);
    }

    void ask(String text) {
        journal.answer(context.getString(R.string.classifying));
        new Thread(() -> journal.answer(answer(text)), "classifier").start();
    }

    private String answer(String text) {
        try (Client client = new Settings(context).client().open()) {
            List<Example> texts = Collections.singletonList(new Example(text, null, 0));
            try {
                return told(client.predict(texts, true), R.string.answer_personal);
            } catch (StoreException none) {
                return told(client.predict(texts, false), R.string.answer_global);
            }
        } catch (SpryException | IOException error) {
            return error.getMessage();
        } catch (LinkageError error) {
            return context.getString(R.string.no_runtime);
        } catch (RuntimeException error) {
            Log.e("spry", "a defect", error);
            return context.getString(R.string.defect, String.valueOf(error.getMessage()));
        }
    }

    private String told(List<Prediction> found, int how) {
        Prediction best = found.get(0);
        if (best.label == null) {
            return context.getString(R.string.answer_none);
        }
        Double score = best.scores.get(best.label);
        return context.getString(how, best.label, score == null ? 100.0 : 100 * score);
    }
}
