package dev.spry.core.wire;

import java.nio.BufferUnderflowException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

import dev.spry.core.BadAnswerException;
import dev.spry.core.TrainingException;

/**
 * Reports and records of mode iteration as bytes, all numbers little-endian:
 *
 * <pre>
 * report   loss f32, scale f32, examples u16, flags u8, count u8, count x f16 [units' jvps], count x f16 [head's]
 *          and, with flag EXACT_HEAD, the head's gradient in the manifest's order, in blocks of 128 numbers: a scale
 *          f32, then two bits a number, from a byte's lowest on: 1 for a negative one, 2 for one that stands for FAR
 *          times the scale; the upper six bits of flags are those of count
 * record   magic "SPRY", bytes u32, version u32, round u32, iteration u32, K u16, batch u16, participants u16,
 *          unit bytes u8, the number of this form u8 (0); then for each participant seed u64, units (a bit set), its
 *          report without loss; then, with EXACT_HEAD, the weighted mean of the head's gradients as f32
 * </pre>
 */
public final class Scalars {
    private static final int EXACT_HEAD = 1;
    private static final int HEAD_JVPS = 2;
    private static final int FORMAT = 0;
    private static final int MAGIC = 'S' | 'P' << 8 | 'R' << 16 | 'Y' << 24;
    private static final int RECORD_BYTES = 28;
    private static final int FLAG_BITS = 2;
    /** Scalars of a kind in a report; more directions or rows need mode epoch. */
    private static final int LARGEST = (1 << 16 - FLAG_BITS) - 1;
    private static final int BLOCK = 128;
    private static final double FAR = 3.3357;
    /** Of a block's root mean square: what lies beyond is large. */
    private static final double BETWEEN = 0.9816;

    private Scalars() {
    }

    // --- reports ---

    public static byte[] encode(ScalarReport report) {
        int count = report.jvp.length;
        if (count > LARGEST) {
            throw new TrainingException(
                    "a report holds at most " + LARGEST + " derivatives (K x rows), got " + count);
        }
        int kinds = report.headJvp == null ? 1 : 2;
        int head = report.headGradient == null ? 0 : report.headGradient.length;
        ByteBuffer out = little(ByteBuffer.allocate(12 + 2 * count * kinds + sizeInTwoBits(head)));
        float scale = scale(report);
        out.putFloat(report.loss).putFloat(scale).putShort((short) report.examples);
        int flags = (kinds == 2 ? HEAD_JVPS : 0) | (report.headGradient == null ? 0 : EXACT_HEAD);
        out.put((byte) (flags | count >> 8 << FLAG_BITS));
        out.put((byte) count);
        putHalves(out, report.jvp, scale);
        if (kinds == 2) {
            putHalves(out, report.headJvp, scale);
        }
        for (int start = 0; start < head; start += BLOCK) {
            putInTwoBits(out, Arrays.copyOfRange(report.headGradient, start, Math.min(head, start + BLOCK)));
        }
        return out.array();
    }

    private static int sizeInTwoBits(int count) {
        int rest = count % BLOCK;
        return count / BLOCK * (4 + BLOCK / 4) + (rest > 0 ? 4 + (rest + 3) / 4 : 0);
    }

    private static void putInTwoBits(ByteBuffer out, float[] block) {
        double squares = 0;
        for (float value : block) {
            squares += (double) value * value;
        }
        double between = BETWEEN * Math.sqrt(squares / block.length);
        double products = 0;
        double lengths = 0;
        byte[] codes = new byte[(block.length + 3) / 4];
        for (int number = 0; number < block.length; number++) {
            double size = Math.abs((double) block[number]);
            double length = size > between ? FAR : 1;
            products += size * length;
            lengths += length * length;
            int code = (block[number] < 0 ? 1 : 0) | (size > between ? 2 : 0);
            codes[number / 4] |= (byte) (code << 2 * (number % 4));
        }
        out.putFloat((float) (products / lengths)).put(codes);
    }

