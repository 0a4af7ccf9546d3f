package dev.spry.core.numbers;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

import dev.spry.core.Tensor;

/** Tensors in a file of the safetensors format: eight bytes of length, a JSON header, then the numbers. */
public final class Safetensors {
    public final Map<String, Tensor> tensors;
    /** What the header says beside them. */
    public final Map<String, String> metadata;

    private static final String METADATA = "__metadata__";
    private static final int LENGTH = 8;

    public Safetensors(Map<String, Tensor> tensors, Map<String, String> metadata) {
        this.tensors = Collections.unmodifiableMap(new LinkedHashMap<>(tensors));
        this.metadata = Collections.unmodifiableMap(new LinkedHashMap<>(metadata));
    }

    // --- writing ---

    /** The file's bytes; the same tensors in the same order give the same. */
    public byte[] encoded() {
        byte[] header = padded(header());
        ByteBuffer out = ByteBuffer.allocate(Math.toIntExact(LENGTH + header.length + numbers()));
        out.order(ByteOrder.LITTLE_ENDIAN).putLong(header.length).put(header);
        for (Tensor tensor : tensors.values()) {
            put(out, tensor);
        }
        return out.array();
    }

    private String header() {
        try {
            JSONObject header = new JSONObject();
            if (!metadata.isEmpty()) {
                header.put(METADATA, new JSONObject(metadata));
            }
            long start = 0;
            for (Map.Entry<String, Tensor> entry : tensors.entrySet()) {
                Tensor tensor = entry.getValue();
                long end = start + (long) tensor.size() * Dtype.of(tensor).bytes;
                JSONArray shape = new JSONArray();
                for (int length : tensor.shape()) {
                    shape.put(length);
                }
                JSONObject about = new JSONObject().put("dtype", Dtype.of(tensor).name()).put("shape", shape);
                header.put(entry.getKey(), about.put("data_offsets", new JSONArray().put(start).put(end)));
                start = end;
            }
            return header.toString();
        } catch (JSONException error) {
            throw new IllegalStateException(error);
        }
    }

    private long numbers() {
        long bytes = 0;
        for (Tensor tensor : tensors.values()) {
            bytes += (long) tensor.size() * Dtype.of(tensor).bytes;
        }
        return bytes;
    }

    /** Spaces up to a multiple of eight, so that numbers start where readers may map them. */
    private static byte[] padded(String header) {
        byte[] text = header.getBytes(StandardCharsets.UTF_8);
        byte[] padded = new byte[(text.length + LENGTH - 1) / LENGTH * LENGTH];
        Arrays.fill(padded, (byte) ' ');
        System.arraycopy(text, 0, padded, 0, text.length);
        return padded;
    }

    private static void put(ByteBuffer out, Tensor tensor) {
        switch (Dtype.of(tensor)) {
            case F32:
                out.asFloatBuffer().put(tensor.floats());
                break;
            case I32:
                out.asIntBuffer().put(tensor.ints());
                break;
            case I64:
                out.asLongBuffer().put(tensor.longs());
                break;
            default:
                out.duplicate().put(tensor.bytes());
        }
        out.position(out.position() + tensor.size() * Dtype.of(tensor).bytes);
    }

    // --- reading ---

    /** The tensors of a file; IllegalArgumentException, with the reason, where it is none. */
    public static Safetensors parse(byte[] data) {
        ByteBuffer in = ByteBuffer.wrap(data).order(ByteOrder.LITTLE_ENDIAN);
        if (data.length < LENGTH) {
            throw new IllegalArgumentException("it has only " + data.length + " bytes");
        }
        long length = in.getLong();
        if (length < 2 || length > data.length - LENGTH) {
            throw new IllegalArgumentException("its header of " + length + " bytes does not fit into " + data.length);
        }
        int start = LENGTH + (int) length;
        try {
            JSONObject header = new JSONObject(new String(data, LENGTH, (int) length, StandardCharsets.UTF_8));
            in.position(start);
            return read(header, in.slice().order(ByteOrder.LITTLE_ENDIAN));
        } catch (JSONException error) {
            throw new IllegalArgumentException("its header cannot be read: " + error.getMessage(), error);
        }
    }

