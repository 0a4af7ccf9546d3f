package dev.spry.core.training;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.Map;

import org.json.JSONArray;
import org.json.JSONObject;
import org.junit.jupiter.api.Test;

import dev.spry.core.Tensor;
import dev.spry.core.Vectors;
import dev.spry.core.wire.Report;

class ClippingTest {
    @Test
    void updatesAreAsLongAsPythonLeavesThem() throws Exception {
        JSONArray vectors = Vectors.read("training.json").getJSONArray("clipping");
        assertEquals(3, vectors.length());
        for (int i = 0; i < vectors.length(); i++) {
            JSONObject vector = vectors.getJSONObject(i);
            Map<String, Tensor> start = Vectors.tensors(vector.getJSONObject("start"));
            Map<String, Tensor> update = Vectors.tensors(vector.getJSONObject("update"));
            Map<String, Tensor> found = Clipping.clipped(start, update, vector.getDouble("most"));
            Vectors.assertSame(Vectors.tensors(vector.getJSONObject("clipped")), found, 1);
        }
    }

    @Test
    void aSilentReportSaysNothingOfTheExamples() throws Exception {
        Report told = new Report(900, 3, 9.5);
        told.seconds = 2;
        told.peakBytes = 7;
        told.heldBack = 4;
        told.rightGlobal = 3;
        told.rightPersonal = 2;
        told.measured = 64;
        Report expected = new Report(1, 3, 0);
        expected.seconds = 2;
        expected.peakBytes = 7;
        assertEquals(expected.toJson().toString(), Clipping.silent(told).toJson().toString());
    }
}
