package dev.spry.core.wire;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.Random;

import org.junit.jupiter.api.Test;

import dev.spry.core.BadAnswerException;
import dev.spry.core.TrainingException;

class ScalarsTest {
    /** A record as edge_client/wire/scalars.py describes it: two participants, one of them without a head. */
    private static byte[] record() {
        ByteBuffer out = ByteBuffer.allocate(1000).order(ByteOrder.LITTLE_ENDIAN);
        out.put(new byte[] {'S', 'P', 'R', 'Y'}).putInt(0).putInt(9).putInt(3).putInt(2);
        out.putShort((short) 1).putShort((short) 2).putShort((short) 2).put((byte) 2).put((byte) 0);
        out.putLong(-5).put((byte) 0b101).put((byte) 1).putFloat(2).putShort((short) 2).put((byte) 2).put((byte) 2);
        out.putShort((short) 0x3c00).putShort((short) 0xb800).putShort((short) 0).putShort((short) 1);
        out.putLong(7).put((byte) 0).put((byte) 0x80).putFloat(1).putShort((short) 1).put((byte) 0).put((byte) 2);
        out.putShort((short) 0x4000).putShort((short) 0x0400);
        out.putFloat(1.5f);
        out.putInt(4, out.position());
        return Arrays.copyOf(out.array(), out.position());
    }

    @Test
    void recordsAreRead() throws Exception {
        ByteArrayOutputStream both = new ByteArrayOutputStream();
        both.write(record());
        both.write(record());
        assertEquals(2, Scalars.decode(both.toByteArray()).size());
        StepRecord found = Scalars.decode(both.toByteArray()).get(1);
        assertArrayEquals(new int[] {9, 3, 2}, new int[] {found.version, found.round, found.iteration});
        StepRecord.Participant first = found.participants.get(0);
        assertEquals(-5, first.seed);
        assertArrayEquals(new int[] {0, 2, 8}, first.units);
        assertArrayEquals(new float[] {2, -1}, first.report.jvp);
        assertArrayEquals(new float[] {0, 0x1p-23f}, first.report.headJvp);
        StepRecord.Participant second = found.participants.get(1);
        assertArrayEquals(new int[] {15}, second.units);
        assertArrayEquals(new float[] {2, 0x1p-14f}, second.report.jvp);
        assertNull(second.report.headJvp);
        assertArrayEquals(new float[] {1.5f}, found.headGradient);
    }

    @Test
    void damagedRecordsAreRefused() {
        byte[] whole = record();
        for (int size = 1; size < whole.length; size++) {
            byte[] cut = Arrays.copyOf(whole, size);
            assertThrows(BadAnswerException.class, () -> Scalars.decode(cut));
            if (size >= 28) { // cut, but saying so: only the rest may then be shorter
                ByteBuffer.wrap(cut).order(ByteOrder.LITTLE_ENDIAN).putInt(4, size);
                if (size < whole.length - 4) {
                    assertThrows(BadAnswerException.class, () -> Scalars.decode(cut));
                }
            }
        }
    }

    @Test
    void aReportMayHoldMoreThanAByteCounts() {
        float[] jvp = new float[300];
        jvp[299] = 2;
        byte[] found = Scalars.encode(new ScalarReport(0.5f, 2, jvp, jvp, null));
        assertEquals(12 + 2 * 2 * 300, found.length);
        assertEquals(2 | 300 / 256 << 2, found[10]); // of the head too
        assertEquals(300 % 256, found[11]);
        assertThrows(TrainingException.class, () -> Scalars.encode(new ScalarReport(0, 2, new float[1 << 14], null, null)));
    }

    @Test
    void aHeadGoesInTwoBitsANumber() {
        float[] gradient = {0.5f, -3, 0.25f, 1, -1, 2};
        byte[] found = Scalars.encode(new ScalarReport(0.5f, 2, new float[] {1}, null, gradient));
        byte[] codes = {97, 114, 61, 63, 12, 9}; // the scale, 0.74002653f, and 0 3 0 0, 1 2 0 0
        assertArrayEquals(codes, Arrays.copyOfRange(found, 14, found.length));
    }

    @Test
    void numbersOf16BitsAreThoseOfTheStandard() {
        for (int half = 0; half < 1 << 16; half++) {
            float value = Halves.decode((short) half);
            if (!Float.isNaN(value)) {
                assertEquals((short) half, Halves.encode(value), Integer.toHexString(half));
            }
        }
        assertEquals((short) 0x7c00, Halves.encode(65520));
        assertEquals((short) 0x7bff, Halves.encode(65519));
        assertEquals((short) 0x3c00, Halves.encode(1 + 0x1p-11f)); // a tie goes to the even one
        assertEquals((short) 0x3c02, Halves.encode(1 + 3 * 0x1p-11f));
        assertEquals((short) 0x0000, Halves.encode(0x1p-25f));
        assertTrue(Float.isNaN(Halves.decode(Halves.encode(Float.NaN))));
        Random random = new Random(3);
        for (int i = 0; i < 100_000; i++) {
            float value = random.nextFloat() * 2 - 1;
            float error = Math.abs(Halves.decode(Halves.encode(value)) - value);
            assertTrue(error <= Math.max(Math.abs(value) * 0x1p-11f, 0x1p-25f), String.valueOf(value));
        }
    }
}