    private static float scale(ScalarReport report) {
        float largest = Math.max(largest(report.jvp), report.headJvp == null ? 0 : largest(report.headJvp));
        return largest > 0 && largest < Float.POSITIVE_INFINITY ? largest : 1;
    }

    private static float largest(float[] values) {
        float largest = 0;
        for (float value : values) {
            largest = Math.max(largest, Math.abs(value));
        }
        return largest;
    }

    private static void putHalves(ByteBuffer out, float[] values, float scale) {
        for (float value : values) {
            out.putShort(Halves.encode(value / scale));
        }
    }

    // --- records ---

    /** Records that stand one after the other. */
    public static List<StepRecord> decode(byte[] data) {
        List<StepRecord> found = new ArrayList<>();
        ByteBuffer in = little(ByteBuffer.wrap(data));
        while (in.hasRemaining()) {
            int start = in.position();
            if (in.remaining() < RECORD_BYTES) {
                throw new BadAnswerException("a record is cut off after " + in.remaining() + " bytes");
            }
            int magic = in.getInt();
            int size = in.getInt();
            if (magic != MAGIC || size < RECORD_BYTES || size > data.length - start) {
                throw new BadAnswerException(
                        "no record at byte " + start + ": the answer is damaged or not from this version of spry");
            }
            in.limit(start + size);
            try {
                found.add(record(in));
            } catch (BufferUnderflowException error) {
                throw new BadAnswerException("a record is cut off among its participants");
            }
            in.limit(data.length);
        }
        return found;
    }

    private static StepRecord record(ByteBuffer in) {
        int version = in.getInt();
        int round = in.getInt();
        int iteration = in.getInt();
        int[] shape = {in.getShort() & 0xffff, in.getShort() & 0xffff};
        int count = in.getShort() & 0xffff;
        int width = in.get() & 0xff;
        int form = in.get() & 0xff;
        if (form != FORMAT) {
            throw new BadAnswerException("a record is of format " + form + ", this version of spry reads " + FORMAT
                    + ": update spry here");
        }
        List<StepRecord.Participant> participants = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            long seed = in.getLong();
            byte[] bits = new byte[width];
            in.get(bits);
            participants.add(new StepRecord.Participant(seed, units(bits), scalars(in, shape)));
        }
        float[] head = null;
        if (in.hasRemaining()) {
            head = new float[in.remaining() / 4];
            in.asFloatBuffer().get(head);
            in.position(in.limit());
        }
        return new StepRecord(version, round, iteration, participants, head);
    }

    private static int[] units(byte[] bits) {
        int[] found = new int[8 * bits.length];
        int count = 0;
        for (int unit = 0; unit < found.length; unit++) {
            if ((bits[unit / 8] >> unit % 8 & 1) == 1) {
                found[count++] = unit;
            }
        }
        return Arrays.copyOf(found, count);
    }

    private static ScalarReport scalars(ByteBuffer in, int[] shape) {
        float scale = in.getFloat();
        int examples = in.getShort() & 0xffff;
        int flags = in.get() & 0xff;
        int count = flags >> FLAG_BITS << 8 | in.get() & 0xff;
        boolean whole = count == shape[0] || count == shape[0] * shape[1];
        if (!whole || examples < 1 || examples > shape[1]) {
            throw new BadAnswerException("a report of this job holds derivatives along " + shape[0]
                    + " directions of 1 to " + shape[1] + " examples, got " + count + " of " + examples);
        }
        float[] jvp = halves(in, count, scale);
        return new ScalarReport(0, examples, jvp, (flags & HEAD_JVPS) == 0 ? null : halves(in, count, scale), null);
    }

    private static float[] halves(ByteBuffer in, int count, float scale) {
        float[] found = new float[count];
        for (int i = 0; i < count; i++) {
            found[i] = Halves.decode(in.getShort()) * scale;
        }
        return found;
    }

    private static ByteBuffer little(ByteBuffer buffer) {
        return buffer.order(ByteOrder.LITTLE_ENDIAN);
    }
}