    private static Safetensors read(JSONObject header, ByteBuffer numbers) throws JSONException {
        Map<String, String> metadata = new LinkedHashMap<>();
        List<Place> places = new ArrayList<>();
        for (Iterator<String> names = header.keys(); names.hasNext(); ) {
            String name = names.next();
            JSONObject about = header.getJSONObject(name);
            if (name.equals(METADATA)) {
                for (Iterator<String> keys = about.keys(); keys.hasNext(); ) {
                    String key = keys.next();
                    metadata.put(key, about.getString(key));
                }
            } else {
                places.add(new Place(name, about));
            }
        }
        places.sort((one, other) -> one.start != other.start
                ? Long.compare(one.start, other.start) : Long.compare(one.end, other.end));
        Map<String, Tensor> tensors = new LinkedHashMap<>();
        long end = 0;
        for (Place place : places) {
            if (place.start != end) {
                throw new IllegalArgumentException(place.name + " starts at byte " + place.start + ", expected " + end);
            }
            end = place.end;
            tensors.put(place.name, place.tensor(numbers));
        }
        if (end != numbers.capacity()) {
            throw new IllegalArgumentException("it holds " + numbers.capacity() + " bytes of numbers, expected " + end);
        }
        return new Safetensors(tensors, metadata);
    }

    /** Names in a file. */
    private enum Dtype {
        F32(4), I32(4), I64(8), I8(1);

        final int bytes;

        Dtype(int bytes) {
            this.bytes = bytes;
        }

        static Dtype of(Tensor tensor) {
            switch (tensor.dtype()) {
                case "float32":
                    return F32;
                case "int32":
                    return I32;
                case "int64":
                    return I64;
                default:
                    return I8;
            }
        }

        static Dtype named(String name) {
            for (Dtype dtype : values()) {
                if (dtype.name().equals(name)) {
                    return dtype;
                }
            }
            throw new IllegalArgumentException("it holds numbers of the kind " + name + ", which is not read here");
        }
    }

    /** Where a file holds a tensor. */
    private static final class Place {
        final String name;
        final Dtype dtype;
        final int[] shape;
        final long start;
        final long end;

        Place(String name, JSONObject about) throws JSONException {
            this.name = name;
            dtype = Dtype.named(about.getString("dtype"));
            JSONArray lengths = about.getJSONArray("shape");
            shape = new int[lengths.length()];
            long count = 1;
            for (int i = 0; i < shape.length; i++) {
                shape[i] = lengths.getInt(i);
                count = shape[i] < 0 || count > Integer.MAX_VALUE ? -1 : count * shape[i];
            }
            JSONArray offsets = about.getJSONArray("data_offsets");
            start = offsets.getLong(0);
            end = offsets.getLong(1);
            if (count < 0 || end - start != count * dtype.bytes) {
                throw new IllegalArgumentException(
                        name + " has " + (end - start) + " bytes, which is not its shape " + lengths);
            }
        }

        Tensor tensor(ByteBuffer numbers) {
            if (end > numbers.capacity()) {
                throw new IllegalArgumentException(
                        name + " ends at byte " + end + " of " + numbers.capacity() + ": it is cut off");
            }
            ByteBuffer part = numbers.duplicate().order(ByteOrder.LITTLE_ENDIAN);
            part.position((int) start);
            int count = (int) ((end - start) / dtype.bytes);
            switch (dtype) {
                case F32:
                    float[] floats = new float[count];
                    part.asFloatBuffer().get(floats);
                    return Tensor.of(floats, shape);
                case I32:
                    int[] ints = new int[count];
                    part.asIntBuffer().get(ints);
                    return Tensor.of(ints, shape);
                case I64:
                    long[] longs = new long[count];
                    part.asLongBuffer().get(longs);
                    return Tensor.of(longs, shape);
                default:
                    byte[] bytes = new byte[count];
                    part.get(bytes);
                    return Tensor.of(bytes, shape);
            }
        }
    }
}
