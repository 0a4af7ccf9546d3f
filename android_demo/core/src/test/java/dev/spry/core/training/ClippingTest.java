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
        JSONObject said = new Report(900, 3, 9.5, 2.0, 7, 4, 3, 2, 64).silent().toJson();
        String expected = "{\"examples\":1,\"steps\":3,\"loss\":0,\"seconds\":2,\"peak_bytes\":7,\"held_back\":0,"
                + "\"right_global\":0,\"right_personal\":0,\"measured\":0}";
        assertEquals(expected, said.toString());
    }
}
