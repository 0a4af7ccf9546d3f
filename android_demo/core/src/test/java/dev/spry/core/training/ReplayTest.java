package dev.spry.core.training;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.Base64;

import org.json.JSONArray;
import org.json.JSONObject;
import org.junit.jupiter.api.Test;

import dev.spry.core.Vectors;
import dev.spry.core.bundle.Manifest;
import dev.spry.core.wire.Scalars;
import dev.spry.core.wire.ServerOptimizers;
import dev.spry.core.wire.StepRecord;
import dev.spry.core.wire.TrainingSettings;

class ReplayTest {
    @Test
    void publishedStepsLeadWhereTheyLeadPython() throws Exception {
        JSONObject all = Vectors.read("training.json");
        Manifest manifest = Vectors.parsed(Vectors.manifest());
        JSONArray vectors = all.getJSONArray("replay");
        assertEquals(6, vectors.length());
        for (int i = 0; i < vectors.length(); i++) {
            JSONObject vector = vectors.getJSONObject(i);
            TrainingSettings training = new TrainingSettings(vector.getJSONObject("training"));
            ServerOptimizers optimizers = new ServerOptimizers(vector.getJSONObject("optimizers"));
            Kept kept = new Kept(0, Vectors.tensors(vector.getJSONObject("weights")));
            for (StepRecord record : Scalars.decode(Base64.getDecoder().decode(vector.getString("records")))) {
                kept = new Replay(record, kept, manifest, training, optimizers).kept;
            }
            assertEquals(3, kept.version);
            int roundings = 8 + training.directions / 8; // of many derivatives the sum depends on the order
            Vectors.assertSame(Vectors.tensors(vector.getJSONObject("after")), kept.weights, roundings);
            Vectors.assertSame(Vectors.tensors(vector.getJSONObject("state")), kept.optimizer, roundings);
        }
    }
}
