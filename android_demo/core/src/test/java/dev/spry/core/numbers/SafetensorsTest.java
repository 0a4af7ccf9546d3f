package dev.spry.core.numbers;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import java.util.Iterator;
import java.util.Random;

import org.json.JSONArray;
import org.json.JSONObject;
import org.junit.jupiter.api.Test;

import dev.spry.core.Tensor;
import dev.spry.core.Vectors;

class SafetensorsTest {
    private static JSONObject vector() throws Exception {
        return Vectors.read("training.json").getJSONObject("safetensors");
    }

    private static byte[] written() throws Exception {
        return Base64.getDecoder().decode(vector().getString("data"));
    }

    @Test
    void readsWhatTheLibraryWrites() throws Exception {
        check(Safetensors.parse(written()));
    }

    @Test
    void readsWhatItWrites() throws Exception {
        Safetensors found = Safetensors.parse(written());
        byte[] again = found.encoded();
        check(Safetensors.parse(again));
        assertArrayEquals(again, Safetensors.parse(again).encoded());
    }

    private static void check(Safetensors found) throws Exception {
        assertEquals("{\"loss\": 0.5, \"who\": \"é\"}", found.metadata.get("report"));
        JSONObject expected = vector().getJSONObject("tensors");
        assertEquals(expected.length(), found.tensors.size());
        for (Iterator<String> names = expected.keys(); names.hasNext(); ) {
            String name = names.next();
            Tensor tensor = found.tensors.get(name);
            assertArrayEquals(Vectors.ints(expected.getJSONObject(name).getJSONArray("shape")), tensor.shape());
            JSONArray values = expected.getJSONObject(name).getJSONArray("values");
            for (int i = 0; i < values.length(); i++) {
                assertEquals(values.getDouble(i), number(tensor, i), Math.abs(values.getDouble(i)) * 1e-7, name);
            }
            assertEquals(values.length(), tensor.size());
        }
    }

    private static double number(Tensor tensor, int i) {
        switch (tensor.dtype()) {
            case "float32":
                return tensor.floats()[i];
            case "int64":
                return tensor.longs()[i];
            case "int32":
                return tensor.ints()[i];
            default:
                return tensor.bytes()[i];
        }
    }

    @Test
    void refusesAFileThatIsCutOffAnywhere() throws Exception {
        byte[] data = written();
        for (int length = 0; length < data.length; length++) {
            byte[] part = Arrays.copyOf(data, length);
            assertThrows(IllegalArgumentException.class, () -> Safetensors.parse(part));
        }
        byte[] longer = Arrays.copyOf(data, data.length + 1);
        assertThrows(IllegalArgumentException.class, () -> Safetensors.parse(longer));
    }

    @Test
    void refusesAHeaderThatLies() {
        for (String header : new String[] {
            "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}",
            "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
            "{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}",
            "{\"a\":{\"dtype\":\"F32\",\"shape\":[2147483647,2147483647,4],\"data_offsets\":[0,4]}}",
            "{\"a\":{\"dtype\":\"F99\",\"shape\":[1],\"data_offsets\":[0,4]}}",
            "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,9223372036854775807]}}",
            "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}",
            "{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}",
            "{\"a\":7}",
            "[]",
        }) {
            byte[] text = header.getBytes(StandardCharsets.UTF_8);
            ByteBuffer data = ByteBuffer.allocate(8 + text.length + 4).order(ByteOrder.LITTLE_ENDIAN);
            data.putLong(text.length).put(text);
            assertThrows(IllegalArgumentException.class, () -> Safetensors.parse(data.array()), header);
        }
    }

    /** Whatever bytes come, there are tensors or a reason. */
    @Test
    void damagedBytesAreRefusedOrRead() throws Exception {
        byte[] data = written();
        Random random = new Random(1);
        for (int i = 0; i < 3000; i++) {
            byte[] damaged = data.clone();
            damaged[random.nextInt(data.length)] = (byte) random.nextInt();
            damaged[random.nextInt(20)] ^= (byte) (1 << random.nextInt(8));
            try {
                Safetensors.parse(damaged);
            } catch (IllegalArgumentException refused) {
                continue;
            }
        }
    }
}
